//! What keeps a node's view true: glances, probes, gauges, its copies of queues, tokens and receipt keys, the map of
//! the shards, its configuration, and the audit.

pub mod auditor;
pub mod config_reader;
pub mod gauges;
pub mod guard;
pub mod looker;
pub mod map_reader;
mod poll_revision;
pub mod prober;
pub mod queue_reader;
pub mod receipt_reader;
pub mod room;
pub mod seen_keeper;
pub mod token_reader;
