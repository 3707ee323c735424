//! The life of an ownership: a node registers, one node leads and assigns shards, and each node acquires and releases
//! what is assigned to it.

pub mod assigner;
pub mod elector;
pub mod mover;
pub mod owner;
pub mod realm_keeper;
pub mod session_keeper;
pub mod watcher;
