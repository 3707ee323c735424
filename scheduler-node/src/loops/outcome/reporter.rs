//! Writes the reports of consumers (results, heartbeats, rejections), and handles deadlines that pass without one.
//!
//! It reads the state of the tasks, decides in `common::task::verdict`, writes by compare-and-set, then acks.
//! Results and rejections come to any node, whichever node owns the shard. If this loop stops, they wait in the
//! broker.

mod incoming;
mod line;
mod prolong;
#[cfg(test)]
pub(in crate::loops) mod tests;
mod trace;
mod write;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{Attempt, TaskId},
    queue::Unroutable,
    task::{
        TaskState,
        report::ResultBody,
        verdict::{FailureReason, TaskSnapshot},
        voucher::Voucher,
    },
};

pub use self::incoming::ReportLines;
use self::write::Writes;
use super::releaser::Releaser;
use crate::{
    audit::Audit,
    clock, dice,
    loops::upkeep::queue_reader::{Books, catch_up},
    metrics::Metrics,
    receipt::Receipts,
    store::{Database, Error, Patience, Statements, StoreOp, settle::StandingRow},
    traces::Traces,
    working_set::{
        database::{Aside, DatabaseIndex, NodeDatabase, NodeDatabases},
        retry::Refused,
        set_aside::Kind,
    },
};

/// The time for which reports wait for a database that is away. Then they go back to the broker, before the deadlines
/// of most attempts. Each of them may come again at once.
const AWAY_LONGEST: Duration = Duration::from_secs(10);

/// The longest time that a report which another transaction or a closed shard holds up stays here without an ack, and
/// one that counts without a value before the quarantine has it. RabbitMQ closes the channel of a consumer that has not
/// acked a message for half an hour (`consumer_timeout`).
const HELD_LONGEST: Duration = Duration::from_secs(600);

/// The most looks at an event that another write overtakes between the look and the write.
const LOOKS: usize = 5;

/// An event of a task after its claim.
#[derive(Clone, Debug)]
pub enum AttemptEvent {
    Deadline,
    /// The consumer rejected the message, or the broker gave it up.
    Rejected {
        attempt: Attempt,
        reason: String,
        from: Option<Sender>,
    },
    Reported {
        attempt: Attempt,
        body: Box<ResultBody>,
        /// `None`: the report did not come over AMQP, and its sender was checked elsewhere.
        from: Option<Sender>,
    },
    /// The broker returned the message because no queue is bound for it, or refuses it, or it was not sent because it
    /// does not fit its queue's format. `reason`: why the attempt fails where `rule` makes it fail.
    Returned {
        attempt: Attempt,
        rule: Unroutable,
        reason: FailureReason,
        why: String,
    },
}

/// The sender of a message, as far as it is known.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The index of the message in its batch.
    place: usize,
    voucher: Voucher,
}

impl AttemptEvent {
    /// Stores the index of the message in its batch.
    fn number(&mut self, place: usize) {
        if let Self::Rejected { from: Some(from), .. } | Self::Reported { from: Some(from), .. } = self {
            from.place = place;
        }
    }

    fn sender(&self) -> Option<&Sender> {
        match self {
            Self::Rejected { from, .. } | Self::Reported { from, .. } => from.as_ref(),
            Self::Deadline | Self::Returned { .. } => None,
        }
    }

    /// Returns the event without the values of the message, which the database may refuse; its outcome still
    /// counts.
    fn bare(&self) -> Self {
        match self {
            Self::Deadline => Self::Deadline,
            Self::Rejected { attempt, from, .. } => {
                Self::Rejected { attempt: *attempt, reason: "rejected".to_owned(), from: from.clone() }
            }
            Self::Reported { attempt, body, from } => {
                let body = ResultBody { retry_in_ms: body.retry_in_ms, ..ResultBody::new(body.status) };
                Self::Reported { attempt: *attempt, body: Box::new(body), from: from.clone() }
            }
            Self::Returned { attempt, rule, reason, .. } => {
                Self::Returned { attempt: *attempt, rule: *rule, reason: *reason, why: reason.text().to_owned() }
            }
        }
    }

    fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Deadline => None,
            Self::Rejected { attempt, .. } | Self::Reported { attempt, .. } | Self::Returned { attempt, .. } => {
                Some(*attempt)
            }
        }
    }
}

/// The result of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    Applied {
        /// The consumer must stop.
        stopping: bool,
        /// The task has ended.
        finished: bool,
    },
    /// The report is about a finished attempt, or its task does not accept reports any more.
    Stale { state: TaskState, attempt: Attempt },
    /// The write passed over the task, because another transaction holds it or has just changed it. The deadline is
    /// looked at again.
    Passed,
    /// No open task has this id.
    Missing,
    /// Nothing vouches for the message at this index of its batch.
    Untrusted { place: usize, why: String },
}

/// The tasks that have ended. Retries and heartbeats do not count: they show nothing of the archive.
fn finished(answers: &[(TaskId, Reported)]) -> Vec<TaskId> {
    let finished = answers.iter().filter(|(_, answer)| matches!(answer, Reported::Applied { finished: true, .. }));
    finished.map(|(id, _)| *id).collect()
}

/// The tasks whose deadlines have passed and that are not ended yet.
#[derive(Debug, Default)]
pub struct Left {
    /// The write passed over them.
    pub passed: Vec<TaskId>,
    /// Their write failed, and may have been done.
    pub failed: Option<(Vec<TaskId>, Error)>,
}

#[derive(Clone, Debug)]
pub struct Reporter<S = Arc<Database>> {
    pub databases: NodeDatabases<S>,
    pub books: Books,
    pub releaser: Releaser<S>,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
    pub receipts: Receipts,
    pub lines: ReportLines,
    /// Whether messages may arrive by the names of their queues.
    pub default_exchange: bool,
    pub audit: Audit,
}

impl<S: Statements> Reporter<S> {
    /// Applies one report that came by hand or over HTTP.
    pub async fn report(&self, id: TaskId, attempt: Attempt, body: ResultBody) -> Result<Reported, Error> {
        let event = AttemptEvent::Reported { attempt, body: Box::new(body), from: None };
        let answers = self.apply_in_place(vec![(id, event)], Patience::Long).await?;
        Ok(answers.into_iter().next().map_or(Reported::Missing, |(_, answer)| answer))
    }

