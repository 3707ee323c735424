//! The simulation's table in memory answers as PostgreSQL does: the same statements, in random order, on both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{Attempt, Epoch, QueueName, ShardId, TaskId},
    task::TaskState,
    time::UnixMicros,
    wire::ValidChange,
};
use sqlx::Row as _;

use super::{changed, fixture, fixture::TestDatabase, new_task, node};
use crate::{
    simulation::{
        dice::Dice,
        lanes,
        row::Row,
        statement::{self, Statement},
        table::Table,
    },
    store::{
        change::{Guarded, Keep},
        claim::{Claimed, LOOK_AGAIN_AFTER, TAKEOVER_LOOK_BACK},
        lane::{LaneEnds, Pick},
        settle::{Deliver, Extend, Finish, Report, Retry},
        submit::Sending,
    },
};

/// All times are so far apart that neither clock nor duration of the test decides anything.
const HOUR: Duration = Duration::from_secs(3_600);

/// The difference of two times that are the same: both were read from the clock during one statement.
const ALIKE: Duration = Duration::from_secs(25);

/// A failed attempt in the form of a history.
const ENTRY: &str = r#"{"attempt":1}"#;

const SEQUENCES: u64 = 8;
const STEPS: usize = 70;

/// Both databases, and what the statements may name.
struct Both {
    test: TestDatabase,
    table: Table,
    dice: Dice,
    ids: Vec<TaskId>,
    ends: LaneEnds,
}

/// The attempts taken and whether each is a copy, the tasks held back, those passed over, and whether a fence was
/// refused.
type Summary = (BTreeSet<(TaskId, i32, bool)>, BTreeSet<TaskId>, BTreeSet<(TaskId, String)>, bool);

/// A claim's answer, as far as it is compared.
fn summary(claimed: &Claimed) -> Summary {
    (
        claimed.deliveries.iter().map(|one| (one.id, one.attempt.number(), one.redelivered)).collect(),
        claimed.held_back.iter().map(|held| held.id).collect(),
        claimed.passed.iter().map(|key| (key.id, key.state.to_string())).collect(),
        claimed.refused,
    )
}

fn sorted(mut ids: Vec<TaskId>) -> Vec<TaskId> {
    ids.sort();
    ids
}

impl Both {
    async fn new(seed: u64) -> Self {
        let (test, table) = (fixture::database().await, Table::default());
        let mut both = Self { test, table, dice: Dice::new(seed), ids: Vec::new(), ends: LaneEnds::default() };
        both.acquire(0).await;
        both.acquire(1).await;
        both
    }

    async fn now(&self) -> UnixMicros {
        fixture::now(&self.test.pool).await
    }

    async fn in_memory<T>(&mut self, statement: Statement<T>) -> T {
        let now = self.now().await;
        statement.alone(&mut self.table, now)
    }

    /// A time some hours before or after now.
    async fn hours(&self) -> UnixMicros {
        let (now, hours) = (self.now().await, u32::try_from(self.dice.between(1, 3)).unwrap());
        if self.dice.is_percent(60) { now.minus(HOUR * hours) } else { now.plus(HOUR * hours) }
    }

    async fn acquire(&mut self, shard: u16) {
        let shard = ShardId::new(shard);
        let taken = self.test.database.shard_acquire(&[shard], &node("a")).await.unwrap();
        assert_eq!(taken, [(shard, self.table.acquire(shard))]);
    }

    /// The epochs to present, some of which are old.
    fn presented(&self, ids: &[TaskId]) -> BTreeMap<ShardId, Epoch> {
        let shards: BTreeSet<ShardId> = ids.iter().map(|id| id.shard()).collect();
        let epoch = |shard| {
            let newest = self.table.fences[&shard].number();
            Epoch::from_store(newest - i64::from(self.dice.is_percent(15)))
        };
        shards.into_iter().map(|shard| (shard, epoch(shard))).collect()
    }

    fn some(&self) -> Vec<TaskId> {
        let some: BTreeSet<TaskId> = (0..self.dice.between(1, 4)).map(|_| self.dice.one_of(&self.ids)).collect();
        some.into_iter().collect()
    }

