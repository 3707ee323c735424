//! Limits of a queue and of a token, and a node's estimate of how much of each is used.

mod bucket;
mod usage_counter;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::field::FieldError;
pub use bucket::Bucket;
pub use usage_counter::{CountCoverage, LimitDecision, UsageCounter};

/// The highest limit of tasks, queues and schedules: beyond every real cluster, so that sums never overflow.
pub(crate) const MAX_COUNT: i64 = 1_000_000_000;
/// The highest limit of bytes: a petabyte.
pub(crate) const MAX_BYTES: i64 = 1_000_000_000_000_000;
/// The highest rate limit. Beyond it a node would be busy with refusing.
pub(crate) const MAX_PER_SECOND: i64 = 100_000;

crate::labelled! {
    /// All kinds of limits. The names are labels of a metric and part of the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Limit {
        QueuePending = "queue.max_pending",
        QueuePendingBytes = "queue.max_pending_bytes",
        QueueSchedules = "queue.max_schedules",
        QueueSubmits = "queue.max_submits_per_second",
        TokenRequests = "token.requests_per_second",
        TokenPending = "token.pending",
        TokenPendingBytes = "token.pending_bytes",
        TokenQueues = "token.queues",
        TokenSchedules = "token.schedules",
    }
}

/// Limits of one token. They count everything in the token's queues, no matter which caller made it.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenLimits {
    /// The most requests a second, on each node.
    pub requests_per_second: Option<u32>,
    pub pending: Option<i64>,
    pub pending_bytes: Option<i64>,
    pub queues: Option<i64>,
    pub schedules: Option<i64>,
}

impl TokenLimits {
    pub const NONE: Self =
        Self { requests_per_second: None, pending: None, pending_bytes: None, queues: None, schedules: None };

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    pub const fn pending(&self) -> PendingLimits {
        PendingLimits { tasks: self.pending, bytes: self.pending_bytes }
    }

    /// Refuses values out of range; the error names the field.
    pub fn validate(&self) -> Result<(), FieldError> {
        if let Some(rate) = self.requests_per_second {
            FieldError::within("limits.requests_per_second", i64::from(rate), 1, MAX_PER_SECOND)?;
        }
        for (field, value, most) in [
            ("limits.pending", self.pending, MAX_COUNT),
            ("limits.pending_bytes", self.pending_bytes, MAX_BYTES),
            ("limits.queues", self.queues, MAX_COUNT),
            ("limits.schedules", self.schedules, MAX_COUNT),
        ] {
            if let Some(value) = value {
                FieldError::within(field, value, 0, most)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for TokenLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.requests_per_second.map(|most| format!("{most} requests/s")),
            self.pending.map(|most| format!("{most} tasks")),
            self.pending_bytes.map(|most| format!("{most} bytes")),
            self.queues.map(|most| format!("{most} queues")),
            self.schedules.map(|most| format!("{most} schedules")),
        ];
        let limits: Vec<String> = parts.into_iter().flatten().collect();
        if limits.is_empty() { f.write_str("none") } else { f.write_str(&limits.join(", ")) }
    }
}

/// A number of unfinished tasks, with their bytes: payload, headers and envelope as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub tasks: i64,
    pub bytes: i64,
}

impl Usage {
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { tasks: self.tasks.saturating_add(other.tasks), bytes: self.bytes.saturating_add(other.bytes) }
    }

    pub(crate) const fn part(self, share: i64) -> Self {
        Self { tasks: self.tasks / share, bytes: self.bytes / share }
    }

    /// Subtracts `other`, but never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { tasks: (self.tasks - other.tasks).max(0), bytes: (self.bytes - other.bytes).max(0) }
    }
}

/// The most tasks and bytes that may be pending. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingLimits {
    pub tasks: Option<i64>,
    pub bytes: Option<i64>,
}

impl PendingLimits {
    pub const fn is_none(&self) -> bool {
        self.tasks.is_none() && self.bytes.is_none()
    }

    /// The first limit that the sum of `used` and `more` exceeds.
    pub fn exceeded(&self, used: Usage, more: Usage) -> Option<Excess> {
        let (total, over) = (used.plus(more), |total: i64, most: Option<i64>| most.filter(|most| total > *most));
        if let Some(most) = over(total.tasks, self.tasks) {
            return Some(Excess { by: Measure::Tasks, most, used: used.tasks });
        }
        over(total.bytes, self.bytes).map(|most| Excess { by: Measure::Bytes, most, used: used.bytes })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Tasks,
    Bytes,
}

/// A limit that leaves no room for another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub by: Measure,
    pub most: i64,
    /// The usage that the node knows of. A count stops once it exceeds the limit.
    pub used: i64,
}

#[cfg(test)]
mod tests;
