//! Lists, page by page.

use std::{collections::BTreeMap, time::Duration};

use common::{
    ids::{Attempt, QueueName, TaskId},
    task::TaskState,
    time::UnixMicros,
    wire::ListFilter,
};

use super::{fixture, fixture::TestDatabase, new_task};
use crate::store::{change::Keep, list::Page, submit::Sending};

/// `n` tasks of each queue, a second apart, in no particular order.
async fn filled(test: &TestDatabase, queues: &[&str], n: u64) -> BTreeMap<(UnixMicros, TaskId), QueueName> {
    let start = fixture::now(&test.pool).await.plus(Duration::from_secs(3_600));
    let mut tasks = Vec::new();
    for queue in queues {
        for nth in (0..n).rev() {
            let mut task = new_task(fixture::fresh_id());
            (task.queue, task.asked_now) = (QueueName::new(queue), false);
            task.due_at = start.plus(Duration::from_secs(nth));
            tasks.push(task);
        }
    }
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    tasks.into_iter().map(|task| ((task.due_at, task.id), task.queue)).collect()
}

fn keys(page: &Page) -> Vec<(UnixMicros, TaskId)> {
    page.tasks.iter().map(|task| (task.due_at, task.id)).collect()
}

/// Every page after the other, each as long as `limit` allows.
async fn walk(test: &TestDatabase, filter: ListFilter, limit: u32) -> Vec<(UnixMicros, TaskId)> {
    let mut filter = ListFilter { limit: Some(limit), ..filter };
    let mut walked = Vec::new();
    loop {
        let page = test.database.task_list(&filter).await.unwrap();
        assert!(page.tasks.len() <= limit as usize);
        walked.extend(keys(&page));
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return walked,
        }
    }
}

async fn cancel(test: &TestDatabase, id: TaskId) {
    let keep = Keep { default_ms: 86_400_000, others: Vec::new() };
    test.database.task_cancel(id, &keep).await.unwrap();
}

#[tokio::test]
async fn pages_of_any_size_hold_every_task_once_in_the_order_of_their_due_times() {
    let test = fixture::database().await;
    let all = filled(&test, &["a", "b", "c"], 20).await;
    // Some of them finished: both tables, one order.
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
    let page = test.database.task_list(&ListFilter::default()).await.unwrap();
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
    let first = test.database.task_list(&filter).await.unwrap();
    assert!(first.tasks.is_empty() && first.next.is_some(), "an empty page that is not the last");
    let walked = walk(&test, filter, 10).await;
    assert_eq!(walked.iter().map(|(_, id)| id.uuid()).collect::<Vec<_>>(), [last]);
}

/// Pages of several databases, as they come from one.
#[tokio::test]
async fn merged_pages_go_no_further_than_what_all_of_them_have_seen() {
    let test = fixture::database().await;
    let all: Vec<_> = filled(&test, &["a"], 10).await.into_keys().collect();
    let page = |from: usize, limit: u32, test: &TestDatabase| {
        let filter = ListFilter { due_after: Some(all[from].0), limit: Some(limit), ..ListFilter::default() };
        let database = test.database.clone();
        async move { database.task_list(&filter).await.unwrap() }
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
    // The same task in both: it was archived between the two looks.
    let live = page(0, 100, &test).await;
    cancel(&test, all[4].1).await;
    let merged = Page::merge([live, page(0, 100, &test).await], 100);
    assert_eq!(keys(&merged), all);
    assert_eq!(merged.tasks[4].state, TaskState::Cancelled);
    assert_eq!(merged.tasks[4].attempt, Attempt::NONE);
}
