//! The statements as the loops and the desk use them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::{
    ids::{Attempt, Epoch, QueueName, ShardId, TaskId},
    task::{
        BusinessKey, OnDuplicate, TaskState,
        bulk::{BulkAction, BulkCandidate, Target},
        oracle::Event,
        state::{CancelOutcome, cancel_outcome},
    },
    time::UnixMicros,
    wire::ValidChange,
};

use super::super::{changed, fixture, fixture::TestDatabase, new_task, node, pick};
use crate::store::{
    bulk::{BulkChange, FoundTask},
    change::{Cancelled, Guarded, Keep},
    claim::Claimed,
    put::{PutOutcome, Retention},
    rows::TaskRecord,
    settle::{Extend, Finish, Report, Retry},
    submit::Sending,
};

const MINUTE: Duration = Duration::from_secs(60);
/// A claim looks this far ahead. Every due and retry time of these tests is earlier.
const AHEAD: Duration = Duration::from_secs(86_400);
const DAY_MS: i64 = 86_400_000;

/// A failed attempt as the history stores it.
const ENTRY: &str = r#"{"attempt":1,"reason":"failed"}"#;

const OUT: &[TaskState] = &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running];
const MAY_SUCCEED: &[TaskState] =
    &[TaskState::Dispatching, TaskState::Delivered, TaskState::Running, TaskState::Scheduled, TaskState::Ready];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Statement {
    Claim,
    Pick,
    ClaimInClosedLane,
    ClaimUnderDeadEpoch,
    Rescue,
    TakeOver,
    Deliver,
    Extend,
    FinishByConfirm,
    FinishByReport,
    FinishAsDead,
    Retry,
    Cancel,
    CancelAlone,
    FinishAsStopped,
    CancelInSql,
    Run,
    ChangeDueTime,
    ChangeDueTimeAlone,
    ChangeContent,
    Revive,
    Expire,
    Release,
    SubmitAgain,
    Supersede,
    BulkCancel,
    BulkRun,
    BulkMove,
    BulkRevive,
}

impl Statement {
    pub(super) const ALL: [Self; 29] = [
        Self::Claim,
        Self::Pick,
        Self::ClaimInClosedLane,
        Self::ClaimUnderDeadEpoch,
        Self::Rescue,
        Self::TakeOver,
        Self::Deliver,
        Self::Extend,
        Self::FinishByConfirm,
        Self::FinishByReport,
        Self::FinishAsDead,
        Self::Retry,
        Self::Cancel,
        Self::CancelAlone,
        Self::FinishAsStopped,
        Self::CancelInSql,
        Self::Run,
        Self::ChangeDueTime,
        Self::ChangeDueTimeAlone,
        Self::ChangeContent,
        Self::Revive,
        Self::Expire,
        Self::Release,
        Self::SubmitAgain,
        Self::Supersede,
        Self::BulkCancel,
        Self::BulkRun,
        Self::BulkMove,
        Self::BulkRevive,
    ];

    /// The event that the statement writes. `None`: the statement never changes a state.
    pub(super) const fn event(self) -> Option<Event> {
        Some(match self {
            Self::Claim | Self::Pick => Event::Claim,
            Self::ClaimInClosedLane => Event::Hold,
            Self::Rescue | Self::TakeOver => Event::Rescue,
            Self::Deliver => Event::Deliver,
            Self::Extend => Event::Start,
            Self::FinishByConfirm | Self::FinishByReport => Event::Succeed,
            Self::FinishAsDead => Event::Bury,
            Self::Retry => Event::Retry,
            Self::Cancel | Self::CancelAlone | Self::CancelInSql | Self::BulkCancel => Event::Cancel,
            Self::FinishAsStopped => Event::Stop,
            Self::Supersede => Event::Supersede,
            Self::Run | Self::ChangeDueTime | Self::ChangeDueTimeAlone | Self::BulkRun | Self::BulkMove => Event::Move,
            Self::Revive | Self::BulkRevive => Event::Revive,
            Self::Expire => Event::Expire,
            Self::Release => Event::Unblock,
            Self::ClaimUnderDeadEpoch | Self::ChangeContent | Self::SubmitAgain => return None,
        })
    }

    /// Whether the statement is meant for `state`. Where several statements share an event, each has its own
    /// states; else the event alone decides.
    pub(super) fn is_meant_for(self, state: TaskState) -> bool {
        match self {
            Self::Claim => state == TaskState::Scheduled,
            Self::Pick => state == TaskState::Ready,
            Self::FinishByConfirm => state == TaskState::Dispatching,
            _ => true,
        }
    }

