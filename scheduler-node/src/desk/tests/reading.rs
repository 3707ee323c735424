//! Requests that miss queues share reads of them, and what such reads have failed with.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};

use common::{
    ids::{QueueName, ScheduleName},
    queue::QueueBook,
    task::envelope::{Field, Properties},
    wire::{Message, ScheduleRequest},
};
use futures::{future::join_all, poll};

use super::{Counter, PLAIN, counter, fresh, request};
use crate::{
    clock,
    desk::{
        ReceiveOutcome,
        reading::{LastTries, Try},
    },
    store::tests::fixture::{self, TestDatabase},
    working_set::failures::tests::Log,
};

/// A read of the queues that begins and ends now.
pub(super) fn ended_now(succeeded: bool) -> Try {
    let now = clock::instant();
    Try { began: now, ended: now, succeeded }
}

/// As if the last tries were long ago.
pub(super) fn forget_tries(counter: &Counter) {
    note(counter, LastTries::default());
}

/// As if these were the last tries.
fn note(counter: &Counter, last: LastTries) {
    *counter.desk.inner.reading.last.lock() = last;
}

/// As if this were the last read.
pub(super) fn note_read(counter: &Counter, read: Try) {
    note(counter, LastTries { read: Some(read), addition: None });
}

/// A failure that also answers for the requests of the next minute.
pub(super) fn failed_just_now() -> Try {
    let failed = ended_now(false);
    Try { ended: failed.ended + Duration::from_secs(60), ..failed }
}

pub(super) fn failed_before(ago: Duration) -> Try {
    let at = clock::instant() - ago;
    Try { began: at, ended: at, succeeded: false }
}

fn failed_long_ago() -> Try {
    failed_before(Duration::from_secs(60))
}

async fn stored_queues(test: &TestDatabase) -> Vec<String> {
    let (_, queues) = test.database.queue_read().await.expect("they can be read");
    queues.iter().map(|queue| queue.name.to_string()).collect()
}

#[tokio::test]
async fn requests_that_miss_a_queue_share_a_read_also_where_it_fails() {
    let (counter, _test) = fresh().await;
    let missing = [QueueName::new("mail")];
    for is_read in [true, false] {
        let turn = counter.desk.inner.reading.turn.lock().await;
        let mut asking = pin!(counter.desk.read_missing(&missing));
        assert!(poll!(asking.as_mut()).is_pending());
        note_read(&counter, ended_now(is_read));
        drop(turn);
        assert_eq!(asking.await, is_read, "a read began while it waited");
        assert!(!counter.books.load().is_read(), "so it made none of its own");
    }
    note_read(&counter, failed_just_now());
    assert!(!counter.desk.read_missing(&missing).await);
    assert!(!counter.books.load().is_read());
    assert!(counter.desk.read_as_of(0).await, "a request for changed rules makes a read of its own");

    counter.books.store(Arc::default());
    note_read(&counter, failed_long_ago());
    assert!(counter.desk.read_missing(&missing).await);
    assert!(counter.books.load().is_read());
}

/// Otherwise submissions in SQL wait for the tries of others, although the failure answers for half a minute.
#[tokio::test]
async fn a_read_that_failed_lately_answers_beside_a_try_that_is_under_way() {
    let (counter, _test) = fresh().await;
    let missing = [QueueName::new("mail")];
    let _turn = counter.desk.inner.reading.turn.lock().await;
    for (last, answer) in
        [(failed_just_now(), Poll::Ready(false)), (failed_long_ago(), Poll::Pending), (ended_now(true), Poll::Pending)]
    {
        note_read(&counter, last);
        let mut asking = pin!(counter.desk.read_missing(&missing));
        assert_eq!(poll!(asking.as_mut()), answer, "{last:?}");
    }
}

/// On a node that has never read the queues, each batch and each stop would read them alone, one behind the other.
#[tokio::test]
async fn batches_of_messages_and_stops_that_wait_for_the_queues_share_a_read_that_fails() {
    let (counter, _test) = fresh().await;
    let headers = vec![("duetime-queue".into(), Field::Text("mail".into()))];
    let message =
        Message { properties: Properties { headers: Some(headers), ..Properties::default() }, ..Message::default() };
    let (batch, mail) = ([(None, &message)], QueueName::new("mail"));
    let turn = counter.desk.inner.reading.turn.lock().await;
    let mut receiving = pin!(counter.desk.receive(&batch));
    let mut stopping = pin!(counter.desk.expects_reports(&mail));
    assert!(poll!(receiving.as_mut()).is_pending());
    assert!(poll!(stopping.as_mut()).is_pending());
    note_read(&counter, ended_now(false));
    drop(turn);
    let taken = receiving.await;
    assert!(matches!(taken.as_slice(), [ReceiveOutcome::Again(_)]), "{taken:?}");
    let problem = stopping.await.expect_err("its policy is unknown");
    assert_eq!((problem.status, problem.retry_after_s), (503, Some(1)), "{problem}");
    assert!(!counter.books.load().is_read(), "neither made a read of its own");
}

#[tokio::test]
async fn where_queues_could_not_be_read_or_added_just_now_a_task_makes_no_queue_and_a_schedule_waits_for_its_own() {
    let (counter, test) = fresh().await;
    counter.desk.catch_up().await.expect("the queues can be read");
    let submit = async || counter.desk.submit(request(r#"{"queue":"mail","delay_ms":60000}"#)).await;
    let put = async || {
        let schedule = ScheduleRequest::parse(r#"{"queue":"mail","every_ms":3600000}"#).expect("a schedule");
        counter.desk.schedule_put(ScheduleName::new("hourly"), schedule).await
    };
    let failed = Some(failed_just_now());
    for last in [LastTries { read: failed, addition: None }, LastTries { read: None, addition: failed }] {
        note(&counter, last);
        submit().await.expect("its queue has the default policy");
        let problem = put().await.expect_err("it would never get its queue");
        assert_eq!((problem.status, problem.retry_after_s), (503, Some(1)), "{problem}");
        assert_eq!(stored_queues(&test).await, [""; 0]);
    }

    let addition = Some(failed_long_ago());
    note(&counter, LastTries { read: None, addition });
    submit().await.expect("accepted");
    assert_eq!(stored_queues(&test).await, ["mail"]);
}

/// Each try of its own would take two seconds, one after the other.
#[tokio::test]
async fn while_the_first_database_is_away_requests_that_miss_queues_wait_for_one_try_together() {
    let log = Log::keep();
    let counter = counter(vec![fixture::unreachable_database("main")], PLAIN);
    counter.books.store(Arc::new(QueueBook::new(1, [])));
    let queues: Vec<QueueName> = (0..8).map(|n| QueueName::new(format!("q{n}"))).collect();
    let unread = join_all(queues.iter().map(|queue| counter.desk.read_unknown([queue]))).await;
    assert!(unread.iter().all(|unread| unread.len() == 1), "{unread:?}");
    assert_eq!(log.count("the queues cannot be read"), 1);
    let created = join_all(queues.iter().map(|queue| counter.desk.create_missing(vec![queue.clone()]))).await;
    assert!(!created.contains(&true));
    assert_eq!(log.count("could not create the queues"), 1);
}
