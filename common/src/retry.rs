//! When a failed attempt is tried again, and when the retries end.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{field::FieldError, json, time::UnixMicros};

/// The longest wait: ten years. A longer one is a mistake.
pub(crate) const LONGEST_MS: i64 = 315_360_000_000;

/// How long to wait after a failure. `n` counts the failures before this one, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "json::Object<Fields>", into = "Fields")]
pub enum RetryPolicy {
    /// `n^4 + 15 + rand * 30 * (n + 1)` seconds. The default budget of 25 attempts has 24 waits,
    /// about 16.6 days in all.
    #[default]
    Polynomial,
    /// `base_ms * factor^n`, at most `max_ms`, then shortened by a random part: `jitter` 0.2 takes away up to a
    /// fifth. The wait thus never exceeds `max_ms`.
    Exponential { base_ms: i64, factor: f64, max_ms: i64, jitter: f64 },
    /// Always the same wait.
    Fixed { delay_ms: i64 },
    /// No wait.
    Immediate,
}

/// The result of a failed attempt for the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    Retry { at: UnixMicros },
    Bury,
}

impl RetryPolicy {
    /// The wait after a failure that `failures` others preceded. `rand01` is a die roll in 0..=1. Saturates instead
    /// of overflowing, whatever `failures` is.
    pub fn delay(&self, failures: u32, rand01: f64) -> Duration {
        let n = f64::from(failures);
        let rand01 = rand01.clamp(0.0, 1.0);
        match *self {
            Self::Polynomial => seconds(n.powi(4) + 15.0 + rand01 * 30.0 * (n + 1.0)),
            Self::Exponential { base_ms, factor, max_ms, jitter } => {
                let grown = base_ms as f64 * factor.powf(n);
                let capped = grown.min(max_ms as f64);
                seconds(capped * (1.0 - jitter.clamp(0.0, 1.0) * rand01) / 1_000.0)
            }
            Self::Fixed { delay_ms } => Duration::from_millis(delay_ms.max(0).unsigned_abs()),
            Self::Immediate => Duration::ZERO,
        }
    }

    /// Decides to retry or bury, after attempt number `attempt_in_budget` (from 1) of `max_attempts` has failed at
    /// `now`. `retry_in_ms` is the wait that the consumer asks for. It overrides the back-off, not the budget.
    pub(crate) fn decide(
        &self,
        attempt_in_budget: i32,
        max_attempts: i32,
        now: UnixMicros,
        rand01: f64,
        retry_in_ms: Option<i64>,
    ) -> RetryDecision {
        if attempt_in_budget >= max_attempts {
            return RetryDecision::Bury;
        }
        let wait = match retry_in_ms {
            Some(requested_ms) => Duration::from_millis(requested_ms.max(0).unsigned_abs()),
            None => self.delay(u32::try_from(attempt_in_budget - 1).unwrap_or(0), rand01),
        };
        RetryDecision::Retry { at: now.plus(wait) }
    }

    /// Checks the parameters. Separate from reading, so that a stored policy can always be read.
    pub fn validate(&self) -> Result<(), FieldError> {
        match *self {
            Self::Polynomial | Self::Immediate => Ok(()),
            Self::Fixed { delay_ms } => FieldError::within("retry.delay_ms", delay_ms, 1, LONGEST_MS),
            Self::Exponential { base_ms, factor, max_ms, jitter } => {
                FieldError::within("retry.base_ms", base_ms, 1, LONGEST_MS)?;
                FieldError::within("retry.factor", factor, 1.0, 100.0)?;
                FieldError::within("retry.max_ms", max_ms, base_ms, LONGEST_MS)?;
                FieldError::within("retry.jitter", jitter, 0.0, 1.0)
            }
        }
    }
}

/// A `Duration` of so many seconds, or the longest one when they do not fit.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// The policy in JSON: `{"kind": "exponential", "base_ms": 500, ...}`. One flat struct, so that every kind refuses a
/// parameter that belongs to another kind.
#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    kind: Kind,
    #[serde(default, deserialize_with = "json::whole_present")]
    base_ms: Option<i64>,
    #[serde(default, deserialize_with = "json::present")]
    factor: Option<f64>,
    #[serde(default, deserialize_with = "json::whole_present")]
    max_ms: Option<i64>,
    #[serde(default, deserialize_with = "json::present")]
    jitter: Option<f64>,
    #[serde(default, deserialize_with = "json::whole_present")]
    delay_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Polynomial,
    Exponential,
    Fixed,
    Immediate,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Self::Polynomial => "polynomial",
            Self::Exponential => "exponential",
            Self::Fixed => "fixed",
            Self::Immediate => "immediate",
        }
    }

    /// The parameters that this kind takes.
    fn takes(self) -> &'static [&'static str] {
        match self {
            Self::Polynomial | Self::Immediate => &[],
            Self::Exponential => &["base_ms", "factor", "max_ms", "jitter"],
            Self::Fixed => &["delay_ms"],
        }
    }
}

/// The errors name the field with its path, `retry.delay_ms`, like those of [`RetryPolicy::validate`].
impl TryFrom<json::Object<Fields>> for RetryPolicy {
    type Error = String;

    fn try_from(json::Object(fields): json::Object<Fields>) -> Result<Self, String> {
        let given = [
            ("base_ms", fields.base_ms.is_some()),
            ("factor", fields.factor.is_some()),
            ("max_ms", fields.max_ms.is_some()),
            ("jitter", fields.jitter.is_some()),
            ("delay_ms", fields.delay_ms.is_some()),
        ];
        for (name, present) in given {
            if present && !fields.kind.takes().contains(&name) {
                return Err(format!("unknown field `retry.{name}` for the kind {}", fields.kind.text()));
            }
        }
        let need = |name: &str, value: Option<i64>| value.ok_or_else(|| format!("missing field `retry.{name}`"));
        Ok(match fields.kind {
            Kind::Polynomial => Self::Polynomial,
            Kind::Immediate => Self::Immediate,
            Kind::Fixed => Self::Fixed { delay_ms: need("delay_ms", fields.delay_ms)? },
            Kind::Exponential => {
                let base_ms = need("base_ms", fields.base_ms)?;
                Self::Exponential {
                    base_ms,
                    factor: fields.factor.unwrap_or(2.0),
                    max_ms: fields.max_ms.unwrap_or_else(|| base_ms.max(86_400_000)),
                    jitter: fields.jitter.unwrap_or(0.0),
                }
            }
        })
    }
}

impl From<RetryPolicy> for Fields {
    fn from(policy: RetryPolicy) -> Self {
        let bare = |kind| Self { kind, base_ms: None, factor: None, max_ms: None, jitter: None, delay_ms: None };
        match policy {
            RetryPolicy::Polynomial => bare(Kind::Polynomial),
            RetryPolicy::Immediate => bare(Kind::Immediate),
            RetryPolicy::Fixed { delay_ms } => Self { delay_ms: Some(delay_ms), ..bare(Kind::Fixed) },
            RetryPolicy::Exponential { base_ms, factor, max_ms, jitter } => Self {
                base_ms: Some(base_ms),
                factor: Some(factor),
                max_ms: Some(max_ms),
                jitter: Some(jitter),
                ..bare(Kind::Exponential)
            },
        }
    }
}

#[cfg(test)]
mod tests;