    /// Whether the statement names one attempt and applies to no other. No statement ever names attempt
    /// 0, which no consumer has seen.
    pub(super) const fn names_an_attempt(self) -> bool {
        use Statement as S;
        matches!(
            self,
            S::Deliver
                | S::Extend
                | S::FinishByConfirm
                | S::FinishByReport
                | S::FinishAsDead
                | S::FinishAsStopped
                | S::Retry
        )
    }
}

/// A statement's answer about its own effect.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// `None`: the statement does not report this.
    pub(super) done: Option<bool>,
    pub(super) handed_out: Option<i32>,
    pub(super) promised: Option<CancelOutcome>,
}

impl Answer {
    fn of(done: bool) -> Self {
        Self { done: Some(done), ..Self::default() }
    }

    fn of_claim(claimed: &Claimed) -> Self {
        let handed_out = claimed.deliveries.first().map(|delivery| delivery.attempt.number());
        Self { done: Some(handed_out.is_some()), handed_out, ..Self::default() }
    }

    fn of_change(answer: &Guarded<TaskRecord>) -> Self {
        Self::of(matches!(answer, Guarded::Done(_)))
    }

    fn of_cancel(answer: &Guarded<Cancelled>) -> Self {
        let promised = match answer {
            Guarded::Done(cancelled) => cancel_outcome(TaskState::Cancelled, cancelled.attempt).ok(),
            Guarded::Refused(task) => cancel_outcome(task.state, task.attempt).ok(),
            Guarded::Missing => None,
        };
        Self { done: Some(matches!(answer, Guarded::Done(_))), promised, ..Self::default() }
    }
}

/// One task, alone in its queue, and the owner of its shard.
pub(super) struct Subject<'a> {
    pub(super) test: &'a TestDatabase,
    pub(super) id: TaskId,
    queue: QueueName,
    fences: BTreeMap<ShardId, Epoch>,
    now: UnixMicros,
}

impl<'a> Subject<'a> {
    /// Submits a task and gives its owner the fence of `shard`.
    pub(super) async fn new(test: &'a TestDatabase, shard: ShardId) -> Self {
        let id = fixture::fresh_id_of(shard);
        let fences = test.database.shard_acquire(&[shard], &node("first")).await.unwrap().into_iter().collect();
        let now = fixture::now(&test.pool).await;
        let subject = Self { test, id, queue: QueueName::new(format!("q-{id}")), fences, now };
        subject.submit(Sending::First).await;
        subject
    }

