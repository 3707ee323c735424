mod given_back;
mod prolonged;

use std::sync::atomic::Ordering;

use common::{
    ids::{Epoch, QueueName, ShardId},
    queue::{Queue, QueueBook, QueuePolicy, ReceiptPolicy, Settle},
    shard::{ShardStatus, map::FenceRow},
    task::report::ReportStatus,
    wire::amqp::{IN, RESULT_KEY, RESULTS},
};
use futures::StreamExt;
use lapin::{
    BasicProperties,
    options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use prometheus::Registry;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    audit::AuditMetrics,
    broker::{Incoming, tests::bench},
    desk::tests::claim,
    loops::tests::{DELIVER, LONG, Loops, POISON, until},
    store::{
        Places,
        submit::Sending,
        tests::{fixture, new_task},
    },
    supervise::spawn_child,
    working_set::failures::tests::Log,
};

fn about(id: TaskId) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), AMQPValue::LongInt(1));
    BasicProperties::default().with_correlation_id(id.to_string().into()).with_headers(headers)
}

const SUCCEEDED: &[u8] = br#"{"status":"succeeded"}"#;

/// Starts a reporter with its lines.
pub(in crate::loops) fn start(reporter: Reporter, incoming: mpsc::Receiver<Incoming>) {
    let stop = CancellationToken::new();
    for _ in reporter.databases.all().iter() {
        spawn_child(reporter.add_line(stop.clone()));
    }
    spawn_child(reporter.run(incoming, stop));
}

