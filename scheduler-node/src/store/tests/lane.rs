//! Tasks that wait for room: counted, and started in turns.

use std::collections::{BTreeMap, BTreeSet};

use common::{
    ids::{Attempt, Epoch, QueueName, ShardId, TaskId},
    priority::Levels,
    task::{NewTask, TaskState},
};
use sqlx::{Executor, PgConnection};

use super::{changed, fixture, fixture::TestDatabase, new_task, node, own, state_of, until_waiting};
use crate::{
    store::{
        PoolKind,
        claim::Claimed,
        lane::{LaneCounts, LaneEnds, Pick},
        settle::{Finish, Report, Retry},
        submit::Sending,
    },
    supervise::spawn_child,
};

/// An owner of some shards, and the ends of its walks through the queue `orders`.
struct Picker<'a> {
    test: &'a TestDatabase,
    queue: QueueName,
    fences: BTreeMap<ShardId, Epoch>,
    after: LaneEnds,
    ordered: bool,
    counted: bool,
}

impl<'a> Picker<'a> {
    async fn new(test: &'a TestDatabase) -> Self {
        let fences = own(test, "a").await;
        Self {
            test,
            queue: QueueName::new("orders"),
            fences,
            after: LaneEnds::default(),
            ordered: false,
            counted: false,
        }
    }

    async fn pick(&mut self, wanted: Levels) -> Claimed {
        let (queue, fences, after) = (&self.queue, &self.fences, &self.after);
        let pick = Pick { after, ordered: self.ordered, counted: self.counted, ..Pick::of(queue, fences, wanted) };
        let (claimed, walks) = self.test.database.task_pick_open(&pick).await.unwrap();
        for (after, end) in self.after.iter_mut().zip(walks.ends) {
            *after = end.or_else(|| after.take());
        }
        claimed
    }

    /// The partition keys of the tasks that one pick of priority 3 starts.
    async fn keys(&mut self, wanted: usize) -> Vec<String> {
        let claimed = self.pick([0, 0, wanted, 0, 0]).await;
        claimed.deliveries.into_iter().map(|delivery| delivery.partition_key.unwrap_or_default()).collect()
    }

    async fn ids(&mut self, wanted: usize) -> BTreeSet<TaskId> {
        self.pick([0, 0, wanted, 0, 0]).await.deliveries.into_iter().map(|delivery| delivery.id).collect()
    }

    async fn counts(&self, most: usize, limit: Option<i64>) -> LaneCounts {
        let shards: Vec<ShardId> = self.fences.keys().copied().collect();
        self.test.database.lane_read(&self.queue, &shards, most, limit, None).await.unwrap()
    }
}

/// Submits tasks of `keys` on shard 0 and makes them ready. The first is due first.
async fn ready(test: &TestDatabase, keys: &[&str]) -> Vec<TaskId> {
    let tasks: Vec<NewTask> = keys
        .iter()
        .map(|key| {
            changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| {
                task.partition_key = (!key.is_empty()).then(|| (*key).to_owned());
            })
        })
        .collect();
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    make_ready(test, &ids).await;
    ids
}

async fn make_ready(test: &TestDatabase, ids: &[TaskId]) {
    let ids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    sqlx::query("UPDATE duetime.task SET state = 'ready' WHERE id = ANY($1)")
        .bind(ids)
        .execute(&test.pool)
        .await
        .unwrap();
}

async fn finish(test: &TestDatabase, id: TaskId, attempt: i32) {
    let finish = Finish {
        id,
        attempt: Attempt::new(attempt),
        final_state: TaskState::Succeeded,
        was: &[TaskState::Dispatching],
        keep_ms: 1_000,
        report: Report::default(),
        at_deadline: false,
        entry: None,
    };
    assert_eq!(test.database.task_finish(&[finish]).await.unwrap().ids, [id]);
}

async fn fail(test: &TestDatabase, id: TaskId, lower: bool) {
    let retry = Retry {
        id,
        attempt: Attempt::new(1),
        retry_at: fixture::now(&test.pool).await,
        entry: r#"{"attempt":1}"#.into(),
        at_deadline: false,
        lower,
    };
    assert_eq!(test.database.task_retry(&[retry]).await.unwrap(), [id]);
}

