//! Lists of tasks, page by page.

use std::{collections::BTreeMap, time::Duration};

use common::{
    ids::{Attempt, QueueName, TaskId},
    task::{BusinessKey, OnDuplicate, TaskState},
    time::UnixMicros,
    wire::ListFilter,
};

use super::{fixture, fixture::TestDatabase, new_task};
use crate::store::{
    change::Keep,
    list::{Among, Page},
    submit::Sending,
};

/// Every queue, found by hopping from name to name.
const ALL: Among<'static> = Among { names: &[], others: true };

/// Submits `n` tasks to each queue, a second apart, in no particular order.
async fn filled(test: &TestDatabase, queues: &[&str], n: u64) -> BTreeMap<(UnixMicros, TaskId), QueueName> {
    let start = fixture::now(&test.pool).await.plus(Duration::from_secs(3_600));
    let mut tasks = Vec::new();
    for queue in queues {
        for nth in (0..n).rev() {
            let mut task = new_task(fixture::fresh_id());
            (task.queue, task.due_now) = (QueueName::new(queue), false);
            task.due_at = start.plus(Duration::from_secs(nth));
            tasks.push(task);
        }
    }
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    tasks.into_iter().map(|task| ((task.due_at, task.id), task.task.queue)).collect()
}

fn keys(page: &Page) -> Vec<(UnixMicros, TaskId)> {
    page.tasks.iter().map(|task| (task.due_at, task.id)).collect()
}

/// Reads all pages of a list, each as long as `limit` allows.
async fn walk(test: &TestDatabase, filter: ListFilter, limit: u32) -> Vec<(UnixMicros, TaskId)> {
    let mut filter = ListFilter { limit: Some(limit), ..filter };
    let mut walked = Vec::new();
    loop {
        let page = test.database.task_list(&filter, &ALL).await.unwrap();
        assert!(page.tasks.len() <= limit as usize);
        walked.extend(keys(&page));
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return walked,
        }
    }
}

async fn cancel(test: &TestDatabase, id: TaskId) {
    let keep = Keep { default_ms: 86_400_000, others: std::sync::Arc::default() };
    test.database.task_cancel(id, &keep).await.unwrap();
}

#[tokio::test]
async fn pages_of_any_size_hold_every_task_once_in_the_order_of_their_due_times() {
    let test = fixture::database().await;
    let all = filled(&test, &["a", "b", "c"], 20).await;
    // Some of the tasks finish, so the list needs both tables in one order.
    for (_, id) in all.keys().step_by(3) {
        cancel(&test, *id).await;
    }
    let expected: Vec<_> = all.keys().copied().collect();
    for limit in [1, 7, 60, 1_000] {
        assert_eq!(walk(&test, ListFilter::default(), limit).await, expected, "pages of {limit}");
    }
    let of_b = ListFilter { queue: Some(QueueName::new("b")), ..ListFilter::default() };
    let expected: Vec<_> = all.iter().filter(|(_, queue)| queue.as_str() == "b").map(|(key, _)| *key).collect();
    assert_eq!(walk(&test, of_b, 7).await, expected);
}

#[tokio::test]
async fn a_task_of_the_last_moment_is_listed_too() {
    let test = fixture::database().await;
    let mut task = new_task(fixture::fresh_id());
    (task.due_at, task.due_now) = (UnixMicros::LAST, false);
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let of_its_queue = ListFilter { queue: Some(task.queue.clone()), ..ListFilter::default() };
    for filter in [ListFilter::default(), of_its_queue] {
        assert_eq!(walk(&test, filter, 5).await, [(task.due_at, task.id)]);
    }
}

