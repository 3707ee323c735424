//! What a peer has to do, and what it says afterwards: the protocol of `integration-tests/peers/*/run`.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::judge::Arrival;

/// A task of `late` is submitted this long before it is due.
pub(super) const AHEAD: Duration = Duration::from_secs(10);
/// The tasks of `burst` are all submitted so long before they are due.
pub(super) const BURST_AHEAD: Duration = Duration::from_secs(3);
/// A work ends so long after its last task was due, arrived or not.
const LATE_PATIENCE: Duration = Duration::from_secs(30);
const BURST_PATIENCE: Duration = Duration::from_secs(120);
/// The slowest submission that is waited for.
const LEAST_PER_S: u64 = 250;
/// To start and to stop a peer and what it consists of.
const AROUND: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Work {
    /// A steady stream of tasks with a delay, while many others are pending.
    Late,
    /// Many tasks due at one instant.
    Burst,
    /// Tasks without a delay, submitted and run at the same time, as fast as it goes.
    Throughput,
    /// One task after another from many clients at once; no worker runs.
    Submit,
}

impl Work {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Burst => "burst",
            Self::Throughput => "throughput",
            Self::Submit => "submit",
        }
    }
}

/// One work, as a peer's program reads it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Order {
    pub work: Work,
    pub postgres_url: String,
    /// Empty where this machine has no Redis.
    pub redis_url: String,
    pub amqp_url: String,
    pub seconds: u64,
    pub rate: u64,
    pub pending: u64,
    pub tasks: u64,
    pub connections: usize,
    pub batch: usize,
    pub payload_bytes: usize,
    /// Where programs write what arrived; also with `.1`, `.2`, ... behind the name.
    pub arrivals: PathBuf,
}

impl Order {
    pub(super) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// How long arrivals are waited for after the last task was due.
    pub(super) fn patience(&self) -> Duration {
        if self.work == Work::Burst { BURST_PATIENCE } else { LATE_PATIENCE }
    }

    /// The peer is stopped after this time.
    pub(super) fn deadline(&self) -> Duration {
        let submitting = match self.work {
            Work::Late => self.pending,
            Work::Burst => self.tasks,
            Work::Throughput | Work::Submit => 0,
        };
        let running = match self.work {
            Work::Late => AHEAD + self.time(),
            Work::Burst => AHEAD,
            Work::Throughput | Work::Submit => self.time(),
        };
        AROUND + Duration::from_secs(submitting / LEAST_PER_S) + running + self.patience()
    }
}

/// What a peer says of itself at the end of a work.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Told {
    /// Every knob in one line.
    pub settings: String,
    /// Empty where it is that of a store.
    pub version: String,
    /// Without the pending tasks of `late`.
    pub submitted: u64,
    pub submit_seconds: f64,
    /// What is unfair to it, or to others.
    #[serde(default)]
    pub unfair: String,
}

/// The last line of a program.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Not { not: String },
    Told(Told),
}

/// How a work ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Arrived(Told, Vec<Arrival>),
    /// Only `submitted` in `submit_seconds` counts: nothing arrives.
    Counted(Told),
    /// The peer cannot do this work.
    Not(String),
}

/// A work for tests, with stores that are not there.
#[cfg(test)]
pub(super) fn made_up() -> Order {
    let nowhere = String::new;
    Order {
        work: Work::Burst,
        postgres_url: nowhere(),
        redis_url: nowhere(),
        amqp_url: nowhere(),
        seconds: 1,
        rate: 1,
        pending: 1,
        tasks: 1,
        connections: 1,
        batch: 1,
        payload_bytes: 1,
        arrivals: PathBuf::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_last_line_is_what_it_measured_or_why_not() {
        let told = r#"{"settings": "s", "version": "v", "submitted": 7, "submit_seconds": 2}"#;
        assert!(matches!(serde_json::from_str(told), Ok(Answer::Told(Told { submitted: 7, .. }))));
        let not = r#"{"not": "it has no delays"}"#;
        assert!(matches!(serde_json::from_str(not), Ok(Answer::Not { not }) if not == "it has no delays"));
        assert!(serde_json::from_str::<Answer>(r#"{"version": "v"}"#).is_err());
    }
}
