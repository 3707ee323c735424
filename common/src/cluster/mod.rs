//! The cluster as one node sees it, and the decisions that follow from it.

pub mod drain;
mod membership;
pub mod ownership;
mod reach;
pub mod realm;
pub mod seen;
pub mod suspicion;
mod view;

pub use membership::{Freeze, Pace};
pub use ownership::Action;
pub use reach::ReachChanges;
pub use view::{AssignmentRecord, Candidate, ClusterView, Member, OwnerRecord};
