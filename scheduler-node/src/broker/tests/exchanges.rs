//! Delay exchanges that come and go on an open connection.

use std::{collections::BTreeSet, time::Duration};

use common::wire::amqp::ExchangeType;
use lapin::{BasicProperties, options::QueueDeclareOptions, types::FieldTable};
use tokio::time::timeout;

use super::bench::{Bench, Hand, LONG};
use crate::broker::{DelayExchange, IntakeSource, intake::RECEIVED};

const QUEUE: &str = "duetime.delay.late";

fn late() -> Vec<DelayExchange> {
    vec![DelayExchange { name: "late".to_owned(), kind: ExchangeType::Topic }]
}

/// Messages that wait in the queue, and its consumers.
async fn queue(hand: &Hand) -> (u32, u32) {
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let queue = hand.channel.queue_declare(QUEUE.into(), passive, FieldTable::default()).await.unwrap();
    (queue.message_count(), queue.consumer_count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_goes_gives_back_what_was_not_handed_over_and_nothing_comes_twice() {
    let bench = Bench::with_delay_exchange("late").await;
    let mut received = bench.broker.received();
    let hand = bench.hand().await;
    let sent = u32::try_from(RECEIVED).unwrap() + 500;
    for number in 0..sent {
        hand.publish(QUEUE, number.to_string().as_bytes(), BasicProperties::default()).await;
    }
    let mut taken = BTreeSet::new();
    let first = timeout(LONG, received.recv()).await.expect("the first comes").expect("the broker lives");
    assert_eq!(first.source, IntakeSource::Delay("late".into()));
    bench.broker.set_delay_exchanges(Vec::new());
    taken.insert(first.message.body.clone());
    first.ack.ack().await;
    let gone = async {
        // A quorum queue counts its consumer until the last message is answered.
        while queue(&hand).await.1 > 0 || !received.is_empty() {
            while let Ok(message) = received.try_recv() {
                assert!(taken.insert(message.message.body.clone()));
                message.ack.ack().await;
            }
        }
    };
    timeout(LONG, gone).await.expect("the reading ends");
    let rest = sent - u32::try_from(taken.len()).unwrap();
    assert!(rest > 0, "some had arrived and were not handed over");
    let back = async {
        while queue(&hand).await.0 != rest {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if timeout(LONG, back).await.is_err() {
        panic!("{rest} of {sent} are to go back, not {}", queue(&hand).await.0);
    }

    bench.broker.set_delay_exchanges(late());
    for _ in 0..rest {
        let message = timeout(LONG, received.recv()).await.expect("the rest comes").expect("the broker lives");
        assert!(taken.insert(message.message.body.clone()), "it came before");
        message.ack.ack().await;
    }
    assert_eq!(bench.metrics.reconnects.get(), 0);
}

/// Waits until so many delay exchanges are in trouble.
async fn until_troubled(bench: &Bench, count: usize) {
    let troubles = bench.broker.exchange_troubles();
    let reported = async {
        while troubles.reasons().len() != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, reported).await.unwrap_or_else(|_| panic!("not {count}: {:?}", troubles.reasons()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_whose_queue_another_connection_has_for_itself_is_reported_and_costs_no_connection() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    hand.channel.queue_declare(QUEUE.into(), exclusive, FieldTable::default()).await.unwrap();
    bench.broker.set_delay_exchanges(late());
    until_troubled(&bench, 1).await;
    let reasons = bench.broker.exchange_troubles().reasons();
    assert!(reasons[0].contains("RESOURCE_LOCKED") && reasons[0].contains("`late`"), "{reasons:?}");
    hand.publish("duetime.results", b"{}", BasicProperties::default()).await;
    bench.next().await;
    assert_eq!(bench.metrics.reconnects.get(), 0);
    drop(hand);
    until_troubled(&bench, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_whose_queue_does_not_answer_is_reported_and_the_connection_comes_up_all_the_same() {
    let mut bench = Bench::with_delay_exchange("late").await;
    let mut received = bench.broker.received();
    // As if the queue had no leader.
    let process = |verb: &str| [format!("sys:{verb}('{}_{QUEUE}')", bench.vhost)];
    bench.rabbit.eval(&process("suspend")).await.unwrap();
    bench.drop_connections().await;
    until_troubled(&bench, 1).await;
    bench.until_up().await;
    let hand = bench.hand().await;
    hand.publish("duetime.results", b"{}", BasicProperties::default()).await;
    let resumed = process("resume");
    bench.next().await;

    bench.rabbit.eval(&resumed).await.unwrap();
    until_troubled(&bench, 0).await;
    hand.publish(QUEUE, b"{}", BasicProperties::default()).await;
    timeout(LONG, received.recv()).await.expect("the queue is read again").expect("the broker lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_with_another_type_is_reported_until_it_is_gone_or_right() {
    let bench = Bench::with_delay_exchange("late").await;
    until_troubled(&bench, 0).await;
    let fanout = DelayExchange { name: "late".to_owned(), kind: ExchangeType::Fanout };
    bench.broker.set_delay_exchanges(vec![fanout]);
    until_troubled(&bench, 1).await;
    bench.broker.set_delay_exchanges(late());
    until_troubled(&bench, 0).await;
    bench.until_up().await;
    assert_eq!(bench.metrics.reconnects.get(), 0);
}
