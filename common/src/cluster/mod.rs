//! The cluster as one node sees it, and the decisions that follow from it.

pub mod drain;
mod membership;
pub mod ownership;
mod view;

pub use membership::{Freeze, Pace};
pub use ownership::Action;
pub use view::{AssignmentRecord, Candidate, ClusterView, Member, OwnerRecord};