    pub(super) async fn put(&mut self, statement: Statement, named: i32) -> Answer {
        use Statement as S;
        let (database, id, ids, fences) = (&self.test.database, self.id, [self.id], &self.fences);
        let attempt = Attempt::new(named);
        match statement {
            S::Claim => {
                Answer::of_claim(&database.task_claim(&ids, fences, AHEAD, &BTreeSet::new(), i64::MAX).await.unwrap())
            }
            S::Pick => {
                // A lane that closed may have made it `ready` long before its due time, when no pick takes it.
                let due = sqlx::query("UPDATE duetime.task SET due_at = now() WHERE id = $1").bind(id.uuid());
                due.execute(&self.test.pool).await.unwrap();
                Answer::of_claim(&pick(database, &self.queue, fences, 10).await)
            }
            S::ClaimInClosedLane => {
                let closed = BTreeSet::from([self.queue.clone()]);
                let claimed = database.task_claim(&ids, fences, AHEAD, &closed, i64::MAX).await.unwrap();
                assert!(claimed.deliveries.is_empty(), "a closed lane hands nothing out");
                Answer::of(!claimed.held_back.is_empty())
            }
            S::ClaimUnderDeadEpoch => self.claim_under_dead_epoch().await,
            S::Rescue => Answer::of_claim(&database.task_rescue(&ids, fences).await.unwrap()),
            S::TakeOver => self.take_over().await,
            S::Deliver => {
                database.task_deliver(&[crate::store::tests::deliver(id, attempt, 60_000)]).await.unwrap();
                Answer::default()
            }
            S::Extend => {
                let extend = Extend { id, attempt, timeout_ms: 60_000, progress: None, worker: None };
                Answer::of(!database.task_extend(&[extend]).await.unwrap().is_empty())
            }
            S::FinishByConfirm => self.finish(attempt, TaskState::Succeeded, &[TaskState::Dispatching]).await,
            S::FinishByReport => self.finish(attempt, TaskState::Succeeded, MAY_SUCCEED).await,
            S::FinishAsDead => self.finish(attempt, TaskState::Dead, OUT).await,
            S::FinishAsStopped => self.finish(attempt, TaskState::Cancelled, OUT).await,
            S::Retry => {
                let retry = Retry {
                    id,
                    attempt,
                    retry_at: self.now.plus(MINUTE),
                    entry: ENTRY.to_owned(),
                    at_deadline: false,
                    lower: false,
                };
                Answer::of(!database.task_retry(&[retry]).await.unwrap().is_empty())
            }
            S::Cancel => Answer::of_cancel(&database.task_cancel(id, &keep()).await.unwrap()),
            S::CancelAlone => {
                let cancelled = database.task_cancel_once(id, &keep()).await.unwrap();
                let promised =
                    cancelled.as_ref().and_then(|one| cancel_outcome(TaskState::Cancelled, one.attempt).ok());
                Answer { done: Some(cancelled.is_some()), promised, ..Answer::default() }
            }
            S::CancelInSql => self.cancel_in_sql().await,
            S::Run => Answer::of_change(&database.task_run(id).await.unwrap()),
            S::ChangeDueTime => {
                let change = ValidChange { due_at: Some(self.now.plus(MINUTE)), ..ValidChange::default() };
                Answer::of_change(&database.task_change(id, &change).await.unwrap())
            }
            S::ChangeDueTimeAlone => {
                let change = ValidChange { due_at: Some(self.now.plus(MINUTE)), ..ValidChange::default() };
                Answer::of(database.task_change_once(id, &change).await.unwrap().is_some())
            }
            S::ChangeContent => {
                let change = ValidChange { payload: Some(b"new".to_vec()), ..ValidChange::default() };
                database.task_change(id, &change).await.unwrap();
                Answer::default()
            }
            S::Revive => Answer::of_change(&database.task_revive(id).await.unwrap()),
            S::Expire => self.expire().await,
            S::Release => Answer::of(!database.task_release(&ids, &[]).await.unwrap().released.is_empty()),
            S::SubmitAgain => {
                self.submit(Sending::Again).await;
                Answer::default()
            }
            S::Supersede => self.supersede().await,
            S::BulkCancel => self.act(BulkAction::Cancel).await,
            S::BulkRun => self.act(BulkAction::Run).await,
            S::BulkMove => self.act(BulkAction::Move(Target::By { shift_ms: 60_000 })).await,
            S::BulkRevive => self.act(BulkAction::Retry).await,
        }
    }

    /// Applies a bulk action to this task. The state and due time passed in are
    /// arbitrary: the statement alone decides.
    async fn act(&self, act: BulkAction) -> Answer {
        let day = sqlx::query_scalar("SELECT drop_on FROM duetime.archive WHERE id = $1").bind(self.id.uuid());
        let drop_on = day.fetch_optional(&self.test.pool).await.unwrap();
        let (state, due_at) = (TaskState::Scheduled, self.now);
        let seen = BulkCandidate { id: self.id, state, due_at, expires_at: None, key_taken: false };
        let done = self.test.database.bulk_act(act, &[FoundTask { seen, drop_on, bytes: 0 }], &keep()).await.unwrap();
        let promised = done.first().and_then(|done| match done {
            BulkChange::Cancelled { attempt, .. } => cancel_outcome(TaskState::Cancelled, *attempt).ok(),
            BulkChange::Woken { .. } => None,
        });
        Answer { done: Some(!done.is_empty()), promised, ..Answer::default() }
    }

    /// Cancels in SQL. A refusal is an exception. A repeated call repeats its answer, so the answer does
    /// not say whether this call did it.
    async fn cancel_in_sql(&self) -> Answer {
        let cancel = sqlx::query_scalar::<_, String>("SELECT duetime.cancel($1)").bind(self.id.uuid());
        let promised = match cancel.fetch_one(&self.test.pool).await.as_deref() {
            Ok("cancelled") => Some(CancelOutcome::Cancelled),
            Ok("no_further_attempts") => Some(CancelOutcome::NoFurtherAttempts),
            Ok(other) => panic!("{other} is no outcome"),
            Err(_) => None,
        };
        Answer { promised, ..Answer::default() }
    }

    /// Makes the task wait, like one whose dependencies have all succeeded.
    pub(super) async fn wait(&self) {
        let waiting = sqlx::query("UPDATE duetime.task SET state = 'waiting' WHERE id = $1").bind(self.id.uuid());
        assert_eq!(waiting.execute(&self.test.pool).await.unwrap().rows_affected(), 1);
    }

