//! Decisions of a relay, the consumer that turns tasks into HTTP calls or runs of a command.

pub mod breaker;
pub mod call;