    /// The attempt of a task, or the one before.
    fn attempt(&self, id: TaskId) -> Attempt {
        let now = self.table.rows.get(&id).map_or(1, |row| row.attempt);
        Attempt::new(now - i32::from(self.dice.is_percent(15)))
    }

    async fn submit(&mut self) {
        let id = fixture::fresh_id_of(ShardId::new(u16::try_from(self.dice.between(0, 1)).unwrap()));
        let (due_at, queue) = (self.hours().await, QueueName::new(self.dice.one_of(&["a", "b"])));
        let mut row = Row::new(id, queue, due_at);
        row.priority = i16::try_from(self.dice.between(1, 3)).unwrap();
        row.partition_key = self.dice.one_of(&[None, Some("k"), Some("l")]).map(str::to_owned);
        row.expires_at = self.dice.is_percent(20).then(|| due_at.plus(HOUR / 2));
        let task = changed(new_task(id), |task| {
            (task.queue, task.due_at, task.due_now) = (row.queue.clone(), due_at, false);
            (task.priority, task.partition_key) = (row.priority, row.partition_key.clone());
            task.expires_at = row.expires_at;
        });
        self.test.database.task_submit(&[task], Sending::First).await.unwrap();
        self.table.rows.insert(id, row);
        self.ids.push(id);
    }

    async fn claim(&mut self) {
        let ids = self.some();
        let fences = self.presented(&ids);
        let ahead = self.dice.one_of(&[Duration::ZERO, HOUR + HOUR / 2]);
        let closed: BTreeSet<QueueName> =
            ["a", "b"].into_iter().filter(|_| self.dice.is_percent(60)).map(QueueName::new).collect();
        let real = self.test.database.task_claim(&ids, &fences, ahead, &closed, i64::MAX).await.unwrap();
        let simulated = self.in_memory(statement::claim(&ids, &fences, ahead, &closed)).await;
        assert_eq!(summary(&real), summary(&simulated));
    }

    async fn rescue(&mut self) {
        let ids = self.some();
        let fences = self.presented(&ids);
        let real = self.test.database.task_rescue(&ids, &fences).await.unwrap();
        let simulated = self.in_memory(statement::rescue(&ids, &fences)).await;
        assert_eq!(summary(&real), summary(&simulated));
    }

    async fn pick(&mut self) {
        let (queue, fences) = (QueueName::new(self.dice.one_of(&["a", "b"])), self.presented(&self.ids));
        let shards: Vec<ShardId> = fences.keys().copied().collect();
        let limit = self.dice.one_of(&[None, Some(2)]);
        let from = if self.dice.is_percent(50) { Some(self.hours().await) } else { None };
        let now = self.now().await;
        let simulated = lanes::oldest(&self.table.rows, &queue, from, now);
        let real = self.test.database.ready_oldest(&queue, from).await.unwrap();
        assert!(simulated == now || real == simulated, "the database's time is its own");
        let real = self.test.database.lane_read(&queue, &shards, 3, limit, from).await.unwrap();
        assert_eq!(real, lanes::read(&self.table.rows, &queue, &shards, 3, (limit, from)));
        let wanted = [self.dice.index(3), self.dice.index(3), self.dice.index(3), 0, 0];
        let (ordered, counted) = (self.dice.is_percent(60), limit.is_some());
        let after = self.ends.clone();
        let pick = Pick { after: &after, ordered, counted, from, ..Pick::of(&queue, &fences, wanted) };
        let (real, real_walks) = self.test.database.task_pick_open(&pick).await.unwrap();
        let (simulated, walks) = self.in_memory(lanes::pick(&pick, UnixMicros::LAST)).await;
        assert_eq!(summary(&real), summary(&simulated), "{pick:?}");
        assert_eq!(real_walks.ends, walks.ends, "{pick:?}");
        self.ends = walks.ends;
    }

