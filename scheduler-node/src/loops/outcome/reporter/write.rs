//! The writes that follow from a batch of events, and their way into the database.

use std::{collections::HashMap, sync::Arc};

use common::{
    ids::TaskId,
    queue::{Queue, Unroutable},
    task::{
        TaskState,
        verdict::{FAILED_FROM, FailureReason, SUCCEEDED_FROM, TIMED_OUT_FROM, Verdict, keep_ms},
    },
};

use super::{AttemptEvent, Reporter, trace::Traced};
use crate::{
    store::{
        Error, Statements,
        settle::{Extend, Finish, Report, Retry, StandingRow},
    },
    traces,
    working_set::{database::NodeDatabase, set_aside::Kind},
};

/// The longest error text that is kept.
const ERROR_CHARS: usize = 2_000;

/// The writes that follow from a batch of events.
#[derive(Debug, Default)]
pub(super) struct Writes {
    finish: Vec<Finish>,
    retry: Vec<Retry>,
    extend: Vec<Extend>,
    /// The facts to count once the writes are done.
    pub(super) facts: HashMap<TaskId, Fact>,
}

#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub(super) queue: Arc<Queue>,
    pub(super) outcome: Option<TaskState>,
    pub(super) failed: Option<FailureReason>,
    pub(super) traced: Option<Traced>,
}

impl Fact {
    /// Whether a task of a queue with gates is no longer out, which makes room for another.
    fn makes_room(&self) -> bool {
        self.queue.policy.is_gated() && (self.outcome.is_some() || self.failed.is_some())
    }
}

impl<S: Statements> Reporter<S> {
    /// Writes to the database. Returns the tasks that were written; another write overtook the others. If a statement
    /// fails, the whole batch comes again, and finds nothing to write where an earlier one succeeded. So each is
    /// counted before the next one.
    pub(super) async fn write(&self, database: &NodeDatabase<S>, writes: &Writes) -> Result<Vec<TaskId>, Error> {
        let mut written = Vec::new();
        if !writes.finish.is_empty() {
            let finished = database.sql.task_finish(&writes.finish).await?;
            self.count(database, writes, &finished.ids);
            self.releaser.succeeded(database, &finished.succeeded).await;
            written.extend(finished.ids);
        }
        if !writes.retry.is_empty() {
            let retried = database.sql.task_retry(&writes.retry).await?;
            self.count(database, writes, &retried);
            self.releaser.nudger.written_all(
                writes.retry.iter().filter(|retry| retried.contains(&retry.id)).map(|retry| (retry.id, retry.retry_at)),
            );
            written.extend(retried);
        }
        if !writes.extend.is_empty() {
            let extended = database.sql.task_extend(&writes.extend).await?;
            self.count(database, writes, &extended);
            written.extend(extended);
        }
        Ok(written)
    }

    /// Counts what a statement has written, and tells the owners of the queues with room for other tasks.
    fn count(&self, database: &NodeDatabase<S>, writes: &Writes, written: &[TaskId]) {
        let facts = written.iter().map(|id| (*id, &writes.facts[id]));
        let ended = facts.clone().filter(|(_, fact)| fact.makes_room());
        self.releaser.nudger.room_in(ended.map(|(id, fact)| (id, &fact.queue.name)));
        for (id, fact) in facts {
            self.count_one(database, id, fact);
        }
    }

    fn count_one(&self, database: &NodeDatabase<S>, id: TaskId, fact: &Fact) {
        let queue = &fact.queue.name;
        if let Some(reason) = fact.failed {
            self.metrics.failed(queue, reason);
        }
        if fact.failed == Some(FailureReason::Unroutable) {
            database.set_aside.counted(Kind::Unroutable);
        }
        if let Some(outcome) = fact.outcome {
            self.metrics.finished(queue, outcome.text(), 1);
        }
        if let Some(traced) = fact.traced {
            self.trace(traced, queue, fact.outcome, fact.failed);
        }
        let (trace_id, span_id) = traces::ids(fact.traced.map(|traced| traced.hop.context));
        tracing::debug!(task = %id, %queue, outcome = ?fact.outcome, failed = ?fact.failed, trace_id, span_id, "task settled");
    }
}

