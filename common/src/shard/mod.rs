//! Shards: which one a task lives on, which database holds it, which node should own it.

pub mod assign;
pub mod range;
pub mod route;

pub use assign::{Assignment, AssignmentDiff};
pub use range::ShardRange;
