//! What keeps a node's view true: probes, gauges, its copies of queues, tokens and receipt keys, and the audit.

pub mod auditor;
pub mod gauges;
mod poll_revision;
pub mod prober;
pub mod queue_reader;
pub mod receipt_reader;
pub mod token_reader;