#[tokio::test]
async fn an_attempt_that_is_retried_shows_nothing_of_the_archive() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let report = |status: &str| AttemptEvent::Reported {
        attempt: Attempt::new(1),
        body: Box::new(ResultBody::parse(&format!(r#"{{"status":"{status}"}}"#)).unwrap()),
        from: None,
    };
    let events = vec![(ids[0], report("failed")), (ids[2], report("succeeded"))];
    let answers = loops.reporter().apply_in_place(events, Patience::Long).await.unwrap();
    assert_eq!(answers.len(), 2);
    assert_eq!(finished(&answers), [ids[2]]);
}

#[tokio::test]
async fn the_progress_and_worker_of_a_last_report_stay_with_the_finished_task() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let report = |status: &str, progress: u8, worker: &str| {
        let body = format!(r#"{{"status":"{status}","progress":{progress},"worker":"{worker}"}}"#);
        let body = Box::new(ResultBody::parse(&body).unwrap());
        AttemptEvent::Reported { attempt: Attempt::new(1), body, from: None }
    };
    let events = vec![
        (ids[0], report("running", 40, "w1")),
        (ids[0], report("succeeded", 100, "w2")),
        (ids[2], report("discard", 7, "w3")),
    ];
    loops.reporter().apply_in_place(events, Patience::Long).await.unwrap();
    for (id, state, progress, worker) in [(ids[0], TaskState::Succeeded, 100, "w2"), (ids[2], TaskState::Dead, 7, "w3")]
    {
        let read = loops.test.database.task_read(id).await.unwrap().expect("it is kept");
        assert_eq!((read.state, read.progress, read.worker.as_deref()), (state, Some(progress), Some(worker)));
    }
}

/// Where a confirm or silence has ended a task, its consumer may still be at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_task_has_ended_is_told_to_stop_where_reports_end_tasks() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let policy = QueuePolicy { settle: Settle::Result, ..QueuePolicy::default() };
    let orders = Queue { policy, ..Queue::with_defaults(QueueName::new("orders")) };
    let silent = Queue::with_defaults(QueueName::new(POISON));
    loops.counter.books.store(Arc::new(QueueBook::new(1, [orders, silent])));
    let hand = bench.hand().await;
    start(loops.reporter(), bench.take_incoming());
    for id in [ids[0], ids[1]] {
        hand.publish(RESULTS, SUCCEEDED, about(id)).await;
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    }

    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let mine = hand.channel.queue_declare("".into(), exclusive, FieldTable::default()).await.unwrap().name().clone();
    let (options, no_arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut orders = hand.channel.basic_consume(mine.clone(), "".into(), options, no_arguments).await.unwrap();
    for (id, queue) in [(ids[1], POISON), (ids[0], "orders"), (ids[2], "orders")] {
        let (key, options) = (format!("{RESULT_KEY}{queue}"), BasicPublishOptions::default());
        let (body, properties) = (br#"{"status":"running"}"#, about(id).with_reply_to(mine.clone()));
        hand.channel.basic_publish(IN.into(), key.into(), options, body, properties).await.unwrap();
    }
    let told = tokio::time::timeout(LONG, orders.next()).await.expect("it is told").unwrap().unwrap();
    assert_eq!(told.properties.correlation_id(), &Some(ids[0].to_string().into()));
    until(|| async { loops.test.state_of(ids[2]).await.as_deref() == Some("running") }).await;
}

/// Waits until so many messages of the queue of results have no ack, and no others are left in it.
async fn until_unacked(bench: &bench::Bench, count: u32) {
    until(|| async {
        let words = ["list_queues", "--vhost", &bench.vhost, "name", "messages_unacknowledged", "messages"];
        let queues = bench.rabbit.ctl(&words).await.expect("rabbitmqctl lists the queues");
        queues.lines().any(|line| line == format!("{RESULTS}\t{count}\t{count}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_on_a_task_that_an_open_transaction_cancels_waits_and_other_reports_are_applied_and_acked() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    // The first attempt has failed. Its late success counts while the task waits for the second one.
    let failed = "UPDATE duetime.task SET state = 'scheduled', wake_at = now() + interval '1 h' WHERE id = $1";
    sqlx::query(failed).bind(ids[0].uuid()).execute(&loops.test.pool).await.unwrap();
    let mut application = loops.test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *application).await.unwrap();
    let cancel = sqlx::query("SELECT duetime.cancel($1)").bind(ids[0].uuid());
    assert_eq!(cancel.fetch_all(&mut *application).await.unwrap().len(), 1);
    let hand = bench.hand().await;
    start(loops.reporter(), bench.take_incoming());

    hand.publish(RESULTS, SUCCEEDED, about(ids[0])).await;
    loops.test.until_waiting(1).await;
    for id in [ids[1], ids[2]] {
        hand.publish(RESULTS, SUCCEEDED, about(id)).await;
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    }
    until_unacked(&bench, 1).await;
    // Another report on it stays behind the first.
    hand.publish(RESULTS, SUCCEEDED, about(ids[0])).await;
    until_unacked(&bench, 2).await;

    sqlx::raw_sql("ROLLBACK").execute(&mut *application).await.unwrap();
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
    until_unacked(&bench, 0).await;
}

/// The next messages that come back from the broker.
async fn next_of(bench: &mut bench::Bench, count: usize) -> Vec<Incoming> {
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        messages.push(bench.next().await);
    }
    messages
}

/// A line that has these reports. It goes on until its first end is dropped.
async fn line_with(
    bench: &mut bench::Bench,
    reports: &[(TaskId, ReportStatus)],
) -> (mpsc::Sender<incoming::ReadReport>, mpsc::Receiver<incoming::ReadReport>) {
    let (hand, (line, end)) = (bench.hand().await, mpsc::channel(reports.len()));
    for (id, status) in reports {
        hand.publish(RESULTS, b"", about(*id)).await;
        let body = Box::new(ResultBody::new(*status));
        let event = AttemptEvent::Reported { attempt: Attempt::new(1), body, from: None };
        let message = bench.next().await;
        let report = incoming::ReadReport { id: *id, event, message, is_kept: false, left_out: None };
        line.send(report).await.expect("the line has room");
    }
    (line, end)
}

/// Starts the line of the first database, which has these reports as its first batch. It goes on until the returned
/// end is dropped.
async fn start_line(
    loops: &Loops,
    bench: &mut bench::Bench,
    reports: &[(TaskId, ReportStatus)],
) -> mpsc::Sender<incoming::ReadReport> {
    let (line, end) = line_with(bench, reports).await;
    let reporter = loops.reporter();
    spawn_child(
        async move { reporter.apply_all(DatabaseIndex::HOME, end, (mpsc::channel(1).0, mpsc::channel(1).0)).await },
    );
    line
}

/// Applies a success beside a report of `status` on a task that another transaction holds, until the latter has put its
/// task into `state`.
async fn success_beside_a_locked_task(status: ReportStatus, state: &str) -> Loops {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let lock = loops.test.lock_row(ids[2]).await;
    let _line = start_line(&loops, &mut bench, &[(ids[0], ReportStatus::Succeeded), (ids[2], status)]).await;
    until_unacked(&bench, 1).await;
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("succeeded"));
    lock.release().await;
    until(|| async { loops.test.state_of(ids[2]).await.as_deref() == Some(state) }).await;
    loops
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_whose_partition_is_not_made_yet_waits_and_other_reports_are_applied_and_acked() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.keep_longer();
    let _line = start_line(&loops, &mut bench, &ids.map(|id| (id, ReportStatus::Succeeded))).await;
    for id in [ids[0], ids[2]] {
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    }
    until_unacked(&bench, 1).await;
    assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("dispatching"));
    assert!(!loops.database().leaves_messages(), "it takes writes");

    loops.make_what_is_kept_for_300_days().await;
    until(|| async { loops.test.state_of(ids[1]).await.as_deref() == Some("succeeded") }).await;
    until_unacked(&bench, 0).await;
}

#[tokio::test]
async fn a_deadline_whose_partition_is_not_made_yet_is_left_and_other_deadlines_end_their_tasks() {
    let loops = Loops::new().await;
    let mut ids = loops.claimed().await;
    loops.settle(ids, DELIVER).await;
    let overdue = "UPDATE duetime.task SET wake_at = now() - interval '1 s'";
    sqlx::raw_sql(overdue).execute(&loops.test.pool).await.unwrap();
    loops.keep_longer();
    let (first, missing, last) = (ids[0], ids[1], ids[2]);
    let left = loops.reporter().deadlines(DatabaseIndex::HOME, &mut ids).await;
    assert_eq!(left.failed.expect("one fails").0, [missing]);
    for id in [first, last] {
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some("succeeded"));
    }
}

/// In the last part of its move, no database takes writes for a shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_on_a_closed_shard_waits_until_it_is_open_and_reports_on_other_shards_are_applied_and_acked() {
    const CLOSED: ShardId = ShardId::new(1);
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let id = fixture::fresh_id_of(CLOSED);
    loops.test.database.task_submit(&[new_task(id)], Sending::First).await.unwrap();
    claim(&loops.counter, id).await;
    let set = async |status: &str| {
        let update = "UPDATE duetime.shard SET status = $2::duetime.shard_status, epoch = epoch + 1 WHERE id = $1";
        let update = sqlx::query(update).bind(i32::from(CLOSED.number())).bind(status.to_owned());
        update.execute(&loops.test.pool).await.unwrap();
    };
    // The node does not know it yet.
    set("gone").await;
    let reports = [id, ids[0], ids[2]].map(|id| (id, ReportStatus::Succeeded));
    let _line = start_line(&loops, &mut bench, &reports).await;
    for id in [ids[0], ids[2]] {
        until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    }
    until_unacked(&bench, 1).await;
    let places = loops.counter.databases.places();
    assert!(places.of(CLOSED).is_some_and(|place| !place.status.is_open()));

    set("here").await;
    places.refresh().await.unwrap();
    until(|| async { loops.test.state_of(id).await.as_deref() == Some("succeeded") }).await;
    until_unacked(&bench, 0).await;
}

/// It may be open in a database that this node cannot read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_on_a_shard_that_may_be_open_elsewhere_goes_back_after_a_while_and_one_on_a_closed_shard_waits() {
    let (loops, mut bench) = (Loops::new().await, bench::Bench::new().await);
    let [closed, nowhere] = [1, 2].map(|shard| fixture::fresh_id_of(ShardId::new(shard)));
    let close = "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1 WHERE id = 1;
                 DELETE FROM duetime.shard WHERE id = 2";
    sqlx::raw_sql(close).execute(&loops.test.pool).await.unwrap();
    let away = NodeDatabase { sql: fixture::unreachable_database("away"), ..loops.database().clone() };
    let row = FenceRow { shard: closed.shard(), status: ShardStatus::Gone, epoch: Epoch::NONE };
    for (others, waiting) in [(Vec::new(), vec![closed]), (vec![away], Vec::new())] {
        let databases: Vec<NodeDatabase> = std::iter::once(loops.database().clone()).chain(others).collect();
        let places = Places::new(databases.iter().map(|database| database.sql.clone()).collect());
        // Each of them was read before.
        places.tell(&[Some(vec![row]), Some(Vec::new())][..databases.len()]);
        let reporter = Reporter { databases: NodeDatabases::new(databases, places), ..loops.reporter() };
        let (mut batch, mut held) = (Vec::new(), Vec::new());
        for id in [closed, nowhere] {
            bench.hand().await.publish(RESULTS, SUCCEEDED, about(id)).await;
            let (event, mut message) = (AttemptEvent::Deadline, bench.next().await);
            message.arrived_at = message.arrived_at.checked_sub(AWAY_LONGEST).expect("a moment");
            batch.push(incoming::ReadReport { id, event, message, is_kept: false, left_out: None });
        }
        reporter.hold_closed(&mut batch, &mut held).await;
        assert!(batch.is_empty());
        assert_eq!(held.iter().map(|report| report.id).collect::<Vec<_>>(), waiting);
        let back = next_of(&mut bench, 2 - waiting.len()).await;
        assert!(back.iter().any(|message| message.correlation_id == Some(nowhere.to_string())));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_beside_a_heartbeat_of_a_locked_task_is_counted() {
    let metrics = success_beside_a_locked_task(ReportStatus::Running, "running").await.metrics;
    assert_eq!(metrics.finished_by_queue().get("orders"), Some(&1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_beside_a_failure_of_a_locked_task_is_counted() {
    let metrics = success_beside_a_locked_task(ReportStatus::Failed, "scheduled").await.metrics;
    assert_eq!(metrics.finished_by_queue().get("orders"), Some(&1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_nothing_vouches_for_delays_no_other_while_the_first_database_is_away() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let required = QueuePolicy { receipt: ReceiptPolicy::Required, ..QueuePolicy::default() };
    let guarded = Queue { policy: required, ..Queue::with_defaults(QueueName::new(POISON)) };
    let orders = Queue::with_defaults(QueueName::new("orders"));
    loops.counter.books.store(Arc::new(QueueBook::new(1, [orders, guarded])));
    // The tasks are in the second database.
    let away = NodeDatabase { sql: fixture::unreachable_database("away"), ..loops.database().clone() };
    let databases = vec![away, loops.database().clone()];
    let places = Places::new(databases.iter().map(|database| database.sql.clone()).collect());
    places.learn_shard_count(128);
    let here = FenceRow { shard: ShardId::new(0), status: ShardStatus::Here, epoch: Epoch::NONE };
    places.tell(&[None, Some(vec![here])]);
    let (audit, mut notes) = Audit::new(AuditMetrics::register(&Registry::new()).unwrap());
    let databases = NodeDatabases::new(databases, places);
    let hand = bench.hand().await;
    start(Reporter { databases, audit, ..loops.reporter() }, bench.take_incoming());

    hand.publish(RESULTS, SUCCEEDED, about(ids[1])).await;
    notes.recv().await.expect("it is refused, and the quarantine does not take it yet");
    hand.publish(RESULTS, SUCCEEDED, about(ids[0])).await;
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
    until_unacked(&bench, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_without_a_value_delays_no_other_while_the_quarantine_is_locked_and_is_acked_once_it_is_kept() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let mut holder = loops.test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.quarantine").execute(&mut *holder).await.unwrap();
    let hand = bench.hand().await;
    start(loops.reporter(), bench.take_incoming());

    hand.publish(RESULTS, br#"{"status":"running","progress":33.3}"#, about(ids[0])).await;
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("running") }).await;
    hand.publish(RESULTS, SUCCEEDED, about(ids[2])).await;
    until(|| async { loops.test.state_of(ids[2]).await.as_deref() == Some("succeeded") }).await;
    until_unacked(&bench, 1).await;

    sqlx::raw_sql("ROLLBACK").execute(&mut *holder).await.unwrap();
    until_unacked(&bench, 0).await;
    assert_eq!(loops.test.quarantine().await, [("results".to_owned(), Some(ids[0].to_string()))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_waits_until_the_place_of_its_shard_is_known() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let hand = bench.hand().await;
    let (incoming, arrivals) = bench.counted();
    // A node that has just started: the cluster has 128 shards, and their database has not told which it has.
    let places = Places::new(std::iter::once(loops.database().sql.clone()).collect());
    places.learn_shard_count(128);
    let databases = NodeDatabases::new(vec![loops.database().clone()], places.clone());
    start(Reporter { databases, ..loops.reporter() }, incoming);

    let nowhere = TaskId::mint(uuid::Uuid::nil(), ShardId::new(128));
    for id in [ids[0], nowhere] {
        hand.publish(RESULTS, br#"{"status":"succeeded"}"#, about(id)).await;
    }
    until(|| async { !loops.test.quarantine().await.is_empty() }).await;
    assert_eq!(loops.test.quarantine().await.len(), 1, "only the report on a shard that does not exist");
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("dispatching"));
    // The report goes back to the broker, and comes again, here because there is no other node.
    until(|| async { arrivals.load(Ordering::Relaxed) > 2 }).await;

    let here = FenceRow { shard: ShardId::new(0), status: ShardStatus::Here, epoch: Epoch::NONE };
    places.tell(&[Some(vec![here])]);
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
}

#[tokio::test]
async fn a_report_on_a_shard_that_has_moved_to_an_unknown_place_is_not_one_on_a_task_that_does_not_exist() {
    let loops = Loops::new().await;
    let id = loops.claimed().await[1];
    // The shard has left this database, and no other one that was read has it.
    loops.test.fail_with("DT001", "INSERT", "archive", "queue", POISON).await;
    sqlx::raw_sql("DELETE FROM duetime.shard WHERE id = 0").execute(&loops.test.pool).await.unwrap();
    let success = ResultBody::new(ReportStatus::Succeeded);
    let answer = loops.reporter().report(id, Attempt::new(1), success).await;
    assert!(answer.as_ref().is_err_and(Error::is_moved), "{answer:?}");
    assert_eq!(loops.counter.databases.places().of(id.shard()), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_keys_of_receipts_gives_reports_back_and_applies_them_once_it_has_the_keys() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let hand = bench.hand().await;
    let (incoming, arrivals) = bench.counted();
    let keys = watch::Sender::new(None);
    start(Reporter { receipts: keys.subscribe(), ..loops.reporter() }, incoming);

    hand.publish(RESULTS, SUCCEEDED, about(ids[0])).await;
    // It comes again, here because there is no other node.
    until(|| async { arrivals.load(Ordering::Relaxed) > 1 }).await;
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("dispatching"));

    keys.send_replace(Some(Arc::default()));
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
    assert!(loops.database().hearing.lock().must_ask(), "what waited meanwhile comes before deadlines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_cannot_be_trusted_go_back_to_the_broker_while_the_quarantine_takes_no_writes() {
    let (log, loops) = (Log::keep(), Loops::new().await);
    let (mut bench, reporter) = (bench::Bench::new().await, loops.reporter());
    let hand = bench.hand().await;
    loops.test.fill_disk("INSERT", "quarantine").await;
    let set_aside = async |messages: Vec<Incoming>, patience: Duration| {
        let (line, end) = mpsc::channel(messages.len());
        for message in messages {
            line.send((message, "nothing vouches for it".to_owned())).await.expect("the line has room");
        }
        drop(line);
        let settled = reporter.set_all_aside(loops.database(), end, patience);
        tokio::time::timeout(LONG, settled).await.expect("none is left in the line");
    };
    // The last of them waits behind a full batch.
    let count = incoming::ASIDE_BATCH + 1;
    for _ in 0..count {
        hand.publish(RESULTS, b"no JSON", BasicProperties::default()).await;
    }
    set_aside(next_of(&mut bench, count).await, Duration::from_millis(100)).await;
    assert_eq!(log.count("the quarantine table takes no writes"), 1, "the last one has no wait of its own");
    assert!(loops.database().leaves_messages());
    let again = next_of(&mut bench, count).await;
    assert!(loops.test.quarantine().await.is_empty());

    sqlx::raw_sql("DROP FUNCTION public.fill_disk() CASCADE").execute(&loops.test.pool).await.unwrap();
    set_aside(again, LONG).await;
    assert!(!loops.test.quarantine().await.is_empty());
    until_unacked(&bench, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_answers_and_takes_no_report_is_noted() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.test.fill_disk("INSERT", "archive").await;
    let hand = bench.hand().await;
    start(loops.reporter(), bench.take_incoming());
    hand.publish(RESULTS, SUCCEEDED, about(ids[0])).await;
    until(|| async { loops.database().leaves_messages() }).await;
}
