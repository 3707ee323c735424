//! A private cluster of real stores and nodes, faults as methods, and the ledger that judges it.
//!
//! It speaks to the nodes as any outsider would: HTTP, AMQP, the configuration file, signals. It shares no code with
//! them.
#![allow(
    clippy::disallowed_methods,
    reason = "this is not a node: it is the clock and the clients, and its threads end with its test"
)]

pub mod chaos;
pub mod client;
pub mod clock;
pub mod consumer;
pub mod http;
pub mod identity_provider;
pub mod ledger;
pub mod load;
pub mod models;
pub mod page;
pub mod raw_amqp;
pub mod sandbox;
pub mod traces;