#[tokio::test]
async fn partition_keys_take_turns_and_those_without_one_are_one_of_them() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    ready(&test, &["a", "a", "a", "a", "a", "a", "a", "a", "b", "b", "", "", ""]).await;
    let mut turns = Vec::new();
    for _ in 0..6 {
        turns.extend(picker.keys(1).await);
    }
    assert_eq!(turns, ["", "a", "b", "", "a", "b"]);
    let mut three = picker.keys(3).await;
    three.sort();
    assert_eq!(three, ["", "a", "a"], "a lane that is empty gives its turn away");
    assert_eq!(picker.keys(10).await, ["a", "a", "a", "a"]);
}

#[tokio::test]
async fn turns_go_on_where_the_last_one_was_whatever_the_number_taken() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    ready(&test, &[["a"; 30], ["b"; 30]].concat()).await;
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..10 {
        for key in picker.keys(3).await {
            *taken.entry(key).or_default() += 1;
        }
    }
    assert_eq!(taken, BTreeMap::from([("a".to_owned(), 15), ("b".to_owned(), 15)]));
}

#[tokio::test]
async fn each_lane_gives_its_oldest_and_each_priority_what_is_wanted_of_it() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    let ids = ready(&test, &["", "", "", ""]).await;
    sqlx::query("UPDATE duetime.task SET priority = 5 WHERE id = $1")
        .bind(ids[3].uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    assert_eq!(
        picker.counts(10, None).await,
        LaneCounts { ready: [0, 0, 3, 0, 1], shards: [ShardId::new(0)].into(), out: 0 }
    );
    assert_eq!(picker.counts(2, None).await.ready, [0, 0, 2, 0, 1], "no further than asked for");
    let taken: BTreeSet<TaskId> =
        picker.pick([0, 0, 2, 0, 1]).await.deliveries.iter().map(|delivery| delivery.id).collect();
    assert_eq!(taken, BTreeSet::from([ids[0], ids[1], ids[3]]));
}

#[tokio::test]
async fn walks_go_over_all_shards_that_are_ours_and_no_other() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    let shards = [ShardId::new(0), ShardId::new(7), ShardId::new(9)];
    picker.fences = test.database.shard_acquire(&shards, &node("a")).await.unwrap().into_iter().collect();
    let tasks: Vec<NewTask> =
        [0, 3, 7, 8, 9, 9].map(|shard| new_task(fixture::fresh_id_of(ShardId::new(shard)))).into();
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    make_ready(&test, &tasks.iter().map(|task| task.id).collect::<Vec<_>>()).await;
    assert_eq!(picker.counts(10, None).await.ready, [0, 0, 4, 0, 0]);
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.extend(picker.ids(1).await.into_iter().map(|id| id.shard().number()));
    }
    assert_eq!(taken, [0, 7, 9, 9]);
    assert!(picker.ids(5).await.is_empty());
}

#[tokio::test]
async fn of_an_ordered_lane_one_task_is_started_at_a_time_and_the_first_due_first() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    picker.ordered = true;
    let ids = ready(&test, &["a", "a", "b", "", ""]).await;
    let first = picker.ids(10).await;
    assert_eq!(first, BTreeSet::from([ids[0], ids[2], ids[3], ids[4]]), "those without a key have no order");
    assert!(picker.ids(10).await.is_empty(), "the head is out");
    fail(&test, ids[0], false).await;
    assert!(picker.ids(10).await.is_empty(), "the head waits for its retry");
    make_ready(&test, &ids[..1]).await;
    assert_eq!(picker.ids(10).await, BTreeSet::from([ids[0]]), "the head again, though the other is due before it");
    finish(&test, ids[0], 2).await;
    assert_eq!(picker.ids(10).await, BTreeSet::from([ids[1]]));
}

