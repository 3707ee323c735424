//! What the ledger is made of: events in the order in which they were recorded, and their file.
//!
//! A file has one event a line, as JSON. It is written as the events happen, so a run that was killed leaves all but
//! its last line.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Number,
    history::{Ahead, Answer, Answered, Calm, Cancel, Delivery, Entry, Fires, History, Retries, Row, Work},
};

/// One fact of a run. Times are in microseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    /// How the run was made: for its report.
    Run {
        facts: Value,
    },
    Submitting {
        number: Number,
        queue: String,
        at_us: i64,
        due_us: i64,
    },
    Accepted {
        number: Number,
        task: String,
        at_us: i64,
    },
    Taken {
        number: Number,
        at_us: i64,
    },
    Refused {
        number: Number,
    },
    /// The client took its submission back itself, as by a rollback.
    Withdrawn {
        number: Number,
    },
    Unknown {
        number: Number,
    },
    Attempts {
        number: Number,
        most: u32,
    },
    MayLapse {
        number: Number,
    },
    MayRepeat {
        number: Number,
    },
    Order {
        number: Number,
        sequence: String,
        place: u64,
    },
    After {
        number: Number,
        others: Vec<Number>,
    },
    Cancelled {
        number: Number,
        outcome: String,
        /// Absent from older files, as other optional fields are.
        #[serde(default)]
        at_us: Option<i64>,
    },
    CancelUnknown {
        number: Number,
    },
    Moved {
        number: Number,
        due_us: i64,
    },
    MayMove {
        number: Number,
        due_us: i64,
    },
    Delivered(Delivery),
    Answered(Answered),
    Fault {
        what: String,
        at_us: i64,
    },
    Calm {
        at_us: i64,
    },
    Healed {
        fault: usize,
        at_us: i64,
    },
    /// The fault had no effect.
    Void {
        fault: usize,
        why: String,
    },
    /// The clock of the database that has these shards is about to be set ahead.
    ClockAhead {
        shards: BTreeSet<u32>,
        ahead_us: i64,
        at_us: i64,
    },
    /// It has been set back.
    ClockBack {
        at_us: i64,
    },
    Owner {
        shard: u32,
        epoch: i64,
        owner: String,
    },
    /// The tasks of the queue have nothing to wait for once they are due.
    Prompt {
        queue: String,
    },
    QueueLosesMessages {
        queue: String,
    },
    Limit {
        lane: String,
        most: usize,
    },
    Works(Work),
    Retries {
        queue: String,
        retries: Retries,
    },
    QueueAttempts {
        queue: String,
        most: u32,
    },
    QueueWait {
        queue: String,
        wait_ms: i64,
    },
    Fires {
        queue: String,
        every_us: i64,
        #[serde(default)]
        from_us: Option<i64>,
    },
    FiresUntil {
        queue: String,
        at_us: i64,
    },
    Row(Row),
    /// All rows of the databases have been recorded.
    Tables,
    /// A node does not know an accepted task.
    Missing {
        number: Number,
        at_us: i64,
    },
    /// Something that no row and no message shows.
    Wrong {
        what: String,
    },
}

impl Event {
    pub(super) fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("an event is plain data");
        line.push('\n');
        line
    }
}

/// Reads the events of a file. A last line that was cut short is left out.
pub(super) fn read(path: &Path) -> Result<History> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut lines = BufReader::new(file).lines().enumerate().peekable();
    let mut history = History::default();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_str(&line?) {
            Ok(event) => history.apply(event),
            Err(_) if lines.peek().is_none() => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{}, line {}", path.display(), number + 1));
            }
        }
    }
    Ok(history)
}

