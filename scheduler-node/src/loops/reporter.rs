//! Writes what consumers say of their tasks: results, heartbeats, rejections; and what their silence says when a deadline passes.
//!
//! Gather where the tasks stand, decide in `common::task::verdict`, write by compare-and-set, then ack. Results and rejections come to any
//! node, whoever owns the shard. If this loop stops, they wait in the broker.

mod trace;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{Attempt, TaskId},
    queue::{Queue, Settle},
    task::{
        TaskState, TraceContext,
        verdict::{FailureReason, Standing, Verdict},
    },
    wire::{
        amqp::{HEADER_TRACEPARENT, MessageId, NotAMessageId},
        report::{ReportStatus, ResultBody},
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::trace::Traced;
use super::{
    queue_reader::Books,
    releaser::Releaser,
    site::{Site, Sites},
};
use crate::{
    broker::{Incoming, Source},
    metrics::Metrics,
    store::{
        Error,
        settle::{Extend, Finish, Report, Retry, StandingRow},
    },
    traces::{self, Traces},
};

/// Messages of one pass: one read and at most three writes a database for all of them.
const BATCH: usize = 500;

/// Messages that wait for one database: more than the broker hands out unacked, over both of its queues.
const WAITING: usize = 1_024;

/// The longest text of an error that is kept.
const ERROR_CHARS: usize = 2_000;

/// Between two tries to write while the database is away. The broker keeps what is not acked.
const PAUSE: Duration = Duration::from_millis(500);

/// A happening that was overtaken between the look and the write is looked at again so often.
const LOOKS: usize = 5;

const STOPPING: Reported = Reported::Applied { stopping: true };

const SILENT: &[TaskState] = &[TaskState::Delivered, TaskState::Running];
const OUT: &[TaskState] = &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running];
const MAY_SUCCEED: &[TaskState] =
    &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running, TaskState::Scheduled, TaskState::Ready];

/// Something that happened to a task after its claim.
#[derive(Clone, Debug)]
pub enum Happening {
    Deadline,
    /// Why the broker gave it up.
    Rejected {
        attempt: Attempt,
        reason: String,
    },
    Reported {
        attempt: Attempt,
        body: Box<ResultBody>,
    },
}

/// A message that was read: whom it is about, what it says, and its ack.
type Told = (TaskId, Happening, Incoming);

/// What became of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    Applied {
        /// Its consumer is to stop.
        stopping: bool,
    },
    /// It is about an attempt that is over, or its task does not listen any more.
    Stale { state: TaskState, attempt: Attempt },
    /// No such task is open.
    Missing,
}

#[derive(Clone, Debug)]
pub struct Reporter {
    pub sites: Sites,
    pub books: Books,
    pub releaser: Releaser,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
}

/// The writes that a batch of happenings comes to.
#[derive(Debug, Default)]
struct Writes {
    finish: Vec<Finish>,
    retry: Vec<Retry>,
    extend: Vec<Extend>,
    /// Counted once written.
    facts: HashMap<TaskId, Fact>,
}

#[derive(Clone, Debug)]
struct Fact {
    queue: Arc<Queue>,
    outcome: Option<TaskState>,
    failed: Option<FailureReason>,
    traced: Option<Traced>,
}

impl Fact {
    /// Something of a queue with gates is out no longer.
    fn makes_room(&self) -> bool {
        self.queue.policy.is_gated() && (self.outcome.is_some() || self.failed.is_some())
    }
}

impl Reporter {
    /// One report, by hand or over HTTP.
    pub async fn report(&self, id: TaskId, attempt: Attempt, body: ResultBody) -> Result<Reported, Error> {
        let Some((_, site)) = self.sites.of(id.shard()) else { return Ok(Reported::Missing) };
        let happening = Happening::Reported { attempt, body: Box::new(body) };
        let answers = self.apply(site, vec![(id, happening)]).await?;
        Ok(answers.into_iter().next().map_or(Reported::Missing, |(_, answer)| answer))
    }

    /// Tasks of the site at `index` whose deadlines have come.
    pub async fn deadlines(&self, index: usize, ids: &[TaskId]) -> Result<(), Error> {
        let happenings = ids.iter().map(|id| (*id, Happening::Deadline)).collect();
        self.apply(&self.sites.all()[index], happenings).await.map(|_| ())
    }