    async fn submit(&self, sending: Sending) {
        let mut task = new_task(self.id);
        task.queue = self.queue.clone();
        self.test.database.task_submit(&[task], sending).await.unwrap();
    }

    /// Submits a newer version of the task. The task has its key for this statement only, and the newer one goes
    /// again: nothing else may meet the key.
    async fn supersede(&self) -> Answer {
        let budget = sqlx::query_scalar::<_, Option<i32>>("SELECT max_attempts FROM duetime.task WHERE id = $1");
        let budget = budget.bind(self.id.uuid()).fetch_optional(&self.test.pool).await.unwrap().flatten();
        self.set_key(Some("k"), budget).await;
        let newer = changed(new_task(fixture::fresh_id_of(self.id.shard())), |task| {
            task.queue = self.queue.clone();
            task.keyed = Some(BusinessKey { key: "k".into(), version: 1, on_duplicate: OnDuplicate::Version });
        });
        let id = newer.id;
        let hold = Retention { window_ms: DAY_MS, keep_ms: DAY_MS };
        let put = self.test.database.task_put(&[newer], &[hold]).await.unwrap().remove(0);
        assert_eq!(put.outcome, PutOutcome::Created, "no other task has the key");
        let gone = sqlx::query("DELETE FROM duetime.task WHERE id = $1").bind(id.uuid());
        assert_eq!(gone.execute(&self.test.pool).await.unwrap().rows_affected(), 1);
        // The newer version leaves an attempt in flight without a further one. The next statements are to have some.
        self.set_key(None, budget).await;
        Answer::of(put.superseded == 1)
    }

    async fn set_key(&self, key: Option<&str>, max_attempts: Option<i32>) {
        let set = sqlx::query("UPDATE duetime.task SET key = $2, max_attempts = $3 WHERE id = $1");
        set.bind(self.id.uuid()).bind(key).bind(max_attempts).execute(&self.test.pool).await.unwrap();
    }

    async fn finish(&self, attempt: Attempt, final_state: TaskState, was: &'static [TaskState]) -> Answer {
        let report = Report::default();
        let finish =
            Finish { id: self.id, attempt, final_state, was, keep_ms: DAY_MS, report, entry: None, at_deadline: false };
        Answer::of(!self.test.database.task_finish(&[finish]).await.unwrap().ids.is_empty())
    }

    /// Runs every statement that needs the fence for an owner that has lost the shard without knowing it.
    async fn claim_under_dead_epoch(&self) -> Answer {
        let before = |epoch: &Epoch| Epoch::from_store(epoch.number() - 1);
        let dead = self.fences.iter().map(|(shard, epoch)| (*shard, before(epoch))).collect();
        let database = &self.test.database;
        let claims = [
            database.task_claim(&[self.id], &dead, AHEAD, &BTreeSet::new(), i64::MAX).await.unwrap(),
            pick(database, &self.queue, &dead, 10).await,
            database.task_rescue(&[self.id], &dead).await.unwrap(),
        ];
        Answer::of(claims.iter().any(|claimed| !claimed.refused || !claimed.deliveries.is_empty()))
    }

    async fn take_over(&mut self) -> Answer {
        let shard = self.id.shard();
        self.fences = self.test.database.shard_acquire(&[shard], &node("next")).await.unwrap().into_iter().collect();
        let mut left = self.test.database.task_takeover(&self.fences, 1_000).await.unwrap();
        left.retain(|id| *id == self.id);
        Answer::of_claim(&self.test.database.task_rescue(&left, &self.fences).await.unwrap())
    }

    /// Expires the task. Its last moment to start has passed for this statement only.
    async fn expire(&self) -> Answer {
        self.set_expiry(Some(self.now.minus(MINUTE))).await;
        let expired = self.test.database.task_expire(&[self.id.shard()], None, 1_000, &keep(), &[]).await.unwrap();
        self.set_expiry(None).await;
        Answer::of(expired.iter().any(|task| task.id == self.id))
    }

    async fn set_expiry(&self, expires_at: Option<UnixMicros>) {
        sqlx::query("UPDATE duetime.task SET expires_at = $2 WHERE id = $1")
            .bind(self.id.uuid())
            .bind(expires_at.map(UnixMicros::to_utc))
            .execute(&self.test.pool)
            .await
            .unwrap();
    }
}

fn keep() -> Keep {
    Keep { default_ms: DAY_MS, others: std::sync::Arc::default() }
}
