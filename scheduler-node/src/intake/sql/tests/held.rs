//! Rows that wait behind one that another transaction holds, or for a partition of the archive.

use common::task::{BusinessKey, OnDuplicate};

use super::*;
use crate::{
    intake::sql::turns::ASIDE_MOST,
    store::{
        inbox::InboxRow,
        tests::{changed, new_task},
    },
};

/// A task of this shard with the key.
pub(super) fn keyed(shard: ShardId, key: &str) -> NewTask {
    let key = BusinessKey { key: key.to_owned(), version: 0, on_duplicate: OnDuplicate::Replace };
    changed(new_task(fixture::fresh_id_of(shard)), |task| task.keyed = Some(key))
}

/// A row of this shard with the key `k`.
pub(super) fn inbox_row(shard: ShardId) -> InboxRow {
    InboxRow {
        id: fixture::fresh_id_of(shard),
        request: Some("{\"queue\": \"orders\", \"key\": \"k\"}".to_owned()),
        submitted_at: common::time::UnixMicros::FIRST,
        leaving: false,
        is_last: false,
        rules_changed: Arc::default(),
    }
}

/// Submits so many tasks that replace the one with the key `k`, with the payloads 1 to `rows`.
async fn replace_often(test: &TestDatabase, rows: usize) {
    let submit = format!(
        "SELECT duetime.submit('orders', to_jsonb(n), now() + interval '1 hour', key => 'k',
                               options => '{{\"on_duplicate\": \"replace\"}}')
           FROM generate_series(1, {rows}) AS n"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(submit)).execute(&test.pool).await.unwrap();
}

#[test]
fn a_row_that_waits_behind_a_held_one_holds_their_key_when_that_one_is_done() {
    let rows: Vec<NewTask> = (0..3).map(|_| keyed(ShardId::new(0), "k")).collect();
    let other = keyed(ShardId::new(0), "other");
    let mut state = PassState::default();
    state.leave_held(&rows[..1], |_| false);
    assert!(state.leave_later(rows[1..2].to_vec()).is_empty());
    // The first has been let in, and is a task now.
    state.aside.remove(&rows[0].id);
    let ids = |tasks: Vec<NewTask>| tasks.iter().map(|task| task.id).collect::<Vec<_>>();
    assert_eq!(ids(state.leave_later(vec![rows[2].clone(), other.clone()])), [other.id]);
    state.aside.remove(&rows[1].id);
    assert_eq!(ids(state.leave_later(vec![rows[1].clone()])), [rows[1].id], "no later one holds it up");
}

/// A load goes on meanwhile, so a pass lets in one batch only.
#[tokio::test]
async fn the_last_submission_of_a_key_is_applied_last_when_more_than_a_batch_was_held() {
    let (_counter, test, intake) = owner().await;
    let mut state = PassState::default();
    let task = replace(&test, 0).await;
    intake.collect(&mut state).await.unwrap();
    let lock = test.lock_row(task).await;
    replace_often(&test, BATCH + 10).await;
    for _ in 0..2 {
        intake.collect(&mut state).await.unwrap();
    }
    assert_eq!(state.aside.len(), BATCH + 10);
    lock.release().await;
    // As if their pauses had passed, and the last pass had been the turn of others.
    let now = Instant::now();
    state.aside.values_mut().for_each(|aside| aside.until = now);
    (state.has_more, state.turns.is_turn_of_others) = (true, true);
    intake.collect(&mut state).await.unwrap();
    assert_eq!(state.aside.len(), 10, "a batch was let in");
    replace(&test, 1_000).await;
    intake.collect(&mut state).await.unwrap();
    collect_all(&intake, &mut state, &test).await;
    let made = test.database.task_read(task).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"1000".as_slice()), 1));
}