impl Writes {
    /// Adds the writes of a verdict. Returns whether there is something to write.
    pub(super) fn add(
        &mut self,
        row: &StandingRow,
        event: &AttemptEvent,
        verdict: Verdict,
        queue: &Arc<Queue>,
        traced: Option<Traced>,
    ) -> bool {
        let at_deadline = matches!(event, AttemptEvent::Deadline);
        let (outcome, failed) = match verdict {
            Verdict::Ignore => return false,
            Verdict::Archive { state, reason } => {
                self.finish.push(Finish {
                    id: row.id,
                    attempt: row.attempt,
                    final_state: state,
                    was: match event {
                        AttemptEvent::Deadline => TIMED_OUT_FROM,
                        _ if state == TaskState::Succeeded => SUCCEEDED_FROM,
                        _ => FAILED_FROM,
                    },
                    at_deadline,
                    keep_ms: keep_ms(state, &queue.policy),
                    report: report_of(event),
                    entry: reason.map(|reason| entry(row, event, reason)),
                });
                (Some(state), reason)
            }
            Verdict::RetryAt { at, reason } => {
                let entry = entry(row, event, reason);
                let lower = queue.policy.retry_priority_drop;
                self.retry.push(Retry { id: row.id, attempt: row.attempt, retry_at: at, entry, at_deadline, lower });
                (None, Some(reason))
            }
            Verdict::Extend { timeout_ms, progress, worker } => {
                self.extend.push(Extend { id: row.id, attempt: row.attempt, timeout_ms, progress, worker });
                (None, None)
            }
        };
        self.facts.insert(row.id, Fact { queue: Arc::clone(queue), outcome, failed, traced });
        true
    }
}

/// The part of a report that is kept with the finished task.
fn report_of(event: &AttemptEvent) -> Report {
    match event {
        AttemptEvent::Reported { body, .. } => Report {
            result: body.result.as_ref().map(|result| result.get().to_owned()),
            status_code: body.status_code,
            status_msg: body.status_msg.clone(),
            progress: body.progress,
            worker: body.worker.clone(),
        },
        // A dropped task has no failed attempt that could hold the reason.
        AttemptEvent::Returned { rule: Unroutable::Drop, why, .. } => {
            Report { status_msg: Some(storable(&format!("dropped: {why}"))), ..Report::default() }
        }
        AttemptEvent::Returned { reason: FailureReason::Discarded, why, .. } => {
            Report { status_msg: Some(storable(why)), ..Report::default() }
        }
        AttemptEvent::Deadline | AttemptEvent::Rejected { .. } | AttemptEvent::Returned { .. } => Report::default(),
    }
}

/// A failed attempt, as the task's history keeps it.
fn entry(row: &StandingRow, event: &AttemptEvent, reason: FailureReason) -> String {
    let (error, code) = match event {
        AttemptEvent::Deadline => ("no report came before its deadline".to_owned(), None),
        AttemptEvent::Rejected { reason, .. } => (format!("the broker returned it: {reason}"), None),
        AttemptEvent::Reported { body, .. } => (body.status_msg.clone().unwrap_or_default(), body.status_code),
        AttemptEvent::Returned { why, .. } => (why.clone(), None),
    };
    serde_json::json!({
        "attempt": row.attempt,
        "claimed_at": row.claimed_at,
        "ended_at": row.now,
        "reason": reason.text(),
        "error": storable(&error),
        "status_code": code,
        "by": event.sender().and_then(|sender| sender.voucher.user.as_ref()),
    })
    .to_string()
}

/// Makes a text storable in PostgreSQL, and cuts it to what a person reads.
fn storable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(ERROR_CHARS).collect()
}
