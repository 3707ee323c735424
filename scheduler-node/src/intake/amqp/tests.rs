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
    desk::tests::fresh,
    working_set::{delay_rules::DelayRule, failures::tests::Log},
};

#[tokio::test]
async fn messages_that_are_returned_again_and_again_have_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, test) = fresh().await;
    test.fill_disk("INSERT", "task").await;
    let bench = Bench::new().await;
    let intake = AmqpIntake {
        desk: counter.desk.clone(),
        broker: bench.broker.clone(),
        store: counter.store.clone(),
        delay_rules: DelayRules::new([]),
        default_exchange: true,
        audit: Audit::new(AuditMetrics::register(&Registry::new()).unwrap()).0,
        metrics: Arc::new(Metrics::register(&Registry::new()).unwrap()),
        set_aside: SetAside::default(),
        returned: Failures::default(),
    };
    let (received, stop) = (bench.broker.received(), CancellationToken::new());
    let running = spawn_child(intake.run(received, stop.clone()));
    let mut headers = FieldTable::default();
    headers.insert("duetime-queue".into(), AMQPValue::LongString("mails".into()));
    bench.hand().await.publish(SUBMIT, b"{}", BasicProperties::default().with_headers(headers)).await;
    let returned = async {
        while log.count("returned submitted messages to the broker for redelivery") < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, returned).await.expect("the message is delivered and returned again");
    assert_eq!(log.count("WARN scheduler_node::intake::amqp"), 1);
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