    /// What comes back from the broker, until told to stop. Each database has its own line, so that one that is away
    /// holds up nobody else's reports.
    pub async fn run(self, incoming: mpsc::Receiver<Incoming>, stop: CancellationToken) {
        let (lines, ends): (Vec<_>, Vec<_>) = self.sites.all().iter().map(|_| mpsc::channel(WAITING)).unzip();
        let applying = ends.into_iter().enumerate().map(|(index, end)| self.apply_all(index, end));
        tokio::select! {
            _ = async { tokio::join!(self.read_all(incoming, lines), futures::future::join_all(applying)) } => {}
            () = stop.cancelled() => {}
        }
    }

    /// Reads every message and puts it in its line. What cannot be read is set aside, never requeued.
    async fn read_all(&self, mut incoming: mpsc::Receiver<Incoming>, lines: Vec<mpsc::Sender<Told>>) {
        while let Some(message) = incoming.recv().await {
            match self.read(&message) {
                // The lines end after this, and the broker hands out fewer unacked messages than one of them holds.
                Ok((index, id, happening)) => drop(lines[index].send((id, happening, message)).await),
                Err(reason) => self.set_aside(message, reason).await,
            }
        }
    }

    /// Applies and acks what one database's tasks are told, a batch at a time.
    async fn apply_all(&self, index: usize, mut line: mpsc::Receiver<Told>) {
        let mut batch = Vec::with_capacity(BATCH);
        while line.recv_many(&mut batch, BATCH).await > 0 {
            self.apply_and_ack(index, std::mem::take(&mut batch)).await;
        }
    }

    fn read(&self, message: &Incoming) -> Result<(usize, TaskId, Happening), String> {
        let (id, happening) = match message.source {
            Source::Results => {
                let id = message.correlation_id.as_deref().ok_or("it has no correlation_id")?;
                let id: TaskId = id.parse().map_err(|_| format!("its correlation_id `{id}` is not a task id"))?;
                let attempt = message.attempt_header.ok_or("it has no header duetime-attempt")?;
                let attempt = i32::try_from(attempt).map_err(|_| format!("attempt {attempt} does not exist"))?;
                let text = std::str::from_utf8(&message.body).map_err(|_| "its body is not UTF-8")?;
                let mut body = ResultBody::parse(text).map_err(|problem| problem.to_string())?;
                body.trace = message.headers[HEADER_TRACEPARENT].as_str().and_then(TraceContext::parse);
                (id, Happening::Reported { attempt: Attempt::new(attempt), body: Box::new(body) })
            }
            Source::Rejected => {
                let name = message.message_id.as_deref().ok_or("it has no message_id")?;
                let MessageId { id, attempt } = name.parse().map_err(|error: NotAMessageId| error.to_string())?;
                (
                    id,
                    Happening::Rejected {
                        attempt,
                        reason: message.reason.clone().unwrap_or_else(|| "rejected".to_owned()),
                    },
                )
            }
        };
        let (index, _) = self.sites.of(id.shard()).ok_or_else(|| format!("shard {} does not exist", id.shard()))?;
        Ok((index, id, happening))
    }

