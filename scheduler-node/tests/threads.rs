//! What threads share without a lock, in every order in which they can run, by the model checker loom.
//!
//! The sources are the node's own. loom's atomics, locks and wakers take the place of the others here.

#![allow(unreachable_pub, reason = "in the node, `pub` inside a private module means: for the whole crate")]

#[path = "threads/history.rs"]
mod history;
#[path = "threads/waits.rs"]
mod waits;
