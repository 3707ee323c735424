use common::{ids::QueueName, queue::QueuePolicy};

use super::*;
use crate::{
    coordination::tests::SOON, loops::upkeep::looker, store::tests::fixture, supervise::spawn_child,
    working_set::failures::tests::Log,
};

/// Waits until a copy of the queues shows a queue that is made after the reader has begun.
async fn shows_what_is_made_later(with_glances: bool) {
    let test = fixture::database().await;
    let store = fixture::store(vec![Arc::clone(&test.database)]);
    let (books, stop) = (Books::default(), CancellationToken::new());
    let reader = QueueReader::new(store, Arc::clone(&books), Arc::default());
    let mut loops = vec![spawn_child(reader.run(stop.clone()))];
    if with_glances {
        loops.push(spawn_child(looker::run(Arc::clone(&test.database), stop.clone())));
    }
    let until = async |is_so: &(dyn Fn(&QueueBook) -> bool + Sync)| {
        let poll = async {
            while !is_so(&books.load()) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, poll).await.expect("the copy follows");
    };
    until(&|book| book.is_read()).await;
    let name = QueueName::new("later");
    test.database.queue_put(&name, &QueuePolicy::default(), None, 10).await.unwrap();
    until(&|book| book.iter().any(|queue| queue.name == name)).await;
    stop.cancel();
    for ended in loops {
        ended.await.unwrap();
    }
}

#[tokio::test]
async fn a_change_is_read_when_a_glance_shows_it() {
    shows_what_is_made_later(true).await;
}

#[tokio::test]
async fn a_change_is_read_without_glances_too() {
    shows_what_is_made_later(false).await;
}

#[tokio::test]
async fn policies_that_cannot_be_read_have_one_line_in_the_log_however_often_they_are_read() {
    let (log, test, books) = (Log::keep(), fixture::database().await, Books::default());
    for name in ["a", "b"] {
        test.database.queue_put(&QueueName::new(name), &QueuePolicy::default(), None, 10).await.unwrap();
    }
    let write = "UPDATE duetime.queue SET policy = policy || '{\"max_running\": \"ten\"}'";
    sqlx::query(write).execute(&test.pool).await.unwrap();
    for _ in 0..10 {
        assert_eq!(test.database.queue_page("", 10, None).await.unwrap().len(), 2);
        read_all(&test.database, &books).await.unwrap();
    }
    assert!(books.load().iter().all(|queue| queue.paused));
    assert_eq!((log.count("cannot be read"), log.count("queues=2 named=\"a (max_running), b (max_running)\"")), (1, 1));
}
