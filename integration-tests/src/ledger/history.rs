//! The ledger's data. Only facts: requests, answers, arrivals, and the rows that are left at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Number;

/// One message as a consumer received it, recorded before it is answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Delivery {
    pub at_us: i64,
    pub queue: String,
    pub message_id: String,
    pub task: String,
    pub attempt: u32,
    pub due_ms: Option<i64>,
    /// `duetime-redelivered`: Duetime says this may be a copy.
    pub marked: bool,
    /// RabbitMQ says it has handed this very message out before.
    pub by_broker: bool,
    /// From the payload; `None` for a task that the ledger did not submit.
    pub number: Option<Number>,
}

/// A row of a task in a database, read after everything has ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The place of the database.
    pub database: usize,
    pub shard: u32,
    /// Whether it is in the table of unfinished tasks.
    pub live: bool,
    pub task: String,
    pub queue: String,
    pub state: String,
    pub attempt: u32,
    pub due_us: i64,
    /// When it was claimed last, and when it ended, by the clock of its database. Absent from older files.
    #[serde(default)]
    pub claimed_us: Option<i64>,
    #[serde(default)]
    pub finished_us: Option<i64>,
    pub key: Option<String>,
    pub partition_key: Option<String>,
    pub version: i64,
    /// From the payload; `None` for a task that the ledger did not submit.
    pub number: Option<Number>,
}

/// A consumer begins or ends the work of a message, in a lane where only so many may be open at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) lane: String,
    pub(super) message_id: String,
    pub(super) begins: bool,
    pub(super) at_us: i64,
}

/// A consumer's answer to a message, recorded before it is sent. A connection may lose it, and then the message comes
/// again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answered {
    pub(super) message_id: String,
    pub(super) reply: Reply,
    pub(super) at_us: i64,
}

/// What a consumer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Acked,
    Rejected,
    Requeued,
    Succeeded,
    /// RabbitMQ has confirmed the report of a success: nothing may lose it from now on.
    Kept,
    Failed,
    Discarded,
}

impl Reply {
    /// That of a report with this status. A sign of life is none.
    pub(crate) fn of_status(status: &str) -> Option<Self> {
        match status {
            "succeeded" => Some(Self::Succeeded),
            "failed" => Some(Self::Failed),
            "discard" => Some(Self::Discarded),
            _ => None,
        }
    }

    /// Whether it can end the attempt as failed. RabbitMQ rejects what is requeued too often, and a person may retry
    /// what was discarded.
    pub(super) fn may_fail(self) -> bool {
        matches!(self, Self::Rejected | Self::Requeued | Self::Failed | Self::Discarded)
    }
}

/// What may cause a further attempt of a queue's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retries {
    /// Nothing: the confirm finishes a task.
    Never,
    /// A rejection before the deadline.
    AfterRejection { deadline_us: i64 },
    /// A failure or a rejection, or silence until the deadline.
    AfterFailureOrSilence { deadline_us: i64 },
}

/// The deadline of a queue whose policy names none: see `timeout_ms` in docs/reference.md.
const USUAL_TIMEOUT_MS: i64 = 1_800_000;

impl Retries {
    /// Those of a queue with this policy.
    pub fn of(policy: &Value) -> Self {
        let deadline_us = policy["timeout_ms"].as_i64().unwrap_or(USUAL_TIMEOUT_MS) * 1_000;
        match policy["settle"].as_str() {
            Some("confirm") => Self::Never,
            Some("result") => Self::AfterFailureOrSilence { deadline_us },
            _ => Self::AfterRejection { deadline_us },
        }
    }
}

/// The attempts of a queue whose policy names none: see `max_attempts` in docs/reference.md.
const USUAL_ATTEMPTS: u32 = 25;

/// The attempts of a task of a queue with this policy.
pub fn attempts_of(policy: &Value) -> u32 {
    policy["max_attempts"].as_u64().and_then(|most| u32::try_from(most).ok()).unwrap_or(USUAL_ATTEMPTS)
}

/// The wait before a further attempt of a task of a queue with this policy, in milliseconds; `None`: it varies.
pub fn fixed_wait_of(policy: &Value) -> Option<i64> {
    policy["retry"]["delay_ms"].as_i64()
}

/// A schedule whose tasks have no number: its interval, and the span of time in which it was certainly in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fires {
    pub(super) every_us: i64,
    pub(super) from_us: Option<i64>,
    pub(super) until_us: Option<i64>,
}

/// The record of one submission.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) queue: String,
    pub(super) invoked_us: i64,
    /// The moment of the positive answer or of the confirm, or that of the request without one.
    pub(super) accepted_us: i64,
    /// The earliest moment at which it may arrive, by the due times acknowledged so far.
    pub(super) due_us: i64,
    pub(super) answer: Answer,
    /// Refused by the client itself.
    pub(super) is_withdrawn: bool,
    /// Further tasks that repetitions of the submission were answered with. There must be none.
    pub(super) others: Vec<String>,
    pub(super) cancel: Cancel,
    /// When the answer `no_further_attempts` had come.
    pub(super) ended_us: Option<i64>,
    pub(super) max_attempts: Option<u32>,
    /// May end without being delivered: it expires, or its queue is taken away.
    pub(super) may_lapse: bool,
    /// May become a second task near a fault: its way in is at least once, and it has no key.
    pub(super) may_repeat: bool,
    /// Its place in a sequence that must be kept.
    pub(super) order: Option<(String, u64)>,
    /// The submissions that must have succeeded before it starts.
    pub(super) after: Vec<Number>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Open,
    Accepted(String),
    /// Accepted by an answer that does not name the task: RabbitMQ's confirm.
    Taken,
    Refused,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancel {
    Never,
    /// Acknowledged as `cancelled`: no message may ever arrive.
    Final,
    /// Acknowledged as `no_further_attempts`: it has arrived, and copies of that attempt may arrive again.
    NoFurther,
    Unknown,
}

