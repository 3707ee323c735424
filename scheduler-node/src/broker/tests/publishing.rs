//! Outcomes of published messages while the connection holds.

use std::{collections::HashSet, time::Duration};

use common::{ids::QueueName, outcome::Outcome, task::Delivery, time::UnixMicros};
use futures::{FutureExt, StreamExt, future::join_all};
use lapin::{
    ExchangeKind,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::time::timeout;

use super::{
    super::{NotTaken, Outgoing, Route},
    bench::{Bench, LONG, Tally, batch, outgoing, route, route_with_length, tally},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_messages_are_done_and_in_their_queue() {
    let bench = Bench::new().await;
    let sent = batch("mail", 1_000);
    let ids: Vec<_> = sent.iter().map(|of| of.delivery.id).collect();
    let published = bench.publish_once_ready(&route("mail"), sent).await;
    assert_eq!(tally(&published), Tally { done: 1_000, ..Tally::default() });
    assert!(published.iter().all(|of| of.sent_at.is_some()));
    assert_eq!(published.iter().map(|of| of.id).collect::<Vec<_>>(), ids, "in the order of the batch");
    let kept = bench.hand().await.take_all_but_copies("mail").await;
    assert_eq!(kept, ids.iter().map(|id| format!("{id}:1")).collect::<Vec<_>>(), "and so is the queue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_on_a_route_that_was_made_ready_declares_nothing_and_opens_no_channel() {
    let (bench, route) = (Bench::new().await, route("mail"));
    let free = || bench.broker.shared.publisher.load_full().map(|publisher| publisher.channels.count_free());
    let made_ready = async {
        loop {
            bench.broker.prepare(&route, 3).await;
            if free() >= Some(3) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, made_ready).await.expect("a busy broker needs more than one try");
    assert!(bench.broker.is_ready(&route, 3));
    let before = free();
    bench.broker.prepare(&route, 2).await;
    assert_eq!(free(), before, "there are enough");
    bench.hand().await.delete("mail").await;
    let published = bench.broker.publish(&route, batch("mail", 10)).await;
    assert_eq!(tally(&published), Tally { unroutable: 10, ..Tally::default() }, "the queue was there");
    assert!(free() >= before, "the batch has used one of them");
}

#[tokio::test]
async fn a_delivery_says_what_the_contract_says() {
    let bench = Bench::new().await;
    let plain = outgoing("mail");
    let delivery = Delivery {
        priority: 1,
        due_at: UnixMicros::new(1_800_000_000_123_456),
        key: Some("order-1".to_owned()),
        version: 3,
        partition_key: Some("customer-9".to_owned()),
        redelivered: true,
        envelope: None,
        ..plain.delivery
    };
    let receipt = Some("r".to_owned());
    let mut full = Outgoing { delivery, max_attempts: 4, wants_result: true, receipt, ..plain };
    full.delivery.content.headers.insert("traceparent".to_owned(), "00-ab-cd-01".to_owned());
    let id = full.delivery.id;
    bench.publish_once_ready(&route("mail"), vec![full]).await;

    let message = bench.hand().await.take("mail").await.expect("the message is there");
    let of = &message.properties;
    assert_eq!(message.data, br#"{"n":1}"#);
    assert_eq!(of.message_id().as_ref().unwrap().as_str(), format!("{id}:1"));
    assert_eq!(of.correlation_id().as_ref().unwrap().as_str(), id.to_string());
    assert_eq!(of.kind().as_ref().unwrap().as_str(), "mail");
    assert_eq!(of.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(of.reply_to().as_ref().unwrap().as_str(), "duetime.results");
    assert_eq!((*of.timestamp(), *of.priority(), *of.delivery_mode()), (Some(1_800_000_000), Some(5), Some(2)));
    let text = |text: &str| AMQPValue::LongString(text.into());
    let headers = of.headers().as_ref().unwrap().inner();
    let expected = [
        ("duetime-attempt", AMQPValue::LongLongInt(1)),
        ("duetime-max-attempts", AMQPValue::LongLongInt(4)),
        ("duetime-due-ms", AMQPValue::LongLongInt(1_800_000_000_123)),
        ("duetime-redelivered", AMQPValue::Boolean(true)),
        ("duetime-key", text("order-1")),
        ("duetime-version", AMQPValue::LongLongInt(3)),
        ("duetime-partition-key", text("customer-9")),
        ("traceparent", text("00-ab-cd-01")),
        ("duetime-receipt", text("r")),
    ];
    for (name, value) in &expected {
        assert_eq!(headers.get(*name), Some(value), "{name}");
    }
    // The broker adds headers of its own, all named `x-`.
    assert_eq!(headers.keys().filter(|name| !name.as_str().starts_with("x-")).count(), expected.len());
}

/// A headers exchange decides message by message, so one batch can have both outcomes.
async fn split(bench: &Bench) -> Route {
    let hand = bench.hand().await;
    let nothing = FieldTable::default;
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    hand.channel.exchange_declare("split".into(), ExchangeKind::Headers, durable, nothing()).await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    let mut quorum = nothing();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    hand.channel.queue_declare("kept".into(), durable, quorum).await.unwrap();
    let mut kept = nothing();
    kept.insert("fate".into(), AMQPValue::LongString("kept".into()));
    let options = QueueBindOptions::default();
    hand.channel.queue_bind("kept".into(), "split".into(), "".into(), options, kept).await.unwrap();
    Route { exchange: "split".to_owned(), routing_key: "any".to_owned(), declare: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unroutable_are_exactly_those_among_thousands_in_concurrent_batches() {
    let bench = Bench::new().await;
    let route = split(&bench).await;
    let mut lost_and_kept = (0, 0);
    let mut kept_ids = HashSet::new();
    for _ in 0..5 {
        let batches: Vec<Vec<Outgoing>> = (0..16)
            .map(|_| {
                let mut batch = batch("kept", 200);
                for message in &mut batch {
                    let fate = if rand::random_ratio(1, 10) { "lost" } else { "kept" };
                    message.delivery.content.headers.insert("fate".to_owned(), fate.to_owned());
                }
                batch
            })
            .collect();
        let publish = |batch: &Vec<Outgoing>| bench.broker.publish(&route, batch.clone()).boxed();
        let outcomes = join_all(batches.iter().map(publish)).await;
        for (sent, published) in batches.iter().flatten().zip(outcomes.iter().flatten()) {
            assert_eq!(sent.delivery.id, published.id);
            if sent.delivery.content.headers["fate"] == "lost" {
                assert_eq!(published.outcome, Outcome::Refused(NotTaken::Unroutable));
                lost_and_kept.0 += 1;
            } else {
                assert_eq!(published.outcome, Outcome::Done(()));
                lost_and_kept.1 += 1;
                kept_ids.insert(sent.delivery.message_id().to_string());
            }
        }
    }
    assert!(lost_and_kept.0 > 1_000 && lost_and_kept.1 > 10_000, "{lost_and_kept:?}");
    let in_queue: HashSet<String> = bench.hand().await.take_all("kept").await.into_iter().collect();
    assert_eq!(in_queue, kept_ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_hurts_only_its_own_batch() {
    let bench = Bench::new().await;
    let missing = Route { exchange: "nowhere".to_owned(), routing_key: "x".to_owned(), declare: None };
    let good = route("mail");
    bench.until_taken("mail").await;
    for _ in 0..10 {
        let (bad, first, second) = tokio::join!(
            bench.broker.publish(&missing, batch("x", 500)),
            bench.broker.publish(&good, batch("mail", 200)),
            bench.broker.publish(&good, batch("mail", 200)),
        );
        assert_eq!(tally(&bad), Tally { unknown: 500, ..Tally::default() });
        assert!(matches!(&bad[0].outcome, Outcome::Unknown(reason) if reason.contains("nowhere")), "{:?}", bad[0]);
        assert_eq!(tally(first.iter().chain(&second)), Tally { done: 400, ..Tally::default() });
    }
    assert_eq!(bench.metrics.reconnects.get(), 0);
}

#[tokio::test]
async fn a_full_queue_refuses_and_keeps_what_it_has_confirmed() {
    let bench = Bench::new().await;
    let route = route_with_length("small", 50);
    let mut all = Tally::default();
    for _ in 0..10 {
        let published = tally(&bench.publish_once_ready(&route, batch("small", 50)).await);
        all.done += published.done;
        all.nacked += published.nacked;
        assert_eq!(published.unroutable + published.unknown, 0);
    }
    // The limit is a soft one: messages on their way when it was reached are still taken.
    assert!(all.done >= 50 && all.nacked >= 300, "{all:?}");
    let kept = usize::try_from(bench.hand().await.depth("small").await).unwrap();
    assert!(kept >= all.done, "{kept} kept of {all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_deleted_under_load_is_declared_again() {
    let bench = Bench::new().await;
    let hand = bench.hand().await;
    let route = route("mail");
    for _ in 0..3 {
        bench.until_taken("mail").await;
        hand.delete("mail").await;
        let published = bench.broker.publish(&route, batch("mail", 100)).await;
        assert_eq!(tally(&published), Tally { unroutable: 100, ..Tally::default() });
    }
    let last = bench.until_taken("mail").await;
    let there = hand.take_all("mail").await;
    assert!(last.iter().all(|of| there.contains(&format!("{}:1", of.id))), "{there:?}");
    assert_eq!(bench.metrics.reconnects.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consumers_of_a_deleted_queue_hear_of_it_before_it_is_declared_again() {
    let bench = Bench::new().await;
    let (hand, consumer) = (bench.hand().await, bench.hand().await);
    bench.until_taken("mail").await;
    let consume = consumer.channel.basic_consume(
        "mail".into(),
        "told".into(),
        BasicConsumeOptions { no_ack: true, ..Default::default() },
        FieldTable::default(),
    );
    let messages = consume.await.unwrap();
    hand.delete("mail").await;
    assert_eq!(tally(&bench.broker.publish(&route("mail"), batch("mail", 10)).await).unroutable, 10);
    bench.until_taken("mail").await;
    let ended = messages.for_each(|_| std::future::ready(()));
    timeout(LONG, ended).await.expect("the broker has cancelled the consumer");
}

#[tokio::test]
async fn a_queue_that_somebody_else_has_declared_is_bound_and_used_only_when_an_operator_has_said_so() {
    let bench = Bench::new().await;
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    let hand = bench.hand().await;
    hand.channel.queue_declare("old".into(), durable, FieldTable::default()).await.unwrap();
    let refused = async {
        loop {
            let published = bench.broker.publish(&route("old"), batch("old", 10)).await;
            let Outcome::Unknown(why) = &published[0].outcome else { panic!("{published:?}") };
            assert!(published.iter().all(|one| one.sent_at.is_none()), "{why}");
            if why.contains("use_existing") {
                return;
            }
            // A busy broker may need longer to answer than a batch waits.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, refused).await.expect("the reason names what an operator can say");
    assert_eq!(hand.depth("old").await, 0);

    let mut allowed = route("old");
    allowed.declare.as_mut().unwrap().use_existing = true;
    let published = bench.publish_once_ready(&allowed, batch("old", 10)).await;
    assert_eq!(tally(&published).done, 10);
    assert_eq!(hand.take_all_but_copies("old").await.len(), 10);
}

#[tokio::test]
async fn a_queue_of_ours_whose_length_was_changed_is_still_ours() {
    let bench = Bench::new().await;
    for max_length in [10, 20] {
        let published = bench.publish_once_ready(&route_with_length("mail", max_length), batch("mail", 1)).await;
        assert_eq!(tally(&published).done, 1, "{published:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queues_at_once_are_declared_beside_one_another() {
    let bench = Bench::new().await;
    let queues: Vec<String> = (0..40).map(|number| format!("queue-{number}")).collect();
    let publish = queues.iter().map(|queue| async {
        // Publishes until the queue is there: a busy broker may need longer than one batch waits.
        loop {
            let published = bench.broker.publish(&route(queue), batch(queue, 3)).await;
            if tally(&published).done == 3 {
                break;
            }
        }
    });
    timeout(LONG, join_all(publish)).await.expect("all are declared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_lose_neither_their_batch_nor_a_channel() {
    let bench = Bench::new().await;
    let route = route("mail");
    bench.broker.publish(&route, batch("mail", 1)).await;
    for _ in 0..300 {
        // The first poll begins the publish; then it is dropped.
        assert!(bench.broker.publish(&route, batch("mail", 10)).now_or_never().is_none());
    }
    let hand = bench.hand().await;
    let all = async {
        while hand.depth("mail").await < 3_001 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, all).await.expect("every batch was sent to its end");
    assert_eq!(tally(&bench.broker.publish(&route, batch("mail", 10)).await).done, 10);
    assert_eq!(bench.metrics.reconnects.get(), 0);
}

#[tokio::test]
async fn a_name_that_amqp_cannot_carry_is_not_sent() {
    let bench = Bench::new().await;
    let long = "x".repeat(300);
    let route = Route { exchange: long.clone(), routing_key: "x".to_owned(), declare: None };
    let published = bench.broker.publish(&route, vec![outgoing("mail")]).await;
    assert!(matches!(published[0].outcome, Outcome::Unknown(_)) && published[0].sent_at.is_none());
    let mut message = outgoing("mail");
    message.delivery.queue = QueueName::new(&long);
    let published = bench.broker.publish(&super::bench::route("mail"), vec![message]).await;
    assert!(matches!(published[0].outcome, Outcome::Unknown(_)));
    assert!(bench.broker.publish(&super::bench::route("mail"), Vec::new()).await.is_empty());
}
