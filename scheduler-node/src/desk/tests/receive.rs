//! Tasks submitted over AMQP.

use std::sync::Arc;

use common::{
    ids::QueueName,
    queue::{Queue, QueueBook},
    task::envelope::{Field, Properties},
    wire::{DelayRoute, Message, QueueRequest},
};

use super::{PLAIN, Setup, counter, fresh, hide_queues, reading::forget_tries, upper_half};
use crate::{desk::ReceiveOutcome, store::tests::fixture};

fn message(headers: &[(&str, Field)]) -> Message {
    let headers = headers.iter().map(|(name, field)| ((*name).into(), field.clone())).collect();
    Message { properties: Properties { headers: Some(headers), ..Properties::default() }, ..Message::default() }
}

#[tokio::test]
async fn each_message_gets_its_own_answer_and_one_on_its_way_makes_no_queue() {
    let (counter, test) = fresh().await;
    let way = DelayRoute::new("orders.delayed", "orders");
    let delayed = message(&[("x-delay", Field::I32(60_000))]);
    let broken = message(&[("x-delay", Field::Text("soon".into()))]);
    let own = message(&[("duetime-queue", Field::Text("mail".into()))]);
    let batch = [(Some(&way), &delayed), (Some(&way), &broken), (None, &own), (None, &delayed)];
    let taken = counter.desk.receive(&batch).await;
    assert!(
        matches!(
            taken.as_slice(),
            [ReceiveOutcome::Durable, ReceiveOutcome::Refused(_), ReceiveOutcome::Durable, ReceiveOutcome::Refused(_)]
        ),
        "{taken:?}"
    );
    let (_, queues) = test.database.queue_read().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["mail"]);
}

#[tokio::test]
async fn a_message_that_comes_twice_is_one_task_if_it_has_an_id() {
    let (counter, test) = fresh().await;
    let own = message(&[("duetime-queue", Field::Text("mail".into()))]);
    let known = Message { properties: Properties { message_id: Some("m-1".into()), ..own.properties }, ..own };
    for _ in 0..2 {
        assert_eq!(counter.desk.receive(&[(None, &known)]).await, [ReceiveOutcome::Durable]);
    }
    let tasks: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.task").fetch_one(&test.pool).await.unwrap();
    assert_eq!(tasks, 1);
}

#[tokio::test]
async fn messages_come_again_while_their_queues_cannot_be_read() {
    let (plain, test) = fresh().await;
    let made = async |name: &str| {
        plain.desk.queue_put(QueueName::new(name), QueueRequest::default()).await.expect("made on another node");
    };
    made("mail").await;
    let of = |queue: &str| message(&[("duetime-queue", Field::Text(queue.into()))]);
    let (mail, later) = (of("mail"), of("later"));
    let way = DelayRoute::new("orders.delayed", "orders");
    let delayed = message(&[("x-delay", Field::I32(60_000))]);
    for auto_create in [true, false] {
        let started = counter(vec![Arc::clone(&test.database)], Setup { auto_create, ..PLAIN });
        let batch = [(None, &mail), (Some(&way), &delayed)];
        hide_queues(&test, true).await;
        let taken = started.desk.receive(&batch).await;
        assert!(matches!(taken.as_slice(), [ReceiveOutcome::Again(_), ReceiveOutcome::Again(_)]), "{taken:?}");
        hide_queues(&test, false).await;
        assert_eq!(started.desk.receive(&batch).await, [ReceiveOutcome::Durable, ReceiveOutcome::Durable]);
    }
    // A node that has read the queues before one was made.
    let running = counter(vec![Arc::clone(&test.database)], Setup { auto_create: false, ..PLAIN });
    assert_eq!(running.desk.receive(&[(None, &mail)]).await, [ReceiveOutcome::Durable]);
    made("later").await;
    hide_queues(&test, true).await;
    let taken = running.desk.receive(&[(None, &mail), (None, &later)]).await;
    assert!(matches!(taken.as_slice(), [ReceiveOutcome::Durable, ReceiveOutcome::Again(_)]), "{taken:?}");
    hide_queues(&test, false).await;
    forget_tries(&running);
    assert_eq!(running.desk.receive(&[(None, &later)]).await, [ReceiveOutcome::Durable]);
}

#[tokio::test]
async fn messages_come_again_until_the_first_database_has_told_the_time() {
    let east = fixture::database().await;
    east.keep_shards(upper_half()).await;
    let databases = vec![fixture::unreachable_database("main"), fixture::named("east", &east.url)];
    let counter = counter(databases, PLAIN);
    counter.books.store(Arc::new(QueueBook::new(1, [Queue::with_defaults(QueueName::new("mail"))])));
    let (way, delayed) = (DelayRoute::new("late", "orders"), message(&[("x-delay", Field::I32(60_000))]));
    // Enough that some are for the database that answers.
    let taken = counter.desk.receive(&[(Some(&way), &delayed); 20]).await;
    assert!(taken.iter().all(|outcome| matches!(outcome, ReceiveOutcome::Again(_))), "{taken:?}");
    assert_eq!((taken.len(), east.live().await), (20, 0));
}