#[test]
fn a_row_that_cannot_be_judged_holds_its_key_also_where_it_is_one_too_many_to_be_left_alone() {
    let shard = ShardId::new(0);
    let row = inbox_row(shard);
    let (later, other) = (keyed(shard, "k"), keyed(shard, "other"));
    for already_aside in [0, ASIDE_MOST] {
        let mut state = PassState::default();
        state.leave_alone((0..already_aside).map(|_| fixture::fresh_id_of(shard)), Duration::from_secs(60));
        let route = Route { database: DatabaseIndex::HOME, leaves: false };
        let mut parts = BTreeMap::from([(route, vec![later.clone(), other.clone()])]);
        state.leave_unknown(vec![&row], &mut parts);
        let left = parts.remove(&route).expect("the part");
        let left: Vec<TaskId> = state.leave_later(left).iter().map(|task| task.id).collect();
        assert_eq!((left, state.aside.contains_key(&row.id)), (vec![other.id], already_aside == 0));
    }
}

/// Each turn of others would begin with 256 of those for which there is no room aside.
#[tokio::test]
async fn more_rows_behind_one_held_key_than_are_left_alone_keep_no_row_of_another_shard_waiting() {
    let (_counter, test, intake) = owner().await;
    let mut state = PassState::default();
    let task = replace(&test, 0).await;
    intake.collect(&mut state).await.unwrap();
    let lock = test.lock_row(task).await;
    replace_often(&test, ASIDE_MOST + 2 * BATCH).await;
    let submit = "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
                  VALUES (duetime.mint(now(), $1), $1, '{\"queue\": \"orders\"}', now())";
    let another = (task.shard().number() + 1) % fixture::SHARDS;
    sqlx::query(submit).bind(i32::from(another)).execute(&test.pool).await.unwrap();
    let other_is_made = Box::pin(async {
        while test.live().await < 2 {
            intake.collect(&mut state).await.unwrap();
        }
    });
    soon("the row of another shard is a task", other_is_made).await;
    replace(&test, 20_000).await;
    for _ in 0..2 {
        intake.collect(&mut state).await.unwrap();
    }
    lock.release().await;
    // The others of these thousands would only take time.
    let spare = "DELETE FROM duetime.inbox WHERE (request ->> 'payload')::int BETWEEN 300 AND 10000";
    sqlx::raw_sql(spare).execute(&test.pool).await.unwrap();
    collect_all(&intake, &mut state, &test).await;
    let made = test.database.task_read(task).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"20000".as_slice()), 2));
}

/// As just after the queue got a longer retention: the former version goes into a partition that is not there yet.
#[tokio::test]
async fn a_row_whose_former_version_has_no_partition_yet_ends_no_pass_and_is_a_task_once_there_is_one() {
    let (counter, test, intake) = owner().await;
    let mut state = PassState::default();
    let submit = async |version: i64| {
        let submit = "SELECT duetime.submit('orders', to_jsonb($1::bigint), now() + interval '1 hour', key => 'k',
                                            options => jsonb_build_object('on_duplicate', 'version', 'version', $1))";
        let id = sqlx::query_scalar(submit).bind(version).fetch_one(&test.pool).await.unwrap();
        TaskId::from_uuid(id)
    };
    submit(1).await;
    intake.collect(&mut state).await.unwrap();
    let keep = |days: i64| {
        let policy = QueuePolicy { keep_succeeded_ms: days * 86_400_000, ..QueuePolicy::default() };
        let queue = Queue { policy, ..Queue::with_defaults(QueueName::new("orders")) };
        counter.books.store(Arc::new(QueueBook::new(2, [queue])));
    };
    keep(300);
    let waits = submit(2).await;
    intake.collect(&mut state).await.expect("the row waits alone");
    assert!(state.aside.contains_key(&waits), "{:?}", state.aside);
    // It comes again, beside others.
    state.aside.clear();
    sqlx::raw_sql("SELECT duetime.submit('orders', '3'), duetime.submit('orders', '4', key => 'other')")
        .execute(&test.pool)
        .await
        .unwrap();
    intake.collect(&mut state).await.expect("the others are tasks");
    assert!(state.aside.keys().eq([&waits]), "{:?}", state.aside);
    assert_eq!(test.live().await, 3);
    // As if the archiver had made the partition.
    keep(1);
    collect_all(&intake, &mut state, &test).await;
    let made = test.database.task_read(waits).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"2".as_slice()), 3));
}
