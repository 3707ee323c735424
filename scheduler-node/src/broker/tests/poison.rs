//! Messages that no client can parse, and messages that are too large, beside valid ones.

use std::time::Duration;

use common::{
    time::{Present, UnixMicros},
    wire::{
        Limits,
        amqp::{ASIDE_HEADERS, HEADER_ERROR, HEADER_PROPERTIES, INVALID, REJECTED, RESULTS, SUBMIT},
        screen::{Screen, TroubleKind},
    },
};
use integration_tests::raw_amqp::{self, RawAmqp, Sent};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable},
};
use rand::{SeedableRng, rngs::StdRng};
use tokio::{sync::mpsc, time::timeout};

use super::bench::{Bench, LONG};
use crate::{
    broker::{IntakeSource, Received, hold::HELD_BYTES},
    supervise::spawn_child,
};

/// Properties that no client can parse.
fn poisons() -> Vec<Vec<u8>> {
    vec![
        raw_amqp::headers(&raw_amqp::nested(b"n", raw_amqp::deepest(0))),
        raw_amqp::headers(&raw_amqp::nested(b"n", 1_500)),
        raw_amqp::headers(&raw_amqp::nested(b"n", 33)),
        raw_amqp::message_id(b"\xff\xfe"),
        raw_amqp::headers(&raw_amqp::text(b"caf\xe9", b"x")),
    ]
}

