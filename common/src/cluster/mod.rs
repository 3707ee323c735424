//! The cluster as one node sees it, and the decisions that follow from it.

pub mod drain;
pub mod membership;
pub mod ownership;
pub mod view;

pub use membership::{Freeze, Pace};
pub use ownership::Action;
pub use view::{AssignmentRecord, Candidate, ClusterView, Member, OwnerRecord};