    async fn deliver(&mut self) {
        let deliver = |id| super::deliver(id, self.attempt(id), self.timeout_ms());
        let tasks: Vec<Deliver> = self.some().into_iter().map(deliver).collect();
        self.test.database.task_deliver(&tasks).await.unwrap();
        self.in_memory(statement::deliver(&tasks)).await;
    }

    fn timeout_ms(&self) -> i64 {
        self.dice.one_of(&[-7_200_000, 7_200_000])
    }

    async fn finish(&mut self) {
        let finish = |id| Finish {
            id,
            attempt: self.attempt(id),
            final_state: self.dice.one_of(&[TaskState::Succeeded, TaskState::Dead]),
            was: if self.dice.is_percent(50) {
                &[TaskState::Dispatching]
            } else {
                &[TaskState::Delivered, TaskState::Running]
            },
            keep_ms: 86_400_000,
            report: Report::default(),
            at_deadline: self.dice.is_percent(50),
            entry: None,
        };
        let tasks: Vec<Finish> = self.some().into_iter().map(finish).collect();
        let real = self.test.database.task_finish(&tasks).await.unwrap();
        let simulated = self.in_memory(statement::finish(&tasks)).await;
        assert_eq!(sorted(real.ids), sorted(simulated.ids));
    }

    async fn retry(&mut self) {
        let retry_at = self.hours().await;
        let retry = |id| Retry {
            id,
            attempt: self.attempt(id),
            retry_at,
            entry: ENTRY.into(),
            at_deadline: self.dice.is_percent(50),
            lower: self.dice.is_percent(50),
        };
        let tasks: Vec<Retry> = self.some().into_iter().map(retry).collect();
        let real = self.test.database.task_retry(&tasks).await.unwrap();
        assert_eq!(sorted(real), sorted(self.in_memory(statement::retry(&tasks)).await));
    }

    async fn extend(&mut self) {
        let extend =
            |id| Extend { id, attempt: self.attempt(id), timeout_ms: self.timeout_ms(), progress: None, worker: None };
        let tasks: Vec<Extend> = self.some().into_iter().map(extend).collect();
        let real = self.test.database.task_extend(&tasks).await.unwrap();
        assert_eq!(sorted(real), sorted(self.in_memory(statement::extend(&tasks)).await));
    }

    fn keep() -> Keep {
        Keep { default_ms: 86_400_000, others: Arc::new([]) }
    }

    async fn cancel(&mut self) {
        let id = self.dice.one_of(&self.ids);
        let real = match self.test.database.task_cancel(id, &Self::keep()).await.unwrap() {
            Guarded::Done(cancelled) => Some(cancelled.attempt.number()),
            Guarded::Refused(_) | Guarded::Missing => None,
        };
        assert_eq!(real, self.in_memory(statement::cancel(id)).await);
    }

    async fn change(&mut self) {
        let (id, due_at) = (self.dice.one_of(&self.ids), self.now().await.plus(HOUR));
        let change = ValidChange {
            due_at: Some(due_at),
            payload: None,
            content_type: None,
            priority: None,
            headers: None,
            expires_at: None,
        };
        let real = matches!(self.test.database.task_change(id, &change).await.unwrap(), Guarded::Done(_));
        assert_eq!(real, self.in_memory(statement::change(id, due_at)).await);
    }

    async fn expire(&mut self) {
        let shards = [ShardId::new(0), ShardId::new(1)];
        let real = self.test.database.task_expire(&shards, None, 100, &Self::keep(), &[]).await.unwrap();
        let simulated = self.in_memory(statement::expire(&shards)).await;
        assert_eq!(sorted(real.into_iter().map(|task| task.id).collect()), sorted(simulated));
    }

