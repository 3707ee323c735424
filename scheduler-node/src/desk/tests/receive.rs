//! Tasks submitted over AMQP.

use common::{
    task::envelope::{Field, Properties},
    wire::{DelayRoute, Message},
};

use super::fresh;
use crate::desk::ReceiveOutcome;

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