#[tokio::test]
async fn the_head_of_an_ordered_lane_goes_first_whatever_its_priority_and_though_it_is_not_ready_yet() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    picker.ordered = true;
    let ids = ready(&test, &["a", "a"]).await;
    sqlx::query("UPDATE duetime.task SET priority = 5 WHERE id = $1")
        .bind(ids[0].uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    sqlx::query("UPDATE duetime.task SET state = 'scheduled' WHERE id = $1")
        .bind(ids[0].uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    assert!(picker.pick([5, 5, 5, 5, 5]).await.deliveries.is_empty());
    make_ready(&test, &ids[..1]).await;
    let taken = picker.pick([5, 5, 5, 5, 5]).await;
    assert_eq!(taken.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [ids[0]]);
}

#[tokio::test]
async fn a_limit_counts_what_is_out_until_it_has_an_outcome() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    picker.counted = true;
    ready(&test, &["", "", "", ""]).await;
    let out: Vec<TaskId> = picker.ids(3).await.into_iter().collect();
    assert_eq!(
        picker.counts(10, Some(10)).await,
        LaneCounts { ready: [0, 0, 1, 0, 0], shards: [ShardId::new(0)].into(), out: 3 }
    );
    assert_eq!(picker.counts(10, Some(2)).await.out, 2, "no further than asked for");
    fail(&test, out[0], false).await;
    finish(&test, out[1], 1).await;
    assert_eq!(picker.counts(10, Some(10)).await.out, 1);
    let mut other = Picker { queue: QueueName::new("other"), ..Picker::new(&test).await };
    assert_eq!(other.counts(10, Some(10)).await.out, 0);
    assert!(other.ids(1).await.is_empty());
}

#[tokio::test]
async fn a_retry_may_be_one_priority_lower_and_never_lower_than_the_last() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    let ids = ready(&test, &["", ""]).await;
    picker.ids(2).await;
    sqlx::query("UPDATE duetime.task SET priority = 5 WHERE id = $1")
        .bind(ids[1].uuid())
        .execute(&test.pool)
        .await
        .unwrap();
    fail(&test, ids[0], true).await;
    fail(&test, ids[1], true).await;
    let mut lower: Vec<i16> =
        sqlx::query_scalar("SELECT priority FROM duetime.task").fetch_all(&test.pool).await.unwrap();
    lower.sort_unstable();
    assert_eq!(lower, [4, 5]);
}

#[tokio::test]
async fn a_dead_epoch_picks_nothing_and_is_told_so() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    ready(&test, &["a"]).await;
    own(&test, "b").await;
    let refused = picker.pick([0, 0, 1, 0, 0]).await;
    assert!(refused.refused && refused.deliveries.is_empty());
}

/// Starts a task in its queue's order, like a pick that has not seen what other picks started.
async fn start_blindly(connection: &mut PgConnection, id: TaskId) -> Result<(), sqlx::Error> {
    let start =
        "UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = 1, in_order = true WHERE id = $1";
    sqlx::query(start).bind(id.uuid()).execute(connection).await.map(drop)
}

/// Starts two tasks of one ordered lane at the same time, the second before the first has committed.
/// Returns whether both were started.
async fn both_start(test: &TestDatabase, waits: bool) -> bool {
    let ids = ready(test, &["a", "a"]).await;
    let mut first = test.pool.acquire().await.unwrap();
    let mut second = test.pool.acquire().await.unwrap();
    first.execute("BEGIN").await.unwrap();
    start_blindly(&mut first, ids[0]).await.unwrap();
    let racing = spawn_child(async move { start_blindly(&mut second, ids[1]).await.is_ok() });
    if waits {
        until_waiting(&test.pool, 1).await;
        first.execute("COMMIT").await.unwrap();
        return racing.await.unwrap();
    }
    let started = racing.await.unwrap();
    first.execute("COMMIT").await.unwrap();
    started
}

#[tokio::test]
async fn the_schema_refuses_a_second_started_task_of_an_ordered_lane() {
    let test = fixture::database().await;
    assert!(!both_start(&test, true).await);
}

