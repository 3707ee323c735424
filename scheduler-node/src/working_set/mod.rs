//! The working set: what a node keeps in memory of its share of each database. The loops share it.
//!
//! [`database`] is the whole for one database. Its parts: [`owned_shards`] with the heap and the tasks in flight,
//! [`ready_queues`] with their [`floors`], and [`set_aside`] for rows that the database refuses. [`lanes`] are the
//! ways to the broker, one for each queue, with the [`backlog`] of all of them, and [`delay_rules`] say what becomes
//! of messages that come from a delay exchange. [`retry`] repeats a write until each of its rows is written or
//! refused. [`suspects`] are rows that may be at fault when a write fails as with a bug. [`failures`] notices the
//! first of several failures, for the log; it is a module of its own, as a room below needs it too.

pub mod backlog;
pub mod database;
pub mod delay_rules;
pub mod floors;
pub mod lanes;
pub mod owned_shards;
pub mod ready_queues;
pub mod retry;
pub mod set_aside;
pub mod suspects;

pub(crate) use crate::failures;
