use common::{
    ids::{ShardId, TaskId},
    queue::Unroutable,
    task::TaskState,
    wire::DelayRoute,
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use prometheus::Registry;

use super::*;
use crate::{
    audit::AuditMetrics,
    broker::tests::bench::{Bench, LONG},
    desk::tests::{Counter, fresh},
    working_set::{delay_rules::DelayRule, failures::tests::Log},
};

fn intake(counter: &Counter, bench: &Bench) -> AmqpIntake {
    AmqpIntake {
        desk: counter.desk.clone(),
        broker: bench.broker.clone(),
        store: counter.store.clone(),
        delay_rules: DelayRules::new([]),
        default_exchange: true,
        audit: Audit::new(AuditMetrics::register(&Registry::new()).unwrap()).0,
        metrics: Arc::new(Metrics::register(&Registry::new()).unwrap()),
        set_aside: SetAside::default(),
        returned: Failures::default(),
        unfit: Failures::default(),
    }
}

/// A message for the queue `mails`, with this further header.
fn to_mails(name: &str, value: &str) -> BasicProperties {
    to("mails", name, value)
}

fn to(queue: &str, name: &str, value: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in [("duetime-queue", queue), (name, value)] {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    BasicProperties::default().with_headers(headers)
}

async fn until_said(log: &Log, text: &str, lines: usize) {
    let said = async {
        while log.count(text) < lines {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, said).await.unwrap_or_else(|_| panic!("{} of {lines} lines: {text}", log.count(text)));
}

#[tokio::test]
async fn messages_that_are_returned_again_and_again_have_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    test.fill_disk("INSERT", "task").await;
    let bench = Bench::new().await;
    let (received, stop) = (bench.broker.received(), CancellationToken::new());
    let running = spawn_child(intake(&counter, &bench).run(received, stop.clone()));
    bench.hand().await.publish(SUBMIT, b"{}", to_mails("duetime-delay-ms", "1")).await;
    until_said(&log, "returned submitted messages to the broker for redelivery", 3).await;
    assert_eq!(log.count("WARN scheduler_node::intake::amqp"), 1);
    stop.cancel();
    tokio::time::timeout(LONG, running).await.expect("the intake ends").unwrap();
}

#[tokio::test]
async fn messages_that_cannot_be_tasks_have_one_line_in_the_log_of_no_great_length() {
    const BEYOND_THE_RATE: usize = 100;
    let log = Log::keep();
    let (counter, _test) = fresh().await;
    let policy = serde_json::from_str(r#"{"max_submits_per_second":1}"#).expect("a policy");
    counter.desk.queue_put(QueueName::new("mails"), policy).await.expect("there is room");
    let bench = Bench::new().await;
    let (received, stop) = (bench.broker.received(), CancellationToken::new());
    let running = spawn_child(intake(&counter, &bench).run(received, stop.clone()));
    let hand = bench.hand().await;
    // Some of each part are within the rate.
    for part in 1..=2 {
        for _ in 0..BEYOND_THE_RATE {
            hand.publish(SUBMIT, b"{}", to_mails("duetime-delay-ms", "60000")).await;
        }
        until_said(&log, "set aside a message that cannot be a task", part * BEYOND_THE_RATE / 2).await;
    }
    hand.publish(SUBMIT, b"{}", to_mails("duetime-on-duplicate", &"x".repeat(100_000))).await;
    until_said(&log, "`duetime-on-duplicate`", 1).await;
    assert_eq!(log.count("set messages aside that cannot be tasks"), 1);
    assert!(log.longest() < 8 << 10, "{}", log.longest());
    stop.cancel();
    tokio::time::timeout(LONG, running).await.expect("the intake ends").unwrap();
}

#[tokio::test]
async fn a_message_that_fails_alone_as_with_a_bug_is_set_aside_after_a_while_and_not_returned() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    test.fail_with("42703", "INSERT", "task", "queue", "poison").await;
    let bench = Bench::new().await;
    let (received, stop) = (bench.broker.received(), CancellationToken::new());
    let hand = bench.hand().await;
    for queue in ["poison", "mails"] {
        hand.publish(SUBMIT, b"{}", to(queue, "duetime-delay-ms", "60000")).await;
    }
    let both_wait = async {
        while received.len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, both_wait).await.expect("both arrive, and share one insert");
    let intake = intake(&counter, &bench);
    let set_aside = intake.set_aside.clone();
    let running = spawn_child(intake.run(received, stop.clone()));
    until_said(&log, "set aside a message that cannot be a task", 1).await;
    assert_eq!((test.live().await, set_aside.count(Kind::Submission)), (1, 1));
    assert_eq!(log.count("returned submitted messages to the broker"), 0);
    stop.cancel();
    tokio::time::timeout(LONG, running).await.expect("the intake ends").unwrap();
}

#[test]
fn a_duplicate_that_was_delivered_before_is_set_aside_with_a_hint_at_its_own_task() {
    let duplicate = Problem::duplicate(TaskId::mint(uuid::Uuid::nil(), ShardId::new(1)), TaskState::Scheduled);
    let why = |problem, redelivered| explained(problem, &Message { redelivered, ..Message::default() });
    assert!(why(&duplicate, true).contains("may be its own"));
    for (problem, redelivered) in [(&duplicate, false), (&Problem::invalid_field("queue", "no"), true)] {
        assert_eq!(why(problem, redelivered), problem.to_string());
    }
}

/// Without this it would count as a submission of Duetime's own form, and be set aside.
#[test]
fn a_message_of_an_exchange_that_is_gone_waits_at_the_broker() {
    let rule = |exchange: &str| DelayRule {
        exchange: exchange.to_owned(),
        route: DelayRoute::new(exchange, "orders"),
        unroutable: Unroutable::Drop,
    };
    let rules = DelayRules::new([rule("late")]);
    let (late, before) = (IntakeSource::Delay("late".into()), rules.now());
    assert!(is_known(&late, &before) && is_known(&IntakeSource::Submit, &before));
    rules.replace([rule("later")]);
    assert!(!is_known(&late, &rules.now()) && is_known(&late, &before), "a pass keeps the rules that it began with");
    assert_eq!(rules.unroutable(&DelayRoute::new("later", "").queue), Some(Unroutable::Drop));
    assert_eq!(rules.unroutable(&DelayRoute::new("late", "").queue), None);
}
