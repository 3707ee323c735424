//! The Duetime node: its modules in reading order. Code belongs to the module of the store, broker or client that
//! it speaks to.

pub mod node;

pub mod store;

pub mod coordination;

pub mod broker;

pub(crate) mod http;

pub(crate) mod console;

pub(crate) mod desk;

pub mod intake;

pub mod loops;

pub mod working_set;

pub mod oidc;

pub mod relay;

pub mod traces;

pub mod supervise;

pub(crate) mod access;
pub mod address;
pub mod alarm;
pub(crate) mod audit;
pub mod causes;
pub mod cli;
pub mod clock;
pub mod config;
#[cfg(any(test, feature = "failpoints"))]
pub mod fuzz;
pub mod internal;
pub mod metrics;
pub mod readiness;
pub mod receipt;
pub mod seal;
pub mod settings;
pub mod telemetry;
