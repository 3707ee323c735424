//! The copies of the queues, beside nodes that have not read a change.

use arc_swap::ArcSwap;
use common::wire::QueueRequest;

use super::*;

async fn copy_of(test: &TestDatabase) -> Vec<(String, String)> {
    let copy = "SELECT name, policy ->> 'placement' FROM duetime.queue ORDER BY name";
    sqlx::query_as(copy).fetch_all(&test.pool).await.unwrap()
}

async fn put(counter: &Counter, queue: &str, policy: &str) {
    let policy = QueueRequest::parse(policy).expect("a policy");
    counter.desk.queue_put(QueueName::new(queue), policy).await.expect("it has no tasks");
}

const SINGLE: &str = r#"{"placement":"single"}"#;

fn single(queue: &str) -> (String, String) {
    (queue.to_owned(), "single".to_owned())
}

/// The intake of the second of two databases, whose queues the node has not read yet.
async fn of_second() -> (Counter, [TestDatabase; 2], SqlIntake) {
    let (counter, tests) = with_two_databases().await;
    let (index, _) = counter.databases.indexed().nth(1).expect("the second database");
    let intake = SqlIntake { index, ..intake(&counter) };
    counter.books.store(Arc::default());
    (counter, tests, intake)
}

#[tokio::test]
async fn a_node_that_has_not_read_a_change_of_queues_leaves_the_copy_of_one_that_has() {
    let (counter, [_main, east], newer) = of_second().await;
    for queue in ["changed", "deleted"] {
        put(&counter, queue, "{}").await;
    }
    let older = SqlIntake { books: Arc::new(ArcSwap::new(counter.books.load_full())), ..newer.clone() };
    for queue in ["changed", "made"] {
        put(&counter, queue, SINGLE).await;
    }
    counter.desk.queue_delete(QueueName::new("deleted")).await.expect("it has no tasks");
    for intake in [&newer, &older] {
        intake.copy_queues(&mut CopiedQueues::default()).await.unwrap();
        assert_eq!(copy_of(&east).await, [single("changed"), single("made")]);
    }
}

#[tokio::test]
async fn a_copy_is_compared_as_a_whole_at_intervals() {
    let (counter, [_main, east], intake) = of_second().await;
    put(&counter, "a", SINGLE).await;
    let mut copied = CopiedQueues::default();
    intake.copy_queues(&mut copied).await.unwrap();
    assert_eq!(copy_of(&east).await, [single("a")]);
    let change =
        "UPDATE duetime.queue SET policy = '{}'; INSERT INTO duetime.queue (name, policy) VALUES ('gone', '{}')";
    sqlx::raw_sql(change).execute(&east.pool).await.unwrap();
    // As if the interval had passed.
    copied.compare_at = Some(Instant::now());
    intake.copy_queues(&mut copied).await.unwrap();
    assert_eq!(copy_of(&east).await, [single("a")]);
}