async fn next(received: &mut mpsc::Receiver<Received>) -> Received {
    timeout(LONG, received.recv()).await.expect("something comes in").expect("the broker lives")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_no_client_can_parse_costs_the_others_nothing() {
    let mut bench = Bench::with_delay_exchange("late").await;
    let mut received = bench.broker.received();
    let mut raw = RawAmqp::connect(bench.url()).await.unwrap();
    let mut sent = 0;
    for properties in poisons() {
        for queue in [SUBMIT, RESULTS, REJECTED] {
            let answer = raw.publish("", queue.as_bytes(), &properties, b"{}").await.unwrap();
            assert_eq!(answer, Sent::Confirmed);
        }
        assert_eq!(raw.publish("late", b"caf\xe9", &properties, b"{}").await.unwrap(), Sent::Confirmed);
        sent += 1;
    }
    assert_eq!(raw.publish("late", b"caf\xe9", &[0, 0], b"latin").await.unwrap(), Sent::Confirmed);
    for _ in 0..2 * sent {
        let back = bench.next().await;
        let trouble = back.trouble.expect("it cannot be read");
        assert_eq!((trouble.kind, back.body.as_slice()), (TroubleKind::Unreadable, &b"{}"[..]));
        back.ack.ack().await;
    }
    let mut counts = [0, 0];
    for _ in 0..=2 * sent {
        let message = next(&mut received).await;
        counts[usize::from(message.source != IntakeSource::Submit)] += 1;
        let trouble = message.trouble.as_ref().expect("it cannot be read");
        if message.source != IntakeSource::Submit {
            assert_eq!(trouble.routing_key.as_deref(), Some(&b"caf\xe9"[..]));
        }
        if trouble.is_cut {
            message.ack.reject().await;
        } else {
            let reason = trouble.reason.clone();
            bench.broker.set_aside(&message, &reason).await.unwrap();
            message.ack.ack().await;
        }
    }
    assert_eq!(counts, [sent, sent + 1]);
    // A valid message arrives, and the connections are still the first ones.
    let hand = bench.hand().await;
    hand.publish(SUBMIT, b"good", BasicProperties::default()).await;
    let good = next(&mut received).await;
    assert!(good.trouble.is_none() && good.message.body == b"good");
    good.ack.ack().await;
    assert_eq!(bench.metrics.reconnects.get(), 0);
    until_depth(&bench, INVALID, u32::try_from(2 * sent + 1).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_aside_unread_has_the_reason_and_its_properties_as_they_came() {
    let bench = Bench::new().await;
    let mut received = bench.broker.received();
    let mut raw = RawAmqp::connect(bench.url()).await.unwrap();
    let properties = raw_amqp::message_id(b"\xff");
    raw.publish("", SUBMIT.as_bytes(), &properties, b"body").await.unwrap();
    let message = next(&mut received).await;
    bench.broker.set_aside(&message, "for this reason").await.unwrap();
    let aside = bench.hand().await.take(INVALID).await.expect("it is there");
    let headers = aside.properties.headers().clone().unwrap();
    let text = |name: &str| match &headers.inner()[name] {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!((aside.data.as_slice(), text(HEADER_ERROR).as_str()), (&b"body"[..], "for this reason"));
    use base64::{Engine, engine::general_purpose::STANDARD};
    assert_eq!(STANDARD.decode(text(HEADER_PROPERTIES)).unwrap(), properties);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_set_aside_can_be_moved_back() {
    const QUEUE: &str = "duetime-queue";
    let bench = Bench::new().await;
    let (mut received, hand) = (bench.broker.received(), bench.hand().await);
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    headers.insert(QUEUE.into(), text("mail"));
    headers.insert("CC".into(), AMQPValue::FieldArray(FieldArray::from(vec![text("elsewhere")])));
    let properties = BasicProperties::default().with_headers(headers).with_expiration("600000".into());
    hand.publish(SUBMIT, b"{}", properties).await;

    let first = next(&mut received).await;
    let now = Present::exactly(UnixMicros::new(1_700_000_000_000_000));
    let refused = first.message.submitted(now, &Limits::default()).expect_err("CC is no text");
    bench.broker.set_aside(&first, &refused.to_string()).await.unwrap();
    first.ack.ack().await;
    let aside = hand.take(INVALID).await.expect("it is there");
    let added = aside.properties.headers().clone().unwrap();
    let mut added: Vec<&str> = added.inner().keys().map(|name| name.as_str()).filter(|name| *name != QUEUE).collect();
    // `x-` headers are RabbitMQ's, and passed over.
    added.retain(|name| !ASIDE_HEADERS.contains(name) && !name.starts_with("x-"));
    assert_eq!(added, Vec::<&str>::new(), "headers that would keep it from becoming a task");

    hand.publish(SUBMIT, &aside.data, aside.properties.clone()).await;
    let again = next(&mut received).await;
    let task = again.message.submitted(now, &Limits::default()).expect("it is a task now");
    assert_eq!((task.queue.as_str(), task.content.payload.as_slice()), ("mail", &b"{}"[..]));
    assert!(task.content.headers.is_empty(), "{:?}", task.content.headers);
    again.ack.ack().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_for_what_is_set_aside_is_declared_again_after_its_deletion() {
    let bench = Bench::new().await;
    let mut received = bench.broker.received();
    let hand = bench.hand().await;
    hand.publish(SUBMIT, b"no task", BasicProperties::default()).await;
    let message = next(&mut received).await;
    hand.delete(INVALID).await;
    let missed = bench.broker.set_aside(&message, "the first try").await.expect_err("the queue is missing");
    // A busy broker may answer too late, and declare the queue all the same.
    assert!(missed.contains("declared again") || missed.contains("no answer within"), "{missed}");
    let set_aside = async {
        while bench.broker.set_aside(&message, "the next try").await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, set_aside).await.expect("a new queue takes it once it has a leader");
    assert_eq!(hand.take(INVALID).await.expect("it is there").data, b"no task");
}

/// Without one, RabbitMQ 4 throws a message away after 20 looks at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_for_what_is_set_aside_has_a_delivery_limit_of_its_own() {
    let bench = Bench::new().await;
    let listed = bench.rabbit.ctl(&["list_queues", "-p", &bench.vhost, "name", "arguments"]).await.unwrap();
    let queue = listed.lines().find(|line| line.starts_with(INVALID)).expect("the queue is there");
    assert!(queue.contains("x-delivery-limit") && queue.contains("1000000"), "{queue}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_are_never_held_and_go_whole_where_a_person_finds_them() {
    let mut bench = Bench::new().await;
    let mut received = bench.broker.received();
    let mut raw = RawAmqp::connect(bench.url()).await.unwrap();
    let body = vec![b'x'; 8 << 20];
    for _ in 0..24 {
        assert_eq!(raw.publish("", SUBMIT.as_bytes(), &[0, 0], &body).await.unwrap(), Sent::Confirmed);
    }
    // A message that was given up counts by its id, however large it is.
    raw.publish("", REJECTED.as_bytes(), &raw_amqp::message_id(b"id"), &body).await.unwrap();
    for _ in 0..24 {
        let message = next(&mut received).await;
        let trouble = message.trouble.expect("it is too large");
        assert_eq!((trouble.kind, trouble.is_cut, message.message.body.len()), (TroubleKind::TooLarge, true, 0));
        message.ack.reject().await;
    }
    let rejected = bench.next().await;
    assert_eq!((rejected.message_id.as_deref(), rejected.trouble, rejected.body.len()), (Some("id"), None, 0));
    until_depth(&bench, INVALID, 24).await;
    let aside = bench.hand().await.take(INVALID).await.expect("it is there");
    assert_eq!(aside.data.len(), 8 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_messages_take_no_more_than_their_room_and_all_of_them_come() {
    let bench = Bench::new().await;
    let mut received = bench.broker.received();
    let mut raw = RawAmqp::connect(bench.url()).await.unwrap();
    let body = vec![b'x'; 1 << 20];
    let all = 3 * HELD_BYTES / body.len();
    for number in 0..all {
        let id = raw_amqp::message_id(number.to_string().as_bytes());
        assert_eq!(raw.publish("", SUBMIT.as_bytes(), &id, &body).await.unwrap(), Sent::Confirmed);
    }
    let mut seen = std::collections::BTreeSet::new();
    let (mut waiting, mut silences) = (Vec::new(), 0);
    while seen.len() < all {
        // Without answers, no more than the limit arrives.
        match timeout(Duration::from_secs(2), received.recv()).await {
            Ok(Some(message)) => {
                seen.insert(message.message.properties.message_id.clone().expect("it has an id"));
                waiting.push(message);
                let held: usize = waiting.iter().map(|of| of.message.body.len()).sum();
                assert!(held <= HELD_BYTES, "{held} bytes are held");
            }
            Ok(None) => panic!("the broker lives"),
            Err(_) => {
                silences += 1;
                assert!(silences < 60, "{} of {all} arrived", seen.len());
                for message in waiting.drain(..) {
                    message.ack.ack().await;
                }
            }
        }
    }
    assert_eq!(bench.metrics.reconnects.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_room_come_again_however_many_others_come_meanwhile() {
    const LARGE: usize = 20;
    let bench = Bench::new().await;
    let mut received = bench.broker.received();
    let mut raw = RawAmqp::connect(bench.url()).await.unwrap();
    let body = vec![b'x'; 1 << 20];
    for number in 0..LARGE {
        let id = raw_amqp::message_id(number.to_string().as_bytes());
        assert_eq!(raw.publish("", SUBMIT.as_bytes(), &id, &body).await.unwrap(), Sent::Confirmed);
    }
    let mut whole = Vec::new();
    while let Ok(message) = timeout(Duration::from_secs(2), received.recv()).await {
        whole.push(message.expect("the broker lives"));
    }
    assert!(whole.len() < LARGE, "all have room");
    let hand = bench.hand().await;
    let others = spawn_child(async move {
        loop {
            hand.publish(SUBMIT, b"{}", BasicProperties::default()).await;
        }
    });
    let mut seen = 0;
    for message in whole {
        seen += usize::from(message.message.body.len() == body.len());
        message.ack.ack().await;
    }
    let come_again = async {
        while seen < LARGE {
            let message = next(&mut received).await;
            seen += usize::from(message.message.body.len() == body.len());
            message.ack.ack().await;
        }
    };
    timeout(LONG, come_again).await.expect("those that had no room come again");
    others.abort();
}

/// The screen must stop everything over which the client gives up a connection, and pass everything that the
/// client reads.
#[test]
fn the_screen_and_the_client_agree_on_what_can_be_read() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let mut dice = StdRng::seed_from_u64(seed);
    let mut tally = [0, 0];
    for round in 0..50_000 {
        let properties = raw_amqp::random_properties(&mut dice, 0.2);
        let client = lapin::protocol::basic::parse_properties(&properties[..]);
        let client_reads = client.is_ok_and(|(rest, _)| rest.is_empty());
        let payload = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &properties].concat();
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&[2, 0, 1][..], &size, &payload, &[0xCE]].concat();
        let mut passes = false;
        Screen::default().feed(&frame, &mut Vec::new(), |arrival| {
            passes = arrival.trouble.is_none();
            true
        });
        assert_eq!(passes, client_reads, "round {round} of seed {seed}: {properties:02x?}");
        tally[usize::from(passes)] += 1;
    }
    assert!(tally.iter().all(|rounds| *rounds > 5_000), "{tally:?}");
}

async fn until_depth(bench: &Bench, queue: &str, depth: u32) {
    let hand = bench.hand().await;
    let reached = async {
        while hand.depth(queue).await != depth {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, reached).await.unwrap_or_else(|_| panic!("`{queue}` does not come to hold {depth} messages"));
}
