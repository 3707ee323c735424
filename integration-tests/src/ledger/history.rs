//! The ledger's data. Only facts: requests, answers, arrivals.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Number;

/// One message as a consumer received it, recorded before it is answered.
#[derive(Clone, Debug, Default)]
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

/// The record of one submission.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) queue: String,
    pub(super) invoked_us: i64,
    /// The earliest moment at which it may arrive, by the due times acknowledged so far.
    pub(super) due_us: i64,
    pub(super) answer: Answer,
    pub(super) cancel: Cancel,
    pub(super) max_attempts: Option<u32>,
    /// May end without being delivered: it expires, or its queue is taken away.
    pub(super) may_lapse: bool,
    /// Its place in a sequence that must be kept.
    pub(super) order: Option<(String, u64)>,
    /// The submissions that must have succeeded before it starts.
    pub(super) after: Vec<Number>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Open,
    Accepted(String),
    Refused,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancel {
    Never,
    /// Acknowledged as `cancelled`: no message may ever arrive.
    Final,
    /// Acknowledged as `no_further_attempts`: it has arrived and may arrive again.
    NoFurther,
    Unknown,
}

/// A span of time in which a part was broken on purpose.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) what: String,
    pub(super) from_us: i64,
    pub(super) until_us: Option<i64>,
}

/// A fault that has begun. Healing it closes its window.
#[derive(Clone, Copy, Debug)]
pub struct Fault(pub(super) usize);

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) entries: Vec<Entry>,
    pub(super) by_task: HashMap<String, Number>,
    pub(super) deliveries: Vec<Delivery>,
    /// Numbers that have arrived, for a cheap check whether all have.
    pub(super) arrived: BTreeSet<Number>,
    pub(super) windows: Vec<Window>,
    pub(super) owners: BTreeMap<(u32, i64), BTreeSet<String>>,
    pub(super) messages_may_vanish: bool,
}

impl History {
    pub(super) fn entry(&mut self, number: Number) -> &mut Entry {
        &mut self.entries[number as usize]
    }
}

impl Entry {
    pub(super) fn must_arrive(&self) -> bool {
        matches!(self.answer, Answer::Accepted(_))
            && matches!(self.cancel, Cancel::Never | Cancel::NoFurther)
            && !self.may_lapse
    }
}
