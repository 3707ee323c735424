//! Runs the loops of dispatch and outcome, as the node has them, on a database and a broker that lie.
//!
//! A run has one thread and virtual time, and all that happens in it follows from its seed. [`plan`] decides what
//! happens, [`world`] lets it happen, and [`judge`] checks the guarantees at each step. docs/reliability.md says what
//! is real, what lies, and how to repeat a run.
//!
//! In reading order:
//! - [`plan`]: the tasks and the faults of a run.
//! - [`row`], [`table`], [`statement`], [`lanes`]: the database, which `store/tests/in_memory.rs` compares with
//!   PostgreSQL.
//! - [`world`]: locks and commits, the clock, and which processes run.
//! - [`database`], [`broker`]: the ports of a node, which lie while a fault is in force.
//! - [`node`], [`run`]: the nodes, their clients and their consumers.
//! - [`mutant`], [`broken`]: rules that are broken on purpose, each of which the judge must notice.

mod broken;
mod broker;
mod database;
pub mod dice;
mod judge;
pub mod lanes;
mod mutant;
mod node;
mod plan;
pub mod row;
mod run;
mod shrink;
pub mod statement;
pub mod table;
mod tests;
mod world;