    /// Applies events in the places of their tasks' shards. If a shard moves meanwhile, its events go to the new place,
    /// a bounded number of times. One whose new place is not known is refused, not missing.
    async fn apply_in_place(
        &self,
        events: Vec<(TaskId, AttemptEvent)>,
        patience: Patience,
    ) -> Result<Vec<(TaskId, Reported)>, Error> {
        let (mut answers, mut left, mut refusals, mut refused_at) = (Vec::new(), events, 0, None);
        let mut last_refusal: Option<Error> = None;
        loop {
            let (parts, lost) = self.databases.divide(std::mem::take(&mut left), |(id, _)| *id);
            if let Some(error) = last_refusal.take().filter(|_| !lost.is_empty()) {
                return Err(error);
            }
            answers.extend(lost.into_iter().map(|(id, _)| (id, Reported::Missing)));
            let mut moved = None;
            for (index, part) in parts {
                match self.apply(&self.databases[index], part.clone()).await {
                    Ok(more) => answers.extend(more),
                    Err(error) if error.is_moved() => {
                        left.extend(part);
                        moved = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let Some(error) = moved else { return Ok(answers) };
            let since = *refused_at.get_or_insert_with(clock::instant);
            if !self.databases.places().reread_after_move(refusals, since, patience).await {
                return Err(error);
            }
            last_refusal = Some(error);
            refusals += 1;
        }
    }

    /// Ends tasks of the database at `index` whose deadlines have passed. A task whose end the database refuses is set
    /// aside. Returns the tasks that are left for another time. Changes the order of `ids`.
    pub async fn deadlines(&self, index: DatabaseIndex, ids: &mut [TaskId]) -> Left {
        let database = &self.databases[index];
        let end = |part: &[TaskId]| self.apply(database, part.iter().map(|id| (*id, AttemptEvent::Deadline)).collect());
        let ended = |answers: &Vec<(TaskId, Reported)>| finished(answers);
        let (_, tried) = database.suspects.try_each(StoreOp::TaskStanding, ids, |id| *id, end, ended).await;
        let mut open = Vec::new();
        for Refused { item: id, error } in tried.refused {
            match database.sql.task_standing(&[*id]).await.as_deref().map(<[_]>::first) {
                Ok(Some(row)) => {
                    if database.set_attempt_aside(Kind::Deadline, *id, row.attempt, &error).await == Aside::Open {
                        open.push((vec![*id], error));
                    }
                }
                Err(again) if !again.blames_row_after(&error) => open.push((vec![*id], error)),
                Ok(None) | Err(_) => database.set_aside(Kind::Deadline, vec![Refused { item: id, error }]).await,
            }
        }
        let passed = tried.answers.into_iter().flatten().filter(|(_, answer)| *answer == Reported::Passed);
        let left = tried.left.into_iter().map(|(part, error)| (part.to_vec(), error)).chain(open);
        let failed = left.reduce(|(ids, _), (more, error)| ([ids, more].concat(), error));
        Left { passed: passed.map(|(id, _)| id).collect(), failed }
    }

    /// Ends attempts of the database at `index` whose messages reach no consumer. An attempt whose end the database
    /// refuses is set aside. Returns the tasks that are left for another time. Changes the order of `events`.
    pub async fn undelivered(
        &self,
        index: DatabaseIndex,
        events: &mut [(TaskId, AttemptEvent)],
    ) -> Option<(Vec<TaskId>, Error)> {
        let database = &self.databases[index];
        let end = |part: &[(TaskId, AttemptEvent)]| self.apply_in_place(part.to_vec(), Patience::Short);
        let ended = |answers: &Vec<(TaskId, Reported)>| finished(answers);
        let (_, tried) = database.suspects.try_each(StoreOp::TaskFinish, events, |(id, _)| *id, end, ended).await;
        let mut left: Vec<(Vec<TaskId>, Error)> = Vec::new();
        for Refused { item: (id, event), error } in tried.refused {
            let Some(attempt) = event.attempt() else { continue };
            if database.set_attempt_aside(Kind::Report, *id, attempt, &error).await == Aside::Open {
                left.push((vec![*id], error));
            }
        }
        left.extend(tried.left.into_iter().map(|(part, error)| (part.iter().map(|(id, _)| *id).collect(), error)));
        left.into_iter().reduce(|(ids, _), (more, error)| ([ids, more].concat(), error))
    }

    /// Reads, decides and writes. Several events of one task are applied one after the other. An event that
    /// another write overtook is looked at again: a claim must not hide the success of an earlier attempt.
    async fn apply(
        &self,
        database: &NodeDatabase<S>,
        mut events: Vec<(TaskId, AttemptEvent)>,
    ) -> Result<Vec<(TaskId, Reported)>, Error> {
        let mut answers = Vec::new();
        let mut looks = 0;
        while !events.is_empty() {
            let mut round: BTreeMap<TaskId, AttemptEvent> = BTreeMap::new();
            let mut next = Vec::new();
            for (id, event) in events {
                match round.entry(id) {
                    std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(event)),
                    std::collections::btree_map::Entry::Occupied(_) => next.push((id, event)),
                }
            }
            let overtaken = self.apply_round(database, &round, &mut answers).await?;
            looks = if overtaken.is_empty() { 0 } else { looks + 1 };
            for (id, stale) in overtaken {
                match round.remove(&id) {
                    Some(AttemptEvent::Deadline) => answers.push((id, Reported::Passed)),
                    Some(event) if looks < LOOKS => next.insert(0, (id, event)),
                    _ => answers.push((id, stale)),
                }
            }
            events = next;
        }
        Ok(answers)
    }

    /// Applies one event per task and adds the answers. Returns the overtaken events with the state they
    /// saw.
    async fn apply_round(
        &self,
        database: &NodeDatabase<S>,
        round: &BTreeMap<TaskId, AttemptEvent>,
        answers: &mut Vec<(TaskId, Reported)>,
    ) -> Result<Vec<(TaskId, Reported)>, Error> {
        let mut standing = standing_of(database, round).await?;
        // An attempt that no row shows may have begun on a server that has taken the place of this one.
        let is_news = |(id, event): (&TaskId, &AttemptEvent)| event.attempt() > standing.get(id).map(|row| row.attempt);
        if round.iter().any(is_news) && database.sql.look_at_servers().await {
            standing = standing_of(database, round).await?;
        }
        // A report may arrive before this node has read the policy under which its task was claimed.
        if standing.values().any(|row| row.turned > self.books.load().revision()) {
            catch_up(&self.databases.home().sql, &self.books).await?;
        }
        let mut writes = Writes::default();
        for (id, event) in round {
            let answer = match standing.get(id) {
                Some(row) if let Some(untrusted) = self.distrust(row, event) => {
                    answers.push((*id, untrusted));
                    continue;
                }
                Some(row) if self.decide(row, event, &mut writes) => continue,
                Some(row) => Reported::Stale { state: row.state, attempt: row.attempt },
                None => Reported::Missing,
            };
            if !matches!(event, AttemptEvent::Deadline | AttemptEvent::Returned { .. }) {
                self.metrics.reports_stale.inc();
            }
            answers.push((*id, answer));
        }
        let written = self.write(database, &writes).await?;
        answers.extend(written.iter().map(|id| {
            let (stopping, finished) = (standing[id].stopping, writes.facts[id].outcome.is_some());
            (*id, Reported::Applied { stopping, finished })
        }));
        let overtaken = writes.facts.keys().filter(|id| !written.contains(id));
        Ok(overtaken
            .map(|id| (*id, Reported::Stale { state: standing[id].state, attempt: standing[id].attempt }))
            .collect())
    }

    /// Refuses a message that may not report on this task.
    fn distrust(&self, row: &StandingRow, event: &AttemptEvent) -> Option<Reported> {
        let Sender { place, voucher } = event.sender()?;
        let why = voucher.check(&row.queue, &self.books.load().get(&row.queue).policy).err()?;
        Some(Reported::Untrusted { place: *place, why })
    }

    /// Decides on an event. Returns whether there is something to write.
    fn decide(&self, row: &StandingRow, event: &AttemptEvent, writes: &mut Writes) -> bool {
        let queue = self.books.load().get(&row.queue);
        let task = TaskSnapshot {
            state: row.state,
            attempt: row.attempt,
            attempts_base: row.attempts_base,
            max_attempts: row.max_attempts,
            timeout_ms: row.timeout_ms,
            retry: row.retry,
            stopping: row.stopping,
            predates_reports: row.predates_reports,
            policy: &queue.policy,
        };
        let roll = dice::roll();
        let verdict = match event {
            AttemptEvent::Deadline => task.after_deadline(row.wake_at, row.now, roll),
            AttemptEvent::Rejected { attempt, .. } => task.after_rejection(*attempt, row.now, roll),
            AttemptEvent::Reported { attempt, body, .. } => task.after_report(*attempt, body, row.now, roll),
            AttemptEvent::Returned { attempt, rule, reason, .. } => task.after_return(*attempt, *rule, *reason),
        };
        let traced = self.traced(row, event);
        writes.add(row, event, verdict, &queue, traced)
    }
}

/// Reads where the tasks of `round` stand.
async fn standing_of<S: Statements>(
    database: &NodeDatabase<S>,
    round: &BTreeMap<TaskId, AttemptEvent>,
) -> Result<HashMap<TaskId, StandingRow>, Error> {
    let ids: Vec<TaskId> = round.keys().copied().collect();
    Ok(database.sql.task_standing(&ids).await?.into_iter().map(|row| (row.id, row)).collect())
}
