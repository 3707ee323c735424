//! Tests of the store against a real PostgreSQL.

mod application;
mod audit;
mod bulk;
mod chain;
mod change;
mod claim;
mod collect;
mod conformance;
mod decisions;
mod depend;
mod envelope;
mod explain;
pub(crate) mod failover;
mod fence;
pub(crate) mod fixture;
mod glance;
mod in_memory;
mod inbox;
mod indexes;
mod lane;
mod lane_plans;
mod late;
mod lender;
mod list;
mod list_plans;
mod live;
mod migrate;
mod migrate_owner;
mod move_requests;
mod moves;
pub(crate) mod outlook;
mod partition;
mod patience;
mod places;
mod pools;
mod preload;
mod presence;
mod put;
mod quarantine;
mod queues;
mod read;
mod realm;
mod receipts;
mod rivals;
mod schedules;
mod server_settings;
mod server_wide;
mod session;
mod settle;
mod shared_change;
mod short;
mod standing;
mod stop;
mod submit;
mod submit_check;
mod submit_claimed;
mod tokens;
mod transport;
mod turn;
mod usage;
mod warm;
mod watch;
mod weights;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, Epoch, Incarnation, NodeId, NodeName, QueueName, ShardId, TaskId},
    priority::shares,
    task::{Content, NewTask, ValidTask},
    time::UnixMicros,
};
use sqlx::{PgPool, Postgres, pool::PoolConnection};
use tokio::task::JoinHandle;

use super::{PoolKind, lane::Pick, settle::Deliver};
use crate::{clock, supervise::spawn_child};
use fixture::TestDatabase;

/// Longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The lock as written in the statements that present an epoch.
const FENCE_LOCK: &str = "FOR SHARE OF s";

/// A task with this id, due at once.
pub(crate) fn new_task(id: TaskId) -> NewTask {
    let task = ValidTask {
        queue: QueueName::new("orders"),
        due_at: UnixMicros::new(0),
        due_now: true,
        content: Content { payload: b"{}".to_vec(), content_type: "application/json".into(), headers: BTreeMap::new() },
        priority: 3,
        keyed: None,
        partition_key: None,
        depends_on: Vec::new(),
        max_attempts: None,
        timeout_ms: None,
        retry: None,
        expires_at: None,
        envelope: None,
    };
    NewTask { id, task }
}

/// A new task of shard 0, as `change` has it.
pub(crate) fn changed(mut new: NewTask, change: impl FnOnce(&mut ValidTask)) -> NewTask {
    change(&mut new.task);
    new
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId { name: NodeName::new(name), incarnation: Incarnation::new(uuid::Uuid::new_v4()) }
}

/// Takes the fence of shard 0 for a node of this name.
async fn own(test: &TestDatabase, name: &str) -> BTreeMap<ShardId, Epoch> {
    test.database.shard_acquire(&[ShardId::new(0)], &node(name)).await.unwrap().into_iter().collect()
}

/// Submits `n` tasks on shard 0, due at once, and returns their ids.
async fn submitted(test: &TestDatabase, n: usize) -> Vec<TaskId> {
    let ids: Vec<TaskId> = (0..n).map(|_| fixture::fresh_id_of(ShardId::new(0))).collect();
    let tasks: Vec<NewTask> = ids.iter().map(|id| new_task(*id)).collect();
    test.database.task_submit(&tasks, super::submit::Sending::First).await.unwrap();
    ids
}