    /// The reads: keys, what an owner before left, and standings.
    async fn read(&mut self) {
        let (now, shards) = (self.now().await, [ShardId::new(0), ShardId::new(1)]);
        let (from, until) = (now.minus(HOUR * 4), now.plus(HOUR / 2));
        let real = self.test.database.task_preload(&shards, from, until, 1_000).await.unwrap();
        let keys = self.table.preload(&shards, from, until, 1_000);
        assert_eq!(sorted(real.iter().map(|key| key.id).collect()), sorted(keys.iter().map(|row| row.id).collect()));
        let epochs: BTreeMap<ShardId, Epoch> = self.table.fences.clone();
        let real = self.test.database.task_takeover(&epochs, 1_000).await.unwrap();
        let (from, until) = (now.minus(TAKEOVER_LOOK_BACK), now.plus(LOOK_AGAIN_AFTER));
        let left = self.table.left_claimed(&epochs, from, until, 1_000);
        assert_eq!(sorted(real), sorted(left));
        let standing = self.test.database.task_standing(&self.ids).await.unwrap();
        let states: BTreeMap<TaskId, TaskState> = standing.into_iter().map(|row| (row.id, row.state)).collect();
        assert_eq!(states, self.table.rows.values().map(|row| (row.id, row.state)).collect());
    }

    async fn step(&mut self) {
        match self.dice.index(16) {
            _ if self.ids.len() < 4 => self.submit().await,
            0..3 => self.submit().await,
            3..6 => self.claim().await,
            6 => self.rescue().await,
            7..9 => self.pick().await,
            9 => self.deliver().await,
            10 => self.finish().await,
            11 => self.retry().await,
            12 => self.extend().await,
            13 if self.dice.is_percent(50) => self.cancel().await,
            13 => self.change().await,
            14 => self.acquire(u16::try_from(self.dice.between(0, 1)).unwrap()).await,
            _ if self.dice.is_percent(50) => self.expire().await,
            _ => self.read().await,
        }
    }

    /// Compares all rows of both.
    async fn compare(&self) {
        let unfinished =
            "SELECT id, state::text AS state, wake_at, due_at, priority, attempt, claim_epoch, redeliveries,
                                 coalesce(in_order, false) AS in_order, coalesce(counted, false) AS counted
                            FROM duetime.task ORDER BY id";
        let rows = sqlx::query(unfinished).fetch_all(&self.test.pool).await.unwrap();
        assert_eq!(rows.len(), self.table.rows.len());
        for real in rows {
            let row = &self.table.rows[&TaskId::from_uuid(real.get("id"))];
            let column = |name| UnixMicros::from(real.get::<chrono::DateTime<chrono::Utc>, _>(name));
            for (real, simulated) in [(column("wake_at"), row.wake_at), (column("due_at"), row.due_at)] {
                assert!(real.since(simulated).max(simulated.since(real)) < ALIKE, "{row:?} {real:?}");
            }
            let real: (String, i16, i32, Option<i64>, i32, bool, bool) = (
                real.get("state"),
                real.get("priority"),
                real.get("attempt"),
                real.get("claim_epoch"),
                real.get("redeliveries"),
                real.get("in_order"),
                real.get("counted"),
            );
            let epoch = row.claim_epoch.map(Epoch::number);
            let state = row.state.to_string();
            let simulated = (state, row.priority, row.attempt, epoch, row.redeliveries, row.in_order, row.counted);
            assert_eq!(real, simulated, "{}", row.id);
        }
        let finished = "SELECT id, state::text AS state, attempt FROM duetime.archive";
        let rows = sqlx::query(finished).fetch_all(&self.test.pool).await.unwrap();
        let real: BTreeMap<TaskId, (String, i32)> =
            rows.iter().map(|row| (TaskId::from_uuid(row.get("id")), (row.get("state"), row.get("attempt")))).collect();
        let archive = self.table.archive.iter().map(|(id, (state, attempt))| (*id, (state.to_string(), *attempt)));
        assert_eq!(real, archive.collect());
    }
}

#[tokio::test]
async fn the_table_in_memory_answers_as_postgresql_does() {
    let mut finished = 0;
    for seed in 0..SEQUENCES {
        let mut both = Both::new(seed).await;
        for _ in 0..STEPS {
            both.step().await;
            both.compare().await;
        }
        finished += both.table.archive.len();
    }
    assert!(finished > 0, "no sequence has finished a task");
}
