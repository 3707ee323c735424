//! What somebody did by a form of the console.

use std::{fmt, net::SocketAddr};

use crate::http::Caller;

/// Everything that changes something through the console is told here: who, from where, what he did, on what, and what came of it.
pub(super) fn acted(caller: &Caller, from: Option<SocketAddr>, what: &str, on: &str, outcome: impl fmt::Display) {
    let from = from.map(tracing::field::display);
    tracing::info!(caller = caller.name, role = %caller.role, from, what, on, %outcome, "acted in the console");
}
