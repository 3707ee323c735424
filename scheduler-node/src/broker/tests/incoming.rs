//! Messages that come back, and that come again until they are acknowledged.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use common::wire::amqp::{IN, REJECTED, RESULT_KEY, RESULTS, SUBMIT};
use futures::StreamExt;
use lapin::{
    BasicProperties,
    options::{
        BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions,
        ExchangeDeleteOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::json;
use tokio::time::timeout;

use super::{
    super::{
        Incoming, Source,
        connection::ANSWER_WITHIN,
        consumer::{INCOMING, PREFETCH},
    },
    bench::{Bench, Hand, LONG, batch, outgoing, route},
};
use crate::failures::tests::Log;

/// The columns of a queue's list that count what waits and what is without an answer.
const READY_AND_HELD: [&str; 2] = ["messages_ready", "messages_unacknowledged"];

fn report(correlation_id: &str, attempt: AMQPValue) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), attempt);
    BasicProperties::default().with_correlation_id(correlation_id.into()).with_headers(headers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_message_comes_back_with_its_id_and_the_reason() {
    let mut bench = Bench::new().await;
    let sent = outgoing("mail");
    let id = sent.delivery.id;
    bench.publish_once_ready(&route("mail"), vec![sent]).await;
    let hand = bench.hand().await;
    let got = hand.channel.basic_get("mail".into(), BasicGetOptions::default()).await.unwrap().unwrap();
    got.reject(BasicRejectOptions { requeue: false }).await.unwrap();

    let back = bench.next().await;
    assert_eq!(back.source, Source::Rejected);
    assert_eq!(back.reason.as_deref(), Some("rejected"));
    assert_eq!(back.message_id, Some(format!("{id}:1")));
    assert_eq!(back.correlation_id, Some(id.to_string()));
    assert_eq!(back.attempt_header, Some(1));
    assert_eq!(back.headers["x-death"][0]["queue"], json!("mail"));
    assert_eq!(back.body, br#"{"n":1}"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_ask_together_whether_many_reports_are_left_share_an_answer() {
    let bench = Bench::new().await;
    let ask = || bench.broker.has_many_reports();
    // Only a machine that stands still between the two asks them apart.
    let share = async {
        loop {
            let (one, another) = tokio::join!(ask(), ask());
            if one.is_some() && one == another {
                return;
            }
            // While the connection is away, asking does not wait, and the limit could never end this.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, share).await.expect("one answer serves both");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_read_whichever_integer_its_client_writes() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    let sevens = [
        AMQPValue::LongInt(7),
        AMQPValue::LongLongInt(7),
        AMQPValue::ShortShortUInt(7),
        AMQPValue::LongString("7".into()),
    ];
    for seven in sevens {
        hand.publish(RESULTS, b"{}", report("some-task", seven)).await;
        let back = bench.next().await;
        assert_eq!((back.source, back.attempt_header, back.reason), (Source::Results, Some(7), None));
        assert_eq!(back.correlation_id.as_deref(), Some("some-task"));
        back.ack.ack().await;
    }
    hand.publish(RESULTS, b"\xff", BasicProperties::default()).await;
    let bare = bench.next().await;
    assert_eq!((bare.message_id, bare.correlation_id, bare.attempt_header), (None, None, None));
    assert_eq!((bare.headers, bare.body), (json!({}), b"\xff".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_answered_in_a_queue_that_rabbitmq_named_and_in_no_other() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let mine = hand.channel.queue_declare("".into(), options, FieldTable::default()).await.unwrap().name().clone();
    for (reply_to, is_answered) in [(SUBMIT.into(), false), (mine.clone(), true)] {
        hand.publish(RESULTS, b"{}", report("some-task", AMQPValue::LongInt(1)).with_reply_to(reply_to)).await;
        let back = bench.next().await;
        assert_eq!(back.reply_to.is_some(), is_answered, "{:?}", back.reply_to);
        if let Some(reply_to) = &back.reply_to {
            reply_to.send("some-task", b"stop");
        }
        back.ack.ack().await;
    }
    let consume = hand.channel.basic_consume(mine, "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let answer = timeout(LONG, consume.await.unwrap().next()).await.expect("it is answered").unwrap().unwrap();
    assert_eq!((answer.properties.correlation_id(), &*answer.data), (&Some("some-task".into()), &b"stop"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_astray_in_a_queue_to_which_only_its_second_routing_key_leads() {
    let mut bench = Bench::new().await;
    let (mut received, hand) = (bench.broker.received(), bench.hand().await);
    for (key, second) in [("result.mail", "submit.mail"), ("submit.mail", "result.mail")] {
        let mut headers = FieldTable::default();
        headers.insert("BCC".into(), AMQPValue::FieldArray(vec![AMQPValue::LongString(second.into())].into()));
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default().with_headers(headers));
        hand.channel.basic_publish(IN.into(), key.into(), options, b"{}", properties).await.unwrap();
        let report = bench.next().await;
        let task = timeout(LONG, received.recv()).await.expect("it comes").expect("the broker lives");
        let is_report = key.starts_with(RESULT_KEY);
        assert_eq!((report.addressed_to.is_ok(), task.astray.is_some()), (is_report, is_report), "{key}");
        report.ack.ack().await;
        task.ack.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_acknowledged_comes_again_over_the_next_connection_and_nothing_else_does() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    for number in 0..200 {
        let id = format!("task-{number}");
        hand.publish(RESULTS, b"{}", report(&id, AMQPValue::LongInt(1))).await;
    }
    let mut arrived = Vec::new();
    for _ in 0..200 {
        arrived.push(bench.next().await);
    }
    until_listed(&bench, &["messages"], "200").await;
    let mut kept = HashSet::new();
    let mut stale = Vec::new();
    for (number, back) in arrived.into_iter().enumerate() {
        if number % 2 == 0 {
            back.ack.ack().await;
        } else {
            kept.insert(back.correlation_id.clone().unwrap());
            stale.push(back.ack);
        }
    }
    // The queue holds only the unacked messages: the acks have arrived.
    until_listed(&bench, &["messages"], "100").await;

    bench.drop_connections().await;
    let hand = bench.hand().await;
    let mut again = HashSet::new();
    while again.len() < kept.len() {
        let back = bench.next().await;
        again.insert(back.correlation_id.clone().unwrap());
        back.ack.ack().await;
    }
    assert_eq!(again, kept);
    // The handles of the lost connection do no harm to the messages of this one.
    for ack in stale {
        ack.ack().await;
    }
    hand.publish(RESULTS, b"{}", report("last", AMQPValue::LongInt(1))).await;
    assert_eq!(bench.next().await.correlation_id.as_deref(), Some("last"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_right_before_an_orderly_close_are_not_forgotten() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    let mut held = Vec::new();
    for number in 0..PREFETCH {
        hand.publish(RESULTS, b"{}", report(&format!("task-{number}"), AMQPValue::LongInt(1))).await;
        held.push(bench.next().await);
    }
    until_listed(&bench, &["messages"], &PREFETCH.to_string()).await;
    for back in held {
        back.ack.ack().await;
    }
    bench.broker.close().await;
    until_listed(&bench, &["messages"], "0").await;
}

/// The messages that a node of these tests holds beyond the usual ones.
const MORE: usize = 100;

/// Makes the node hold as many messages as usual, while so many more wait at the broker.
async fn hold_usual(bench: &mut Bench, hand: &Hand, more: usize) -> Vec<Incoming> {
    for number in 0..usize::from(PREFETCH) + more {
        hand.publish(RESULTS, b"{}", report(&format!("task-{number}"), AMQPValue::LongInt(1))).await;
    }
    let mut held = Vec::new();
    for _ in 0..PREFETCH {
        held.push(bench.next().await);
    }
    until_listed(bench, &READY_AND_HELD, &format!("{more}\t{PREFETCH}")).await;
    held
}

/// Makes the node hold as many messages as usual, and then [`MORE`], which come by the second consumer.
async fn hold_more(bench: &mut Bench, hand: &Hand) -> Vec<Incoming> {
    let mut held = hold_usual(bench, hand, MORE).await;
    bench.broker.hold_more(true);
    for _ in 0..MORE {
        held.push(bench.next().await);
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_holds_more_messages_than_usual_while_it_is_told_to() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    let held = hold_more(&mut bench, &hand).await;
    bench.broker.hold_more(false);
    hand.publish(RESULTS, b"{}", report("last", AMQPValue::LongInt(1))).await;
    until_listed(&bench, &READY_AND_HELD, &format!("1\t{}", held.len())).await;
    let ids: HashSet<Option<String>> = held.iter().map(|message| message.correlation_id.clone()).collect();
    assert_eq!(ids.len(), held.len(), "no message came twice");
    for message in held {
        message.ack.ack().await;
    }
    let last = bench.next().await;
    assert_eq!(last.correlation_id.as_deref(), Some("last"));
    last.ack.ack().await;
    until_listed(&bench, &["messages"], "0").await;
    until_consumers(&bench, 1).await;
}

/// Otherwise two outages one after the other would make a node hold more than its bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_consumer_comes_again_once_the_messages_of_the_last_one_are_answered() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    let mut usual = hold_more(&mut bench, &hand).await;
    let extra = usual.split_off(PREFETCH.into());
    bench.broker.hold_more(false);
    // Two changes before the node looks would be none.
    until_consumers(&bench, 1).await;

    bench.broker.hold_more(true);
    for id in ["next", "last"] {
        hand.publish(RESULTS, b"{}", report(id, AMQPValue::LongInt(1))).await;
    }
    usual.pop().unwrap().ack.ack().await;
    assert_eq!(bench.next().await.correlation_id.as_deref(), Some("next"));
    until_listed(&bench, &READY_AND_HELD, &format!("1\t{}", usize::from(PREFETCH) + MORE)).await;
    for message in extra {
        message.ack.ack().await;
    }
    assert_eq!(bench.next().await.correlation_id.as_deref(), Some("last"));
}

/// Suspends or resumes the queue of results, which is then as one without a leader.
async fn leader(bench: &Bench, verb: &str) {
    bench.rabbit.eval(&[format!("sys:{verb}('{}_{RESULTS}')", bench.vhost)]).await.unwrap();
}

/// RabbitMQ and a database may fail together, so the queue answers at some time of the database's outage.
///
/// On one thread, because only the log of this thread shows that the node has given up its first try.
#[tokio::test]
async fn a_queue_that_kept_silent_is_asked_for_more_again() {
    let (log, mut bench) = (Log::keep(), Bench::new().await);
    let hand = bench.hand().await;
    let mut held = hold_usual(&mut bench, &hand, MORE).await;
    leader(&bench, "suspend").await;
    bench.broker.hold_more(true);
    let given_up = async {
        while log.count("more of a queue cannot be read") == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, given_up).await.expect("the node gives up its first try");
    leader(&bench, "resume").await;
    for _ in 0..MORE {
        held.push(bench.next().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_second_consumer_has_not_handed_over_comes_again_however_late_its_end_is_answered() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    // More than the node hands over while these tests take none.
    let more = INCOMING + MORE;
    let mut usual = hold_usual(&mut bench, &hand, more).await;
    bench.broker.hold_more(true);
    until_listed(&bench, &READY_AND_HELD, &format!("0\t{}", usize::from(PREFETCH) + more)).await;
    let handed_over = async {
        while bench.incoming.len() < INCOMING {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, handed_over).await.expect("the second consumer is read");
    leader(&bench, "suspend").await;
    bench.broker.hold_more(false);
    // The node goes on to end the second consumer. As long as this message has no answer, its channel is open.
    let kept = bench.next().await;
    tokio::time::sleep(ANSWER_WITHIN + Duration::from_secs(1)).await;
    leader(&bench, "resume").await;

    let mut ids: HashSet<Option<String>> = HashSet::from([kept.correlation_id.clone()]);
    while ids.len() < usize::from(PREFETCH) + more {
        let message = match usual.pop() {
            Some(message) => message,
            None => bench.next().await,
        };
        ids.insert(message.correlation_id.clone());
        message.ack.ack().await;
    }
    kept.ack.ack().await;
    until_listed(&bench, &["messages"], "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_queues_deleted_by_hand_are_declared_and_consumed_again() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    for queue in [RESULTS, REJECTED] {
        hand.delete(queue).await;
        // Publishes until a message arrives: before the queue is back, messages are dropped.
        let mut every = tokio::time::interval(Duration::from_millis(100));
        let back = async {
            loop {
                tokio::select! {
                    _ = every.tick() => hand.publish(queue, b"{}", BasicProperties::default()).await,
                    back = bench.incoming.recv() => break back.unwrap(),
                }
            }
        };
        let back = timeout(LONG, back).await.unwrap_or_else(|_| panic!("{queue} is not consumed again"));
        back.ack.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_exchanges_deleted_by_hand_are_declared_and_bound_again() {
    let mut bench = Bench::new().await;
    let (mut incoming, mut received, hand) = (bench.take_incoming(), bench.broker.received(), bench.hand().await);
    for exchange in [REJECTED, IN] {
        hand.channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await.unwrap();
    }
    let publish = async |exchange: &str, key: &str| {
        // RabbitMQ closes the channel over an exchange that is missing.
        let hand = bench.hand().await;
        hand.channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        if let Ok(confirm) = hand.channel.basic_publish(exchange.into(), key.into(), options, b"{}", properties).await {
            let _ = confirm.await;
        }
    };
    let mut missing = BTreeSet::from(["rejected", "results", "submit"]);
    let mut every = tokio::time::interval(Duration::from_millis(500));
    let back = async {
        while !missing.is_empty() {
            tokio::select! {
                // Until the bindings are back too, messages are dropped.
                _ = every.tick() => for (exchange, key) in [(REJECTED, ""), (IN, "result.mail"), (IN, "submit.mail")] {
                    publish(exchange, key).await;
                },
                Some(back) = incoming.recv() => {
                    missing.remove(back.source.text());
                    back.ack.ack().await;
                }
                Some(task) = received.recv() => {
                    missing.remove("submit");
                    task.ack.ack().await;
                }
            }
        }
    };
    timeout(LONG, back).await.expect("rejections, reports and submissions come again");
    assert_eq!(bench.metrics.reconnects.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_lags_holds_messages_at_the_broker() {
    let mut bench = Bench::new().await;
    let hand = bench.hand().await;
    for number in 0..4_000 {
        let id = ShortString::from(number.to_string());
        hand.publish(RESULTS, b"{}", BasicProperties::default().with_correlation_id(id)).await;
    }
    let mut seen = HashSet::new();
    let mut waiting = Vec::new();
    for _ in 0..500 {
        waiting.push(bench.next().await);
    }
    // Without acks, no more than the prefetch leaves the broker.
    until_listed(&bench, &READY_AND_HELD, "3500\t500").await;
    assert!(bench.incoming.is_empty(), "more than the prefetch arrives");
    for back in waiting {
        seen.insert(back.correlation_id.unwrap());
        back.ack.ack().await;
    }
    while seen.len() < 4_000 {
        let back = bench.next().await;
        assert!(seen.insert(back.correlation_id.unwrap()), "each comes once");
        back.ack.ack().await;
    }
    assert_eq!(tally_done(&bench).await, 10, "and publishing goes on");
}

/// Waits until the broker lists these counts of the queue of results. They are some seconds old. So a test that waits
/// for counts which the queue may have had before first waits for those in between.
async fn until_listed(bench: &Bench, columns: &[&str], counts: &str) {
    let listing = [&["list_queues", "-p", &bench.vhost, "--no-table-headers", "name"], columns].concat();
    let wanted = format!("{RESULTS}\t{counts}");
    let mut listed = String::new();
    let wait = async {
        while !listed.lines().any(|line| line.trim() == wanted) {
            listed = bench.rabbit.ctl(&listing).await.unwrap();
        }
    };
    let waited = timeout(LONG, wait).await;
    waited.unwrap_or_else(|_| panic!("the broker does not list {wanted:?}: {listed}"));
}

/// Waits until so many consumers read the queue of results. The queue itself is asked. Its count in the list of queues
/// is some seconds old, and has consumers that have ended as long as they have messages without an answer.
async fn until_consumers(bench: &Bench, count: usize) {
    let listing = ["list_consumers", "-p", &bench.vhost, "queue_name"];
    let mut listed = String::new();
    let wait = async {
        while listed.is_empty() || listed.lines().filter(|line| line.trim() == RESULTS).count() != count {
            listed = bench.rabbit.ctl(&listing).await.unwrap();
        }
    };
    let waited = timeout(LONG, wait).await;
    waited.unwrap_or_else(|_| panic!("the broker does not list {count} consumers: {listed}"));
}

async fn tally_done(bench: &Bench) -> usize {
    let published = bench.broker.publish(&route("mail"), batch("mail", 10)).await;
    super::bench::tally(&published).done
}