#[tokio::test]
async fn without_its_index_both_would_be_started() {
    let test = fixture::database().await;
    test.pool.execute("DROP INDEX duetime.task_in_order").await.unwrap();
    assert!(both_start(&test, false).await);
}

#[tokio::test]
async fn a_pick_passes_over_what_another_statement_holds() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    let ids = ready(&test, &["", ""]).await;
    let lock = test.lock_row(ids[0]).await;
    assert_eq!(picker.ids(1).await, BTreeSet::from([ids[1]]), "not only when there is room for both");
    assert_eq!(picker.ids(2).await, BTreeSet::new());
    lock.release().await;
    assert_eq!(state_of(&test.pool, ids[0]).await.as_deref(), Some("ready"));
}

#[tokio::test]
async fn a_walk_that_used_up_its_steps_says_so_and_the_next_one_goes_on_behind_it() {
    let test = fixture::database().await;
    let mut picker = Picker::new(&test).await;
    picker.ordered = true;
    // There are 1,500 keys with one started task and one that waits. Behind them all
    // is a key without a started task.
    test.pool
        .execute(
            "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, attempt, claim_epoch, in_order)
             SELECT (substr(md5(g || s.state), 1, 28) || '0000')::uuid, 0, 'orders', s.state::duetime.task_state, now(), now() - s.age, '{}',
                    'application/json', 'busy-' || lpad(g::text, 5, '0'), s.attempt, s.attempt, s.in_order
               FROM generate_series(1, 1500) AS g,
                    (VALUES ('delivered', interval '2 s', 1, true), ('ready', interval '1 s', 0, NULL)) AS s (state, age, attempt, in_order)",
        )
        .await
        .unwrap();
    ready(&test, &["idle"]).await;
    let pick = Pick { ordered: true, ..Pick::of(&picker.queue, &picker.fences, [0, 0, 5, 0, 0]) };
    let (claimed, walks) = test.database.task_pick_open(&pick).await.unwrap();
    assert_eq!((claimed.deliveries.len(), walks.cut[2]), (0, true));
    let (claimed, _) = test.database.task_pick_open(&Pick { after: &walks.ends, ..pick }).await.unwrap();
    assert_eq!(claimed.deliveries.len(), 1);
}

#[tokio::test]
async fn an_acquire_waits_for_a_pick_in_flight() {
    let test = fixture::database().await;
    let picker = Picker::new(&test).await;
    ready(&test, &["a"]).await;
    test.be_patient(PoolKind::Fire).await;
    let mut picking = test.pool.acquire().await.unwrap();
    picking.execute("BEGIN").await.unwrap();
    sqlx::query(statement!("task_pick"))
        .bind("orders")
        .bind(vec![0_i32])
        .bind(vec![picker.fences[&ShardId::new(0)].number()])
        .bind(sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 1_000_000 })
        .bind(vec![3_i16])
        .bind(vec![1_i32])
        .bind(vec![1_i32])
        .bind(vec![String::new()])
        .bind(100_i32)
        .bind(true)
        .bind(true)
        .bind(i64::MAX)
        .bind(Vec::<uuid::Uuid>::new())
        .bind(None::<Vec<uuid::Uuid>>)
        .bind(chrono::DateTime::<chrono::Utc>::MAX_UTC)
        .bind(sqlx::postgres::types::PgInterval { months: 0, days: 0, microseconds: 0 })
        .bind(None::<chrono::DateTime<chrono::Utc>>)
        .fetch_all(&mut *picking)
        .await
        .unwrap();
    let database = test.database.clone();
    let acquiring = spawn_child(async move {
        let fences: BTreeMap<_, _> =
            database.shard_acquire(&[ShardId::new(0)], &node("b")).await.unwrap().into_iter().collect();
        database.lane_read(&QueueName::new("orders"), &[ShardId::new(0)], 10, Some(10), None).await.unwrap().out
            + fences.len()
    });
    until_waiting(&test.pool, 1).await;
    picking.execute("COMMIT").await.unwrap();
    assert_eq!(acquiring.await.unwrap(), 2, "the new owner counts what the old one has started");
}
