//! The loops: code that runs over time and speaks to the other rooms. Each file is one step that gathers, decides
//! (in `common`), acts and reports.
//!
//! A folder holds the loops of one part of a life: [`cluster`] for an ownership; [`submit`], [`dispatch`] and
//! [`outcome`] for a task; [`upkeep`] for the node itself. What they share of a database, such as the heap, is in
//! [`crate::working_set`].

pub mod cluster;
pub mod dispatch;
pub mod outcome;
pub mod submit;
pub mod upkeep;

#[cfg(test)]
mod tests;