    async fn set_aside(&self, message: Incoming, reason: String) {
        let source = match message.source {
            Source::Results => "results",
            Source::Rejected => "rejected",
        };
        let home = &self.sites.all()[0].database;
        tracing::warn!(source, reason, "a message could not be read; it is kept in the quarantine table");
        while let Err(error) = home
            .quarantine_add(
                source,
                reason.clone(),
                message.message_id.clone(),
                message.headers.clone(),
                message.body.clone(),
            )
            .await
        {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "the quarantine could not be written; trying again"
            );
            tokio::time::sleep(PAUSE).await;
        }
        self.metrics.quarantined.with_label_values(&[source]).inc();
        message.ack.ack().await;
    }

    async fn apply_and_ack(&self, index: usize, messages: Vec<Told>) {
        let site = &self.sites.all()[index];
        let mut told = false;
        let answers = loop {
            let happenings = messages.iter().map(|(id, happening, _)| (*id, happening.clone())).collect();
            match self.apply(site, happenings).await {
                Ok(answers) => break answers,
                Err(error) => {
                    if !told {
                        told = true;
                        tracing::warn!(database = %site.name(), messages = messages.len(), error = &error as &dyn std::error::Error, "what consumers reported could not be written; trying until it is");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        let stopping: HashSet<TaskId> =
            answers.into_iter().filter(|(_, answer)| *answer == STOPPING).map(|(id, _)| id).collect();
        for (id, happening, message) in messages {
            if stopping.contains(&id)
                && let Happening::Reported { attempt, body } = &happening
                && body.status == ReportStatus::Running
                && let Some(reply_to) = &message.reply_to
            {
                let order = serde_json::json!({ "id": id, "attempt": attempt, "stopping": true });
                message.ack.reply(reply_to, &id.to_string(), order.to_string().as_bytes());
            }
            message.ack.ack().await;
        }
    }

    /// Gather, decide, write. Several happenings of one task are taken one after the other, and what was overtaken between the
    /// look and the write is looked at again: the success of an earlier attempt must not be lost to a claim.
    async fn apply(
        &self,
        site: &Site,
        mut happenings: Vec<(TaskId, Happening)>,
    ) -> Result<Vec<(TaskId, Reported)>, Error> {
        let mut answers = Vec::new();
        let mut looks = 0;
        while !happenings.is_empty() {
            let mut round: BTreeMap<TaskId, Happening> = BTreeMap::new();
            let mut next = Vec::new();
            for (id, happening) in happenings {
                match round.entry(id) {
                    std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(happening)),
                    std::collections::btree_map::Entry::Occupied(_) => next.push((id, happening)),
                }
            }
            let overtaken = self.apply_round(site, &round, &mut answers).await?;
            looks = if overtaken.is_empty() { 0 } else { looks + 1 };
            for (id, stale) in overtaken {
                match round.remove(&id) {
                    Some(happening) if looks < LOOKS => next.insert(0, (id, happening)),
                    _ => answers.push((id, stale)),
                }
            }
            happenings = next;
        }
        Ok(answers)
    }

    /// Adds the answers; returns those that were overtaken, and how they stood.
    async fn apply_round(
        &self,
        site: &Site,
        round: &BTreeMap<TaskId, Happening>,
        answers: &mut Vec<(TaskId, Reported)>,
    ) -> Result<Vec<(TaskId, Reported)>, Error> {
        let ids: Vec<TaskId> = round.keys().copied().collect();
        let standing: HashMap<TaskId, StandingRow> =
            site.database.task_standing(&ids).await?.into_iter().map(|row| (row.id, row)).collect();
        let mut writes = Writes::default();
        for (id, happening) in round {
            let answer = match standing.get(id) {
                Some(row) if self.decide(row, happening, &mut writes) => continue,
                Some(row) => Reported::Stale { state: row.state, attempt: row.attempt },
                None => Reported::Missing,
            };
            if !matches!(happening, Happening::Deadline) {
                self.metrics.reports_stale.inc();
            }
            answers.push((*id, answer));
        }
        let written = self.write(site, &writes).await?;
        answers.extend(written.iter().map(|id| (*id, Reported::Applied { stopping: standing[id].stopping })));
        let overtaken = writes.facts.keys().filter(|id| !written.contains(id));
        Ok(overtaken
            .map(|id| (*id, Reported::Stale { state: standing[id].state, attempt: standing[id].attempt }))
            .collect())
    }

    /// Whether there is something to write.
    fn decide(&self, row: &StandingRow, happening: &Happening, writes: &mut Writes) -> bool {
        let queue = self.books.load().get(&row.queue);
        let standing = Standing {
            state: row.state,
            attempt: row.attempt,
            attempts_base: row.attempts_base,
            max_attempts: row.max_attempts,
            timeout_ms: row.timeout_ms,
            retry: row.retry,
            stopping: row.stopping,
            policy: &queue.policy,
        };
        let dice: f64 = rand::random();
        let verdict = match happening {
            Happening::Deadline if row.wake_at > row.now => Verdict::Ignore,
            Happening::Deadline => standing.after_deadline(row.now, dice),
            // Who asked for confirms only wants no retries.
            Happening::Rejected { .. } if queue.policy.settle == Settle::Confirm => Verdict::Ignore,
            Happening::Rejected { attempt, .. } => standing.after_rejection(*attempt, row.now, dice),
            Happening::Reported { attempt, body } => standing.after_report(*attempt, body, row.now, dice),
        };
        let traced = self.traced(row, happening);
        writes.add(row, happening, verdict, &queue, traced)
    }

    async fn write(&self, site: &Site, writes: &Writes) -> Result<Vec<TaskId>, Error> {
        let mut written = Vec::new();
        if !writes.finish.is_empty() {
            let finished = site.database.task_finish(&writes.finish).await?;
            self.releaser.succeeded(site, &finished.succeeded).await;
            written.extend(finished.ids);
        }
        if !writes.retry.is_empty() {
            let retried = site.database.task_retry(&writes.retry).await?;
            self.releaser.nudger.written_all(
                writes.retry.iter().filter(|retry| retried.contains(&retry.id)).map(|retry| (retry.id, retry.retry_at)),
            );
            written.extend(retried);
        }
        if !writes.extend.is_empty() {
            written.extend(site.database.task_extend(&writes.extend).await?);
        }
        let ended = written.iter().map(|id| (*id, &writes.facts[id])).filter(|(_, fact)| fact.makes_room());
        self.releaser.nudger.room_in(ended.map(|(id, fact)| (id, &fact.queue.name)));
        for id in &written {
            self.count(*id, &writes.facts[id]);
        }
        Ok(written)
    }

    fn count(&self, id: TaskId, fact: &Fact) {
        let queue = &fact.queue.name;
        if let Some(reason) = fact.failed {
            self.metrics.failed(queue, reason);
        }
        if let Some(outcome) = fact.outcome {
            self.metrics.finished(queue, outcome.text(), 1);
        }
        self.trace(fact);
        let (trace_id, span_id) = traces::ids(fact.traced.map(|traced| traced.hop.context));
        tracing::debug!(task = %id, %queue, outcome = ?fact.outcome, failed = ?fact.failed, trace_id, span_id, "task settled");
    }
}

impl Writes {
    fn add(
        &mut self,
        row: &StandingRow,
        happening: &Happening,
        verdict: Verdict,
        queue: &Arc<Queue>,
        traced: Option<Traced>,
    ) -> bool {
        let at_deadline = matches!(happening, Happening::Deadline);
        let (outcome, failed) = match verdict {
            Verdict::Ignore | Verdict::Deliver { .. } => return false,
            Verdict::Archive { state, reason } => {
                self.finish.push(Finish {
                    id: row.id,
                    attempt: row.attempt,
                    final_state: state,
                    was: match happening {
                        Happening::Deadline => SILENT,
                        _ if state == TaskState::Succeeded => MAY_SUCCEED,
                        _ => OUT,
                    },
                    at_deadline,
                    keep_ms: if state == TaskState::Dead {
                        queue.policy.keep_dead_ms
                    } else {
                        queue.policy.keep_succeeded_ms
                    },
                    report: report_of(happening),
                    entry: reason.map(|reason| entry(row, happening, reason)),
                });
                (Some(state), reason)
            }
            Verdict::RetryAt { at, reason } => {
                let entry = entry(row, happening, reason);
                let lower = queue.policy.retry_priority_drop;
                self.retry.push(Retry { id: row.id, attempt: row.attempt, retry_at: at, entry, at_deadline, lower });
                (None, Some(reason))
            }
            Verdict::Extend { progress, worker, .. } => {
                let timeout_ms = row.timeout_ms.unwrap_or(queue.policy.timeout_ms);
                self.extend.push(Extend { id: row.id, attempt: row.attempt, timeout_ms, progress, worker });
                (None, None)
            }
        };
        self.facts.insert(row.id, Fact { queue: Arc::clone(queue), outcome, failed, traced });
        true
    }
}

/// What is kept of a report with the finished task.
fn report_of(happening: &Happening) -> Report {
    match happening {
        Happening::Reported { body, .. } => Report {
            result: body.result.as_ref().map(|result| result.get().to_owned()),
            status_code: body.status_code,
            status_msg: body.status_msg.clone(),
        },
        Happening::Deadline | Happening::Rejected { .. } => Report::default(),
    }
}

/// A failed attempt, as the task's history keeps it.
fn entry(row: &StandingRow, happening: &Happening, reason: FailureReason) -> String {
    let (error, code) = match happening {
        Happening::Deadline => ("nothing was heard of it until its deadline".to_owned(), None),
        Happening::Rejected { reason, .. } => (format!("the broker gave it back: {reason}"), None),
        Happening::Reported { body, .. } => (body.status_msg.clone().unwrap_or_default(), body.status_code),
    };
    let error: String = error.chars().filter(|c| *c != '\0').take(ERROR_CHARS).collect();
    serde_json::json!({
        "attempt": row.attempt,
        "claimed_at": row.claimed_at,
        "ended_at": row.now,
        "reason": reason.text(),
        "error": error,
        "status_code": code,
    })
    .to_string()
}