async fn claim(test: &TestDatabase, ids: &[TaskId], fences: &BTreeMap<ShardId, Epoch>) -> super::claim::Claimed {
    test.database.task_claim(ids, fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await.unwrap()
}

/// A confirm that comes now.
fn deliver(id: TaskId, attempt: Attempt, timeout_ms: i64) -> Deliver {
    Deliver { id, attempt, timeout_ms, confirmed_at: clock::instant() }
}

/// Starts up to `most` tasks that wait for room, of the highest priority that has any. This is how
/// a queue without gates does it.
async fn pick(
    database: &super::Database,
    queue: &QueueName,
    fences: &BTreeMap<ShardId, Epoch>,
    most: usize,
) -> super::claim::Claimed {
    let shards: Vec<ShardId> = fences.keys().copied().collect();
    let ready = database.lane_read(queue, &shards, most, None, None).await.unwrap().ready;
    let wanted = shares(ready, most, None, || 0.0);
    database.task_pick_open(&Pick::of(queue, fences, wanted)).await.unwrap().0
}

/// Opens a transaction that runs `shard_acquire` of shard 0 for another node; nothing is committed yet.
async fn acquire_begun(test: &TestDatabase) -> PoolConnection<Postgres> {
    let mut acquiring = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *acquiring).await.unwrap();
    sqlx::query(include_str!("../queries/shard_acquire.sql"))
        .bind(vec![0_i32])
        .bind("new")
        .bind(uuid::Uuid::new_v4())
        .bind(Vec::<i32>::new())
        .execute(&mut *acquiring)
        .await
        .unwrap();
    acquiring
}

/// Lets another node acquire shard 0 and take over its tasks, while the statement that `blocker`
/// holds up still runs. `waits` says whether the acquire has to wait for that statement. Returns how
/// many tasks the node took over.
async fn takeover_during(test: &TestDatabase, mut blocker: PoolConnection<Postgres>, waits: bool) -> usize {
    test.be_patient(PoolKind::Fire).await;
    until_waiting(&test.pool, 1).await;
    let database = test.database.clone();
    let acquiring = spawn_child(async move {
        let taken = database.shard_acquire(&[ShardId::new(0)], &node("new")).await.unwrap();
        database.task_takeover(&taken.into_iter().collect(), 100).await.unwrap().len()
    });
    if waits {
        until_waiting(&test.pool, 2).await;
        sqlx::query("ROLLBACK").execute(&mut *blocker).await.unwrap();
        acquiring.await.unwrap()
    } else {
        let found = acquiring.await.unwrap();
        sqlx::query("ROLLBACK").execute(&mut *blocker).await.unwrap();
        found
    }
}

/// Commits `acquiring` after `racing` has begun to wait for it. If `racing` does not
/// wait, commits after it has ended.
async fn commit_during<T>(
    test: &TestDatabase,
    mut acquiring: PoolConnection<Postgres>,
    racing: JoinHandle<T>,
    waits: bool,
) -> T {
    if waits {
        until_waiting(&test.pool, 1).await;
        sqlx::query("COMMIT").execute(&mut *acquiring).await.unwrap();
        racing.await.unwrap()
    } else {
        let answer = racing.await.unwrap();
        sqlx::query("COMMIT").execute(&mut *acquiring).await.unwrap();
        answer
    }
}

/// Returns the statement without the fence's lock. A race runs against it to prove that the lock decides the race.
fn unlocked(statement: &str) -> String {
    let without = statement.replace(FENCE_LOCK, "");
    assert_ne!(without, statement, "the lock is written as this test expects");
    without
}

async fn state_of(pool: &PgPool, id: TaskId) -> Option<String> {
    sqlx::query_scalar("SELECT state::text FROM duetime.task WHERE id = $1 UNION ALL SELECT state::text FROM duetime.archive WHERE id = $1")
        .bind(id.uuid())
        .fetch_optional(pool)
        .await
        .unwrap()
}

/// Has the expiry of a live task pass.
pub(crate) async fn lapse(pool: &PgPool, id: TaskId) {
    let lapse = sqlx::query("UPDATE duetime.task SET expires_at = clock_timestamp() - interval '1 s' WHERE id = $1");
    assert_eq!(lapse.bind(id.uuid()).execute(pool).await.unwrap().rows_affected(), 1);
}

/// Waits until `n` sessions of this database wait for a lock. A race needs this event instead of a sleep.
async fn until_waiting(pool: &PgPool, n: i64) {
    until(pool, |waiting| waiting >= n).await;
}

async fn until_none_waits(pool: &PgPool) {
    until(pool, |waiting| waiting == 0).await;
}

async fn until(pool: &PgPool, enough: impl Fn(i64) -> bool) {
    let deadline = Instant::now() + LONG;
    loop {
        let waiting = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(pool)
        .await
        .unwrap();
        if enough(waiting) {
            return;
        }
        assert!(Instant::now() < deadline, "{waiting} sessions wait for a lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
