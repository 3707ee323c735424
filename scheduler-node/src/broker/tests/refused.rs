//! Messages that RabbitMQ refuses by closing the channel, and their neighbours.

use std::collections::{BTreeMap, BTreeSet};

use common::{
    ids::MessageId,
    outcome::Outcome,
    task::{Envelope, envelope::Text},
};
use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};

use super::{
    super::{NotTaken, Outgoing, Route},
    bench::{Bench, Tally, batch, outgoing, route, tally, with_small_messages},
};

/// More rounds than the messages of a batch need: one together, and one alone.
const ROUNDS: usize = 4;

/// The messages of a batch, those that RabbitMQ took, and its reasons to refuse others.
#[derive(Debug, Default)]
struct Ended {
    taken: BTreeSet<MessageId>,
    refused: BTreeMap<MessageId, String>,
}

/// Publishes the batch, and again what has no outcome, as the publisher does.
async fn publish(bench: &Bench, route: &Route, mut batch: Vec<Outgoing>) -> Ended {
    let mut ended = Ended::default();
    for _ in 0..ROUNDS {
        bench.until_up().await;
        for one in bench.broker.publish(route, batch.clone()).await {
            let message = MessageId { id: one.id, attempt: one.attempt };
            match one.outcome {
                Outcome::Done(()) => assert!(ended.taken.insert(message)),
                Outcome::Refused(NotTaken::Unacceptable { reason }) => {
                    assert_eq!(ended.refused.insert(message, reason), None);
                }
                Outcome::Refused(_) | Outcome::Unknown(_) => continue,
            }
            batch.retain(|of| of.delivery.message_id() != message);
        }
        if batch.is_empty() {
            return ended;
        }
    }
    panic!("{} messages have no outcome after {ROUNDS} rounds: {ended:?}", batch.len());
}

/// A batch with one message of 2,000 bytes at `index`, and the id of that message.
fn one_large(len: usize, index: usize) -> (Vec<Outgoing>, MessageId) {
    let mut batch = batch("mail", len);
    batch[index].delivery.content.payload = vec![b'x'; 2_000];
    let id = batch[index].delivery.message_id();
    (batch, id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_is_refused_with_its_reason_and_its_neighbours_are_taken() {
    with_small_messages(async |bench| {
        bench.until_taken("mail").await;
        for (len, index) in [(10, 4), (10, 0), (10, 9), (250, 0)] {
            let (batch, large) = one_large(len, index);
            let ids: BTreeSet<MessageId> = batch.iter().map(|of| of.delivery.message_id()).collect();
            let ended = publish(bench, &route("mail"), batch).await;
            let reason = &ended.refused[&large];
            assert!(reason.contains("406 PRECONDITION_FAILED") && reason.contains("2000"), "{reason}");
            assert_eq!(ended.refused.len(), 1);
            assert_eq!(&ended.taken | &BTreeSet::from([large]), ids);
            let there: BTreeSet<String> = bench.hand().await.take_all("mail").await.into_iter().collect();
            assert!(ended.taken.iter().all(|id| there.contains(&id.to_string())), "it was taken and is not there");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_the_next_one_costs_no_neighbour_a_copy_and_no_connection() {
    with_small_messages(async |bench| {
        bench.until_taken("mail").await;
        publish(bench, &route("mail"), one_large(10, 4).0).await;
        bench.hand().await.take_all("mail").await;
        for _ in 0..5 {
            let connections = bench.metrics.reconnects.get();
            let (mut batch, _) = one_large(10, 4);
            batch[7].delivery.content.payload = vec![b'x'; 3_000];
            let tally = tally(&bench.broker.publish(&route("mail"), batch).await);
            if tally.unknown > 0 {
                // On a busy machine the messages one by one may take so long that the rest is not sent.
                bench.until_up().await;
                bench.hand().await.take_all("mail").await;
                continue;
            }
            assert_eq!(tally, Tally { done: 8, unacceptable: 2, ..Tally::default() });
            assert_eq!(bench.hand().await.take_all_but_copies("mail").await.len(), 8);
            assert_eq!(bench.metrics.reconnects.get(), connections);
            return;
        }
        panic!("some neighbours have no outcome each time");
    })
    .await;
}

/// The exchange `forward`, with a queue behind it that takes every message.
pub(super) async fn forward(bench: &Bench) -> Route {
    let hand = bench.hand().await;
    let nothing = FieldTable::default;
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    hand.channel.exchange_declare("forward".into(), ExchangeKind::Topic, durable, nothing()).await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    hand.channel.queue_declare("kept".into(), durable, nothing()).await.unwrap();
    let options = QueueBindOptions::default();
    hand.channel.queue_bind("kept".into(), "forward".into(), "#".into(), options, nothing()).await.unwrap();
    Route { exchange: "forward".to_owned(), routing_key: String::new(), declare: None }
}

/// A message that goes on to `forward` as it came.
fn forwarded(routing_key: &str) -> Outgoing {
    let mut message = outgoing("late");
    let routing_key = Text::from(routing_key);
    let envelope = Envelope { exchange: "forward".to_owned(), routing_key, ..Envelope::default() };
    message.delivery.envelope = Some(Box::new(envelope));
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_routing_key_is_forbidden_is_refused_and_the_others_are_forwarded() {
    let bench = Bench::new().await;
    let route = forward(&bench).await;
    let words = ["set_topic_permissions", "-p", &bench.vhost, "guest", "forward", "^open", ".*"];
    bench.rabbit.ctl(&words).await.unwrap();
    let mut batch: Vec<Outgoing> = (0..10).map(|number| forwarded(&format!("open.{number}"))).collect();
    batch[4] = forwarded("secret");
    let secret = batch[4].delivery.message_id();
    let ended = publish(&bench, &route, batch).await;
    assert!(ended.refused[&secret].contains("topic 'secret'"), "{ended:?}");
    assert_eq!((ended.refused.len(), ended.taken.len()), (1, 9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_the_user_may_not_write_to_refuses_no_message_for_good() {
    let bench = Bench::new().await;
    let route = forward(&bench).await;
    let words = ["set_permissions", "-p", &bench.vhost, "guest", ".*", "^(?!forward)", ".*"];
    bench.rabbit.ctl(&words).await.unwrap();
    for len in [1, 10, 1] {
        let batch: Vec<Outgoing> = std::iter::repeat_with(|| forwarded("open")).take(len).collect();
        let published = bench.broker.publish(&route, batch).await;
        assert_eq!(tally(&published), Tally { unknown: len, ..Tally::default() }, "{published:?}");
        assert!(matches!(&published[0].outcome, Outcome::Unknown(why) if why.contains("refused")), "{published:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_the_user_may_not_declare_says_so_and_not_that_it_exists() {
    let bench = Bench::new().await;
    let words = ["set_permissions", "-p", &bench.vhost, "guest", "^(?!mail$)", ".*", ".*"];
    bench.rabbit.ctl(&words).await.unwrap();
    let published = bench.broker.publish(&route("mail"), batch("mail", 1)).await;
    let may_not = "this user may not declare the queue `mail`";
    assert!(matches!(&published[0].outcome, Outcome::Unknown(why) if why.contains(may_not)), "{published:?}");
}
