//! The Duetime node: its modules in reading order. Code belongs to the module of the store, broker or client that
//! it speaks to.
//!
//! Only the modules that `main.rs`, the tests and the fuzz targets use are public, so that the compiler reports code
//! without a caller.

// The optimiser works out the layouts of futures within futures, which nest deeper than the default of 128.
#![recursion_limit = "256"]
#![allow(unreachable_pub, reason = "`pub` inside a private module means: for the whole crate")]

#[macro_use]
mod seeded;

pub mod node;

mod store;

mod coordination;

mod broker;

mod http;

mod console;

mod desk;

mod intake;

mod loops;

mod working_set;

mod oidc;

mod relay;

mod traces;

mod history;

mod supervise;

mod access;
mod address;
mod alarm;
mod audit;
mod by_database;
mod causes;
pub mod cli;
mod clock;
mod config;
mod dice;
mod failures;
#[cfg(any(test, feature = "failpoints"))]
pub mod fuzz;
mod internal;
mod metrics;
mod peer;
mod readiness;
mod receipt;
mod seal;
pub mod settings;
#[cfg(test)]
mod simulation;
pub mod telemetry;
mod until;