/// A span of time in which a part was broken on purpose.
#[derive(Clone, Debug)]
pub struct Window {
    pub what: String,
    pub from_us: i64,
    pub until_us: Option<i64>,
    /// Why the fault had no effect, if it had none. What it did until then excuses as others do.
    pub void: Option<String>,
}

/// A span of time in which nothing was broken, from a moment at which all nodes were ready to the next fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calm {
    pub(super) from_us: i64,
    pub(super) until_us: Option<i64>,
}

/// A span of time in which the clock of a database was ahead of the consumers' by at most so much.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    pub(super) shards: BTreeSet<u32>,
    pub(super) ahead_us: i64,
    pub(super) from_us: i64,
    pub(super) until_us: Option<i64>,
}

/// A fault that has begun. Healing it closes its window.
#[derive(Clone, Copy, Debug)]
pub struct Fault(pub(super) usize);

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) facts: Value,
    pub(super) entries: Vec<Entry>,
    pub(super) deliveries: Vec<Delivery>,
    /// Numbers that have arrived, for a cheap check whether all have.
    pub(super) arrived: BTreeSet<Number>,
    pub(super) windows: Vec<Window>,
    pub(super) calms: Vec<Calm>,
    pub(super) ahead: Vec<Ahead>,
    pub(super) owners: BTreeMap<(u32, i64), BTreeSet<String>>,
    /// Queues whose tasks come at once when they are due.
    pub(super) prompt: BTreeSet<String>,
    /// Queues whose messages may vanish.
    pub(super) lossy: BTreeSet<String>,
    /// The most messages in work at a time, for each lane.
    pub(super) limits: BTreeMap<String, usize>,
    pub(super) works: Vec<Work>,
    /// The answers to each message, by its id.
    pub(super) replies: HashMap<String, Vec<Answered>>,
    /// What may cause further attempts, by queue.
    pub(super) retries: BTreeMap<String, Retries>,
    /// The attempts of each task, by queue.
    pub(super) attempts: BTreeMap<String, u32>,
    /// The wait before a further attempt, in milliseconds, by queue.
    pub(super) waits: BTreeMap<String, i64>,
    /// Queues of one schedule each.
    pub(super) fires: BTreeMap<String, Fires>,
    pub(super) rows: Vec<Row>,
    pub(super) has_tables: bool,
    pub(super) wrong: Vec<String>,
    /// Accepted tasks that a node did not know, and when.
    pub(super) missing: Vec<(Number, i64)>,
}

impl History {
    pub(super) fn entry(&mut self, number: Number) -> &mut Entry {
        &mut self.entries[number as usize]
    }

    pub(super) fn begin_fault(&mut self, what: String, at_us: i64) {
        self.calms.iter_mut().filter(|calm| calm.until_us.is_none()).for_each(|calm| calm.until_us = Some(at_us));
        self.windows.push(Window { what, from_us: at_us, until_us: None, void: None });
    }

    /// The answers to a message.
    pub(super) fn replies_to(&self, message_id: &str) -> &[Answered] {
        self.replies.get(message_id).map_or(&[], Vec::as_slice)
    }

    /// The submission of this number, if there is one.
    pub(super) fn known(&self, number: Option<Number>) -> Option<(Number, &Entry)> {
        number.and_then(|number| Some((number, self.entries.get(usize::try_from(number).ok()?)?)))
    }
}

impl Entry {
    pub(super) fn new(queue: String, invoked_us: i64, due_us: i64) -> Self {
        Self {
            queue,
            invoked_us,
            accepted_us: invoked_us,
            due_us,
            answer: Answer::Open,
            is_withdrawn: false,
            others: Vec::new(),
            cancel: Cancel::Never,
            ended_us: None,
            max_attempts: None,
            may_lapse: false,
            may_repeat: false,
            order: None,
            after: Vec::new(),
        }
    }

    /// Notes the task of a positive answer. A repetition must be answered with the first one's.
    pub(super) fn accept(&mut self, task: String, at_us: i64) {
        self.accepted_us = at_us;
        match &self.answer {
            Answer::Accepted(first) if *first != task => self.others.push(task),
            _ => self.answer = Answer::Accepted(task),
        }
    }

    /// Notes a positive answer that does not name the task.
    pub(super) fn take(&mut self, at_us: i64) {
        (self.answer, self.accepted_us) = (Answer::Taken, at_us);
    }

    /// Notes the outcome of a cancel.
    pub(super) fn take_back(&mut self, outcome: &str, at_us: Option<i64>) {
        if outcome == "cancelled" {
            self.cancel = Cancel::Final;
        } else {
            (self.cancel, self.ended_us) = (Cancel::NoFurther, at_us);
        }
    }

    pub(super) fn is_accepted(&self) -> bool {
        matches!(self.answer, Answer::Accepted(_) | Answer::Taken)
    }

    pub(super) fn must_arrive(&self) -> bool {
        self.is_accepted() && matches!(self.cancel, Cancel::Never | Cancel::NoFurther) && !self.may_lapse
    }
}
