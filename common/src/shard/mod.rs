//! Shards: which one a task lives on, which database holds it, which node should own it.

pub mod assign;
pub mod map;
pub mod move_check;
pub mod move_progress;
pub mod movement;
pub mod range;
pub mod rebalance;
pub mod route;
pub mod set;

/// The number of shards of a new cluster that chooses none.
pub const DEFAULT_SHARDS: u16 = 256;

/// The most shards of a new cluster. Each costs every node a look at an index a second and a key in etcd; beyond this
/// number an idle cluster is busy with its shards.
pub const MOST_SHARDS: u16 = 4_096;

pub use assign::{Assignment, AssignmentDiff};
pub use map::{FenceRow, ShardMap, ShardStatus};
pub use move_check::Standing;
pub use movement::{MoveState, MoveStep, next_step};
pub use range::ShardRange;
pub use set::ShardSet;