impl History {
    /// Adds one event.
    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Run { facts } => self.facts = facts,
            Event::Submitting { queue, at_us, due_us, .. } => self.entries.push(Entry::new(queue, at_us, due_us)),
            Event::Accepted { number, task, at_us } => self.entry(number).accept(task, at_us),
            Event::Taken { number, at_us } => self.entry(number).take(at_us),
            Event::Refused { number } => self.entry(number).answer = Answer::Refused,
            Event::Withdrawn { number } => {
                let entry = self.entry(number);
                (entry.answer, entry.is_withdrawn) = (Answer::Refused, true);
            }
            Event::Unknown { number } => self.entry(number).answer = Answer::Unknown,
            Event::Cancelled { number, outcome, at_us } => self.entry(number).take_back(&outcome, at_us),
            Event::CancelUnknown { number } => self.entry(number).cancel = Cancel::Unknown,
            Event::Moved { number, due_us } => self.entry(number).due_us = due_us,
            Event::MayMove { number, due_us } => {
                let entry = self.entry(number);
                entry.due_us = entry.due_us.min(due_us);
            }
            Event::Delivered(delivery) => {
                self.arrived.extend(delivery.number);
                self.deliveries.push(delivery);
            }
            Event::Answered(answered) => {
                self.replies.entry(answered.message_id.clone()).or_default().push(answered);
            }
            Event::Fault { what, at_us } => self.begin_fault(what, at_us),
            Event::Calm { at_us } => self.calms.push(Calm { from_us: at_us, until_us: None }),
            Event::Healed { fault, at_us } => self.windows[fault].until_us = Some(at_us),
            Event::Void { fault, why } => self.windows[fault].void = Some(why),
            Event::ClockAhead { shards, ahead_us, at_us } => {
                self.ahead.push(Ahead { shards, ahead_us, from_us: at_us, until_us: None });
            }
            Event::ClockBack { at_us } => {
                self.ahead.iter_mut().filter(|one| one.until_us.is_none()).for_each(|one| one.until_us = Some(at_us));
            }
            Event::Owner { shard, epoch, owner } => {
                self.owners.entry((shard, epoch)).or_default().insert(owner);
            }
            other => self.apply_rule(other),
        }
    }

    /// Adds what a scenario demands or allows, and what the tables show at its end.
    fn apply_rule(&mut self, event: Event) {
        match event {
            Event::Attempts { number, most } => self.entry(number).max_attempts = Some(most),
            Event::MayLapse { number } => self.entry(number).may_lapse = true,
            Event::MayRepeat { number } => self.entry(number).may_repeat = true,
            Event::Order { number, sequence, place } => self.entry(number).order = Some((sequence, place)),
            Event::After { number, others } => self.entry(number).after = others,
            Event::Prompt { queue } => drop(self.prompt.insert(queue)),
            Event::QueueLosesMessages { queue } => drop(self.lossy.insert(queue)),
            Event::Limit { lane, most } => drop(self.limits.insert(lane, most)),
            Event::Works(work) => self.works.push(work),
            Event::Retries { queue, retries } => drop(self.retries.insert(queue, retries)),
            Event::QueueAttempts { queue, most } => drop(self.attempts.insert(queue, most)),
            Event::QueueWait { queue, wait_ms } => drop(self.waits.insert(queue, wait_ms)),
            Event::Fires { queue, every_us, from_us } => {
                self.fires.insert(queue, Fires { every_us, from_us, until_us: None });
            }
            Event::FiresUntil { queue, at_us } => {
                self.fires.entry(queue).and_modify(|fires| fires.until_us = Some(at_us));
            }
            Event::Row(row) => self.rows.push(row),
            Event::Tables => self.has_tables = true,
            Event::Missing { number, at_us } => self.missing.push((number, at_us)),
            Event::Wrong { what } => self.wrong.push(what),
            // Named one by one, so that the compiler finds an event that neither function takes.
            Event::Run { .. }
            | Event::Submitting { .. }
            | Event::Accepted { .. }
            | Event::Taken { .. }
            | Event::Refused { .. }
            | Event::Withdrawn { .. }
            | Event::Unknown { .. }
            | Event::Cancelled { .. }
            | Event::CancelUnknown { .. }
            | Event::Moved { .. }
            | Event::MayMove { .. }
            | Event::Delivered(_)
            | Event::Answered(_)
            | Event::Fault { .. }
            | Event::Calm { .. }
            | Event::Healed { .. }
            | Event::Void { .. }
            | Event::ClockAhead { .. }
            | Event::ClockBack { .. }
            | Event::Owner { .. } => unreachable!("this is what happened, and no rule"),
        }
    }
}