#[tokio::test]
async fn everything_asked_for_must_apply() {
    let test = fixture::database().await;
    let all: Vec<_> = filled(&test, &["a", "b"], 10).await.into_keys().collect();
    for (_, id) in &all[..4] {
        cancel(&test, *id).await;
    }
    let of_state = |state| ListFilter { state: Some(state), ..ListFilter::default() };
    assert_eq!(walk(&test, of_state(TaskState::Cancelled), 3).await, all[..4]);
    assert_eq!(walk(&test, of_state(TaskState::Scheduled), 3).await, all[4..]);
    assert!(walk(&test, of_state(TaskState::Dead), 3).await.is_empty());
    assert!(walk(&test, of_state(TaskState::Succeeded), 3).await.is_empty());
    let between = ListFilter { due_after: Some(all[6].0), due_before: Some(all[12].0), ..ListFilter::default() };
    assert_eq!(walk(&test, between, 5).await, all[6..12], "from the one moment, before the other");
    assert!(
        walk(&test, ListFilter { queue: Some(QueueName::new("nobody's")), ..ListFilter::default() }, 5)
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn a_partition_key_finds_its_tasks_in_every_queue() {
    let test = fixture::database().await;
    filled(&test, &["a"], 5).await;
    let mut task = new_task(fixture::fresh_id());
    task.partition_key = Some("customer 7".into());
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    let filter = ListFilter { partition_key: task.partition_key.clone(), ..ListFilter::default() };
    let walked = walk(&test, filter, 10).await;
    assert_eq!(walked.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [task.id]);
}

#[tokio::test]
async fn a_list_leaves_out_what_is_too_long_for_one() {
    let test = fixture::database().await;
    let (mut short, mut long) = (new_task(fixture::fresh_id()), new_task(fixture::fresh_id()));
    short.content.payload = vec![b'1'; 4_096];
    long.content.payload = vec![b'1'; 4_097];
    test.database.task_submit(&[short.clone(), long.clone()], Sending::First).await.unwrap();
    let page = test.database.task_list(&ListFilter::default(), &ALL).await.unwrap();
    let payloads: BTreeMap<TaskId, Option<usize>> =
        page.tasks.iter().map(|task| (task.id, task.payload.as_ref().map(Vec::len))).collect();
    assert_eq!(payloads, BTreeMap::from([(short.id, Some(4_096)), (long.id, None)]));
}

#[tokio::test]
async fn a_rare_task_is_found_behind_more_others_than_one_page_looks_at() {
    let test = fixture::database().await;
    sqlx::query(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT gen_random_uuid(), 0, 'q' || g % 3, 'scheduled', now() + g * interval '1 s', now() + g * interval '1 s', '', 'text/plain'
           FROM generate_series(1, 70000) AS g",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let last: uuid::Uuid = sqlx::query_scalar("SELECT id FROM duetime.task ORDER BY due_at DESC LIMIT 1")
        .fetch_one(&test.pool)
        .await
        .unwrap();
    sqlx::query("UPDATE duetime.task SET state = 'delivered', attempt = 1, claim_epoch = 1 WHERE id = $1")
        .bind(last)
        .execute(&test.pool)
        .await
        .unwrap();
    let filter = ListFilter { state: Some(TaskState::Delivered), ..ListFilter::default() };
    let first = test.database.task_list(&filter, &ALL).await.unwrap();
    assert!(first.tasks.is_empty() && first.next.is_some(), "an empty page that is not the last");
    let walked = walk(&test, filter, 10).await;
    assert_eq!(walked.iter().map(|(_, id)| id.uuid()).collect::<Vec<_>>(), [last]);
}

/// The pages have the form of those that several databases return.
#[tokio::test]
async fn merged_pages_go_no_further_than_what_all_of_them_have_seen() {
    let test = fixture::database().await;
    let all: Vec<_> = filled(&test, &["a"], 10).await.into_keys().collect();
    let page = |from: usize, limit: u32, test: &TestDatabase| {
        let filter = ListFilter { due_after: Some(all[from].0), limit: Some(limit), ..ListFilter::default() };
        let database = test.database.clone();
        async move { database.task_list(&filter, &ALL).await.unwrap() }
    };
    let (near, far) = (page(0, 3, &test).await, page(5, 100, &test).await);
    let merged = Page::merge([far.clone(), near.clone()], 100);
    assert_eq!(
        keys(&merged),
        all[..3],
        "the other page is of later tasks, but of the first database's more may follow"
    );
    assert_eq!(merged.next.map(|next| (next.due_at, next.id)), Some(all[2]));
    let merged = Page::merge([near, page(3, 100, &test).await], 2);
    assert_eq!(keys(&merged), all[..2]);
    assert_eq!(merged.next.map(|next| (next.due_at, next.id)), Some(all[1]));
    // The same task is in both pages, because it was archived between the two reads.
    let live = page(0, 100, &test).await;
    cancel(&test, all[4].1).await;
    let merged = Page::merge([live, page(0, 100, &test).await], 100);
    assert_eq!(keys(&merged), all);
    assert_eq!(merged.tasks[4].state, TaskState::Cancelled);
    assert_eq!(merged.tasks[4].attempt, Attempt::NONE);
}

/// More rows of one queue than a page examines, with NULL in every column that allows it. The row with the last due
/// time has a partition key, a key and an error.
pub(super) const LONG_AND_BARE: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, key, history)
SELECT gen_random_uuid(), 0, 'long', 'scheduled', due, due, '', 'text/plain', CASE WHEN last THEN 'p' END, CASE WHEN last THEN 'k' END,
       CASE WHEN last THEN '[{\"error\":\"rare\",\"attempt\":1,\"reason\":\"rejected\",\"claimed_at\":null,\"ended_at\":\"2026-01-01T00:00:00Z\"}]'::jsonb END
  FROM generate_series(1, 20010) AS g, LATERAL (SELECT now() + g * interval '1 s' AS due, g = 20010 AS last) AS row;
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, partition_key, key, status_msg, finished_at, drop_on)
SELECT gen_random_uuid(), 0, 'long', 'dead', due, due, '', 'text/plain', CASE WHEN last THEN 'p' END, CASE WHEN last THEN 'k' END,
       CASE WHEN last THEN 'rare' END, now(), (now() AT TIME ZONE 'UTC')::date + 1
  FROM generate_series(1, 20010) AS g, LATERAL (SELECT now() - g * interval '1 s' AS due, g = 1 AS last) AS row;
";

#[tokio::test]
async fn a_filter_on_what_most_tasks_do_not_have_finds_the_last_of_a_long_queue() {
    let test = fixture::database().await;
    sqlx::raw_sql(LONG_AND_BARE).execute(&test.pool).await.unwrap();
    let some = |text: &str| Some(text.to_owned());
    let filters = [
        ListFilter { partition_key: some("p"), ..ListFilter::default() },
        ListFilter { key: some("k"), partition_key: some("p"), ..ListFilter::default() },
        ListFilter { error: some("rare"), ..ListFilter::default() },
    ];
    for filter in filters {
        for (state, tasks) in [(None, 2), (Some(TaskState::Scheduled), 1), (Some(TaskState::Dead), 1)] {
            for queue in [None, Some(QueueName::new("long"))] {
                let filter = ListFilter { state, queue, ..filter.clone() };
                assert_eq!(walk(&test, filter.clone(), 10).await.len(), tasks, "{filter:?}");
            }
        }
    }
}

/// A person who looks for an error gets to the end, page by page.
#[tokio::test]
async fn a_list_by_error_over_histories_that_are_slow_to_read_answers_with_a_short_page() {
    let test = fixture::database().await;
    sqlx::raw_sql(LONG_AND_BARE).execute(&test.pool).await.unwrap();
    sqlx::raw_sql(super::bulk::SLOW_HISTORIES).execute(&test.pool).await.unwrap();
    let (queue, error) = (Some(QueueName::new("long")), Some("rare".to_owned()));
    let filter = ListFilter { queue, error, state: Some(TaskState::Dead), ..ListFilter::default() };
    let page = test.database.task_list(&filter, &ALL).await.unwrap();
    assert!(page.tasks.is_empty() && page.next.is_some(), "{page:?}");
}

/// Submits a task with the key `k`.
async fn keyed(test: &TestDatabase, queue: &str, partition_key: &str, due_at: UnixMicros) -> TaskId {
    let mut task = new_task(fixture::fresh_id());
    (task.queue, task.due_at, task.due_now) = (QueueName::new(queue), due_at, false);
    task.partition_key = Some(partition_key.to_owned());
    task.keyed = Some(BusinessKey { key: "k".to_owned(), version: 0, on_duplicate: OnDuplicate::Keep });
    test.database.task_submit(std::slice::from_ref(&task), Sending::First).await.unwrap();
    task.id
}

#[tokio::test]
async fn a_list_by_key_reaches_each_task_of_a_queue_that_has_more_than_its_share_of_a_look() {
    let test = fixture::database().await;
    let start = fixture::now(&test.pool).await.plus(Duration::from_secs(3_600));
    // One of 1,000 queues may look at five tasks. It does not find the seventh, which is due before all others.
    let mut ids = Vec::new();
    for (nth, after_s) in [100, 101, 102, 103, 104, 105, 0].into_iter().enumerate() {
        ids.push(keyed(&test, "a", &format!("p{nth}"), start.plus(Duration::from_secs(after_s))).await);
    }
    for after_s in [10, 20] {
        ids.push(keyed(&test, "b", &format!("p{after_s}"), start.plus(Duration::from_secs(after_s))).await);
    }
    let empty = (0..998).map(|nth| QueueName::new(format!("empty{nth}")));
    let names: Vec<_> = [QueueName::new("a"), QueueName::new("b")].into_iter().chain(empty).collect();
    let among = Among { names: &names, others: false };
    ids.sort_unstable();
    for state in [TaskState::Scheduled, TaskState::Cancelled] {
        if state == TaskState::Cancelled {
            for id in &ids {
                cancel(&test, *id).await;
            }
        }
        let filter = ListFilter { key: Some("k".into()), limit: Some(1), state: Some(state), ..ListFilter::default() };
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = test.database.task_list(&ListFilter { cursor, ..filter.clone() }, &among).await.unwrap();
            found.extend(keys(&page).into_iter().map(|(_, id)| id));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        found.sort_unstable();
        assert_eq!(found, ids, "{state:?}");
    }
}

/// Another node made the queue just now, or no node could. Finished tasks may have a queue that was deleted since.
#[tokio::test]
async fn a_list_by_key_finds_the_tasks_of_queues_that_the_caller_does_not_know() {
    let test = fixture::database().await;
    let due_at = fixture::now(&test.pool).await.plus(Duration::from_secs(3_600));
    let (here, unknown) =
        (keyed(&test, "here", "p", due_at).await, keyed(&test, "unknown", "p", due_at.shifted(1)).await);
    // Queues without the key, before and between and behind these.
    filled(&test, &["a", "k", "z"], 2).await;
    let names = [QueueName::new("here")];
    let filter = ListFilter { key: Some("k".into()), ..ListFilter::default() };
    for is_live in [true, false] {
        for (others, expected) in [(true, vec![here, unknown]), (false, vec![here])] {
            let page = test.database.task_list(&filter, &Among { names: &names, others }).await.unwrap();
            let ids: Vec<TaskId> = page.tasks.iter().map(|task| task.id).collect();
            assert_eq!((ids, page.next), (expected, None), "others: {others}, live: {is_live}");
        }
        for id in [here, unknown] {
            cancel(&test, id).await;
        }
    }
}

/// A search of the queue `slow` ends as one that runs out of its time: beside an old transaction it passes very many
/// tasks that have ended. Any other row takes longer than what a pace takes for quick.
const SLOW_QUEUE: &str = "
ALTER TABLE duetime.task RENAME TO plain_task;
CREATE FUNCTION duetime.is_quick(queue text) RETURNS boolean LANGUAGE plpgsql AS
    $$BEGIN IF queue = 'slow' THEN RAISE SQLSTATE '57014'; END IF; PERFORM pg_sleep(0.3); RETURN true; END$$;
CREATE VIEW duetime.task AS SELECT * FROM duetime.plain_task WHERE duetime.is_quick(queue)";

#[tokio::test]
async fn a_list_by_key_that_finds_no_other_queues_in_time_has_those_that_the_caller_names() {
    let test = fixture::database().await;
    let due_at = fixture::now(&test.pool).await.plus(Duration::from_secs(3_600));
    let here = keyed(&test, "here", "p", due_at).await;
    keyed(&test, "slow", "p", due_at).await;
    sqlx::raw_sql(SLOW_QUEUE).execute(&test.pool).await.unwrap();
    let names = [QueueName::new("here")];
    let among = Among { names: &names, others: true };
    let filter = ListFilter { key: Some("k".into()), ..ListFilter::default() };
    let page = test.database.task_list(&filter, &among).await.unwrap();
    assert_eq!((keys(&page), page.next), (vec![(due_at, here)], None));
    let paced = &test.database.paces.lists[0];
    assert_eq!(paced.begin().divisor(), 1, "other lists look at as many rows as before");
    // A look at the finished tasks would raise the pace again.
    let state = Some(TaskState::Scheduled);
    let with_error = ListFilter { error: Some("e".into()), state, ..filter.clone() };
    let page = test.database.task_list(&with_error, &among).await.unwrap();
    assert!(page.tasks.is_empty() && page.next.is_none());
    assert_eq!(test.database.paces.lists[1].begin().divisor(), 1, "so do those that read histories");
    let names = [QueueName::new("slow")];
    let late = test.database.task_list(&filter, &Among { names: &names, others: true }).await.unwrap_err();
    assert!(late.is_out_of_time(), "{late:?}");
    assert_eq!(paced.begin().divisor(), 1, "nor do they where the named ones take too long");
}

#[tokio::test]
async fn a_key_finds_its_tasks_among_named_queues_and_one_used_very_often_page_by_page() {
    let test = fixture::database().await;
    let fill = "
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, finished_at, drop_on)
SELECT gen_random_uuid(), 0, CASE WHEN g % 1000 = 0 THEN 'few' ELSE 'many' END, 'succeeded', due, due, '', 'text/plain', 'k', g, now(),
       (now() AT TIME ZONE 'UTC')::date + 1 + g % 9
  FROM generate_series(1, 21000) AS g, LATERAL (SELECT now() - g * interval '1 s' AS due) AS row";
    sqlx::raw_sql(fill).execute(&test.pool).await.unwrap();
    let names = [QueueName::new("few"), QueueName::new("none")];
    let among = Among { names: &names, others: false };
    let filter = ListFilter { key: Some("k".into()), limit: Some(7), ..ListFilter::default() };
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = test.database.task_list(&ListFilter { cursor, ..filter.clone() }, &among).await.unwrap();
        found.extend(keys(&page));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 21);
    assert!(found.is_sorted());
    let often = ListFilter { queue: Some(QueueName::new("many")), ..filter };
    assert_eq!(walk(&test, often, 1_000).await.len(), 20_979);
    let newest = test.database.task_find(&QueueName::new("many"), None, "k").await.unwrap().expect("it is there");
    let version: i64 = sqlx::query_scalar("SELECT version FROM duetime.archive WHERE id = $1")
        .bind(newest.uuid())
        .fetch_one(&test.pool)
        .await
        .unwrap();
    assert_eq!(version, 20_999);
}
