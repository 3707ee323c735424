//! Tests of a relay at a real RabbitMQ.

use std::{collections::BTreeMap, path::Path};

use common::{
    ids::{ShardId, TaskId},
    task::trace::{HEADER_TRACEPARENT, HEADER_TRACESTATE, MAX_TRACESTATE_BYTES},
    wire::amqp::{HEADER_ATTEMPT, HEADER_MESSAGE_ID, IN, RESULTS, result_key},
};
use futures::future::join_all;
use integration_tests::sandbox::free_port;
use lapin::{
    BasicProperties,
    options::QueueBindOptions,
    types::{AMQPValue, FieldTable},
};
use tokio::time::timeout;

use super::*;
use crate::{
    broker::{
        Source, Subject,
        tests::bench::{Bench, Hand, LONG},
    },
    working_set::failures::tests::Log,
};

const QUEUE: &str = "jobs";
const CONCURRENCY: u16 = 8;

/// A bench with an empty queue of the relay, and the URL of a user with the rights that docs/security.md recommends
/// for a relay of this queue.
async fn bench() -> (Bench, Hand, String) {
    let bench = Bench::new().await;
    bench.until_taken(QUEUE).await;
    let hand = bench.hand().await;
    hand.take_all(QUEUE).await;
    let (vhost, user) = (bench.vhost.as_str(), format!("relay-{}", bench.vhost));
    for words in [
        &["add_user", &user, "unused"][..],
        &["set_permissions", "-p", vhost, &user, "^$", r"^duetime\.in$", "^jobs$"],
        &["set_topic_permissions", "-p", vhost, &user, "duetime.in", r"^result\.jobs$", "^$"],
    ] {
        bench.rabbit.ctl(words).await.unwrap();
    }
    let url = bench.rabbit.url(vhost).replacen("guest:guest", &format!("{user}:unused"), 1);
    (bench, hand, url)
}

/// Puts a message into the relay's queue that wants its report under the queue's name `kind`.
async fn publish(hand: &Hand, task: &str, kind: &str) {
    let mut headers = FieldTable::default();
    headers.insert(HEADER_ATTEMPT.into(), 1.into());
    let properties = BasicProperties::default()
        .with_correlation_id(task.into())
        .with_reply_to(RESULTS.into())
        .with_type(kind.into())
        .with_headers(headers);
    hand.publish(QUEUE, b"{}", properties).await;
}

/// The settings of a relay that runs a line of the shell.
fn settings(url: String, line: &str, concurrency: u16) -> Settings {
    Settings {
        amqp: Login::new(url.into()),
        queue: QueueName::new(QUEUE),
        target: Target::Command(Command {
            program: "sh".into(),
            args: vec!["-c".into(), line.into()],
            environment: Vec::new(),
            identity: None,
            timeout: LONG,
        }),
        concurrency,
        break_after: 1,
        heartbeat: LONG,
        grace: LONG,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_whose_reports_are_refused_are_rejected_and_hold_up_no_other_task() {
    let (mut bench, hand, url) = bench().await;
    let (too_long, not_allowed) = ("x".repeat(250), "elsewhere");
    let mut expected = BTreeMap::from([("ordinary".to_owned(), Source::Results)]);
    for number in 0..CONCURRENCY {
        let task = format!("refused-{number}");
        publish(&hand, &task, if number % 2 == 0 { &too_long } else { not_allowed }).await;
        expected.insert(task, Source::Rejected);
    }
    publish(&hand, "ordinary", QUEUE).await;

    let settings = settings(url, "true", CONCURRENCY);
    let stop = CancellationToken::new();
    let relay = crate::supervise::spawn_child(run(settings, stop.clone(), CancellationToken::new()));
    let mut came = BTreeMap::new();
    while came.len() < expected.len() {
        let back = bench.next().await;
        came.insert(back.correlation_id.clone().unwrap(), back.source);
        back.ack.ack().await;
    }
    assert_eq!(came, expected);
    stop.cancel();
    timeout(LONG, relay).await.expect("the relay stops").unwrap();
    assert_eq!(hand.depth(QUEUE).await, 0, "no message came back to the queue");
}

/// On one thread, so that the log has the lines of all reports.
#[tokio::test]
async fn a_relay_that_may_not_report_keeps_finished_tasks_until_it_may_and_does_none_twice() {
    const TASKS: usize = 3;
    let (mut bench, hand, url) = bench().await;
    may_write(&bench, "^$").await;
    for number in 0..TASKS {
        publish(&hand, &format!("task-{number}"), QUEUE).await;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = format!("echo done >> {}", file.path().display());
    let (log, stop) = (Log::keep(), CancellationToken::new());
    let test = async {
        until(async || log.count("a report is unconfirmed; retrying") == TASKS).await;
        may_write(&bench, r"^duetime\.in$").await;
        for _ in 0..TASKS {
            let back = bench.next().await;
            assert_eq!(back.source, Source::Results);
            back.ack.ack().await;
        }
        stop.cancel();
    };
    let relay = run(settings(url, &line, CONCURRENCY), stop.clone(), CancellationToken::new());
    let all = async { tokio::join!(relay, test) };
    timeout(LONG, Box::pin(all)).await.expect("the relay reports each task, and stops");
    assert_eq!(log.count("its message is rejected"), 0);
    assert!(log.count("the relay has the right to report again") > 0);
    assert_eq!(std::fs::read_to_string(file.path()).unwrap().lines().count(), TASKS, "each is done once");
    assert_eq!(hand.depth(QUEUE).await, 0, "each message is acked");
}

/// Lets the relay's user write to the exchanges and queues of this pattern only, and read the relay's queue.
async fn may_write(bench: &Bench, pattern: &str) {
    let (vhost, user) = (bench.vhost.as_str(), format!("relay-{}", bench.vhost));
    bench.rabbit.ctl(&["set_permissions", "-p", vhost, &user, "^$", pattern, "^jobs$"]).await.unwrap();
}

#[tokio::test]
async fn an_outage_of_the_broker_is_one_warning_in_the_log() {
    let (log, stop) = (Log::keep(), CancellationToken::new());
    let url = format!("amqp://guest:guest@127.0.0.1:{}", free_port());
    let tries = async {
        while log.count("the next try failed too") < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    };
    let relay = run(settings(url, "true", 1), stop.clone(), CancellationToken::new());
    timeout(LONG, async { tokio::join!(relay, tries) }).await.expect("the relay tries again, and stops");
    assert_eq!(log.count("no tasks can be received"), 1);
}

/// What a relay with this program logs while one task after another fails.
async fn log_of_failures(program: &str, tasks: u32) -> Log {
    let (mut bench, hand, url) = bench().await;
    for number in 0..tasks {
        publish(&hand, &format!("task-{number}"), QUEUE).await;
    }
    let (log, stop) = (Log::keep(), CancellationToken::new());
    let reported = async {
        for _ in 0..tasks {
            bench.next().await.ack.ack().await;
        }
        stop.cancel();
    };
    let mut settings = settings(url, "echo broken >&2; exit 1", 1);
    if let Target::Command(command) = &mut settings.target {
        command.program = program.into();
    }
    // Not spawned, because the log has only the lines of this thread.
    let relay = run(settings, stop.clone(), CancellationToken::new());
    timeout(LONG, async { tokio::join!(relay, reported) }).await.expect("the relay reports each failure, and stops");
    log
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_failure_that_is_no_fault_of_the_target_is_a_warning_with_its_reason() {
    let log = Box::pin(log_of_failures("sh", 3)).await;
    assert_eq!(log.count(r#"reason="exit status: 1: broken""#), 1, "one warning");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_warning_that_the_target_is_down_says_why() {
    let log = Box::pin(log_of_failures("/no/such/program", 1)).await;
    assert_eq!(log.count("the target is down"), 1);
    assert_eq!(log.count(r#"reason="/no/such/program cannot be run"#), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_a_correlation_id_are_worked_on_under_the_best_id_that_they_have() {
    let (mut bench, hand, url) = bench().await;
    let mut headers = FieldTable::default();
    headers.insert(HEADER_MESSAGE_ID.into(), AMQPValue::LongString("task:1".into()));
    let bare = BasicProperties::default();
    let named = bare.clone().with_message_id("own".into());
    for properties in [named.clone().with_headers(headers), named, bare] {
        hand.publish(QUEUE, b"{}", properties).await;
    }
    publish(&hand, "last", QUEUE).await;

    let file = tempfile::NamedTempFile::new().unwrap();
    let line = format!("echo \"$DUETIME_TASK_ID\" >> {}", file.path().display());
    let stop = CancellationToken::new();
    // With one call at a time, the report on the last message comes after all calls.
    let relay = crate::supervise::spawn_child(run(settings(url, &line, 1), stop.clone(), CancellationToken::new()));
    let back = bench.next().await;
    assert_eq!((back.source, back.correlation_id.as_deref()), (Source::Results, Some("last")));
    back.ack.ack().await;
    stop.cancel();
    timeout(LONG, relay).await.expect("the relay stops").unwrap();
    let called = std::fs::read_to_string(file.path()).unwrap();
    let called: Vec<&str> = called.lines().collect();
    assert!(matches!(called[..], ["task:1", "own", made_up, "last"] if !made_up.is_empty()), "{called:?}");
    assert_eq!(hand.depth(QUEUE).await, 0, "each message is settled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gets_both_headers_of_its_trace_unless_the_second_is_too_long_or_alone() {
    let (mut bench, hand, url) = bench().await;
    let longest = "v".repeat(MAX_TRACESTATE_BYTES);
    for (parent, state) in [(Some("p"), &longest), (Some("p"), &format!("{longest}v")), (None, &longest)] {
        let mut headers = FieldTable::default();
        for (name, value) in [(HEADER_TRACEPARENT, parent), (HEADER_TRACESTATE, Some(state.as_str()))] {
            if let Some(value) = value {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
        }
        hand.publish(QUEUE, b"{}", BasicProperties::default().with_headers(headers)).await;
    }
    publish(&hand, "last", QUEUE).await;

    let file = tempfile::NamedTempFile::new().unwrap();
    let line = format!("echo \"$TRACEPARENT/$TRACESTATE\" >> {}", file.path().display());
    let stop = CancellationToken::new();
    // With one call at a time, the report on the last message comes after all calls.
    let relay = crate::supervise::spawn_child(run(settings(url, &line, 1), stop.clone(), CancellationToken::new()));
    bench.next().await.ack.ack().await;
    stop.cancel();
    timeout(LONG, relay).await.expect("the relay stops").unwrap();
    let called = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(called.lines().collect::<Vec<_>>(), [&*format!("p/{longest}"), "p/", "/", "/"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_copies_of_an_attempt_that_come_while_its_command_runs_are_both_acked_and_it_runs_once() {
    let (mut bench, hand, url) = bench().await;
    let task = TaskId::mint(Uuid::now_v7(), ShardId::new(1)).to_string();
    for _ in 0..2 {
        publish(&hand, &task, QUEUE).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let (runs, may_end) = (folder.path().join("runs"), folder.path().join("may-end"));
    let wait = format!("until [ -e {} ]; do sleep 0.05; done", may_end.display());
    let line = format!("echo begun >> {}; {wait}", runs.display());
    let (log, stop) = (Log::keep(), CancellationToken::new());
    let test = async {
        // Only the log shows that the relay has the second copy.
        while log.count("received before; not called again") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::fs::write(&may_end, "").unwrap();
        let back = bench.next().await;
        assert_eq!((back.source, back.correlation_id), (Source::Results, Some(task)));
        back.ack.ack().await;
        stop.cancel();
    };
    // Not spawned, because the log has only the lines of this thread.
    let relay = run(settings(url, &line, CONCURRENCY), stop.clone(), CancellationToken::new());
    let ended = timeout(LONG, async { tokio::join!(relay, test) }).await;
    ended.expect("the relay sees that the second is a copy, and stops");
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "begun\n");
    assert_eq!(hand.depth(QUEUE).await, 0, "no copy came back to the queue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_acks_finished_tasks_while_another_still_runs() {
    let (mut bench, hand, url) = bench().await;
    for task in ["quick", "slow"] {
        publish(&hand, task, QUEUE).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display();
    let line =
        format!("echo begun >> {folder}/begun; until [ -e {folder}/$DUETIME_TASK_ID-may-end ]; do sleep 0.05; done");
    let may_end = |task: &str| std::fs::write(format!("{folder}/{task}-may-end"), "").unwrap();
    let stop = CancellationToken::new();
    let relay = crate::supervise::spawn_child(run(settings(url, &line, 2), stop.clone(), CancellationToken::new()));
    let begun = || std::fs::read_to_string(format!("{folder}/begun")).unwrap_or_default().lines().count() == 2;
    until(async || begun()).await;
    stop.cancel();
    let lists = async |words: &[&str], line: &str| {
        let words = [&["-p", bench.vhost.as_str()], words].concat();
        bench.rabbit.ctl(&words).await.unwrap().lines().any(|listed| listed.trim() == line)
    };
    // Without its consumer, the relay has begun to stop.
    until(async || !lists(&["list_consumers", "queue_name"], QUEUE).await).await;
    may_end("quick");
    until(async || lists(&["list_queues", "name", "messages"], &format!("{QUEUE}\t1")).await).await;
    may_end("slow");
    timeout(LONG, relay).await.expect("the relay stops").unwrap();
    assert_eq!(hand.depth(QUEUE).await, 0, "each message is acked");
    for _ in 0..2 {
        bench.next().await.ack.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_waits_for_a_place_sends_heartbeats() {
    let (mut bench, hand, url) = bench().await;
    publish(&hand, "waiting", QUEUE).await;
    let mut worker = Worker::open(&Login::new(url.clone().into()), QUEUE).await.unwrap();
    worker.subscribe(1).await.unwrap();
    let handed = timeout(LONG, worker.next()).await.expect("a task comes").unwrap();
    let settings = Settings { heartbeat: Duration::from_millis(10), ..settings(url, "true", 1) };
    let (reports, places) = (watch::channel(Some(worker.reports())).1, Semaphore::new(0));
    let (_give_up, given_up) = oneshot::channel();
    let back = tokio::select! {
        _ = call(&settings, &places, &handed.task, &reports, given_up) => unreachable!("it never gets a place"),
        back = bench.next() => back,
    };
    assert_eq!((back.source, back.correlation_id.as_deref()), (Source::Results, Some("waiting")));
    worker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_cut_off_kills_its_commands() {
    let (_bench, hand, url) = bench().await;
    publish(&hand, "long", QUEUE).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("process");
    let line = format!("echo $$ > {}; exec sleep 600", file.display());
    let (stop, cut_off) = (CancellationToken::new(), CancellationToken::new());
    let relay = crate::supervise::spawn_child(run(settings(url, &line, 1), stop, cut_off.clone()));
    let process = process_in(&file).await;
    cut_off.cancel();
    timeout(LONG, relay).await.expect("the relay ends").unwrap();
    until(async || !is_running(&process)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_takes_too_long_is_ended_with_all_that_it_started() {
    let (mut bench, hand, url) = bench().await;
    publish(&hand, "long", QUEUE).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("process");
    // It ignores the signal to terminate, and holds none of the streams.
    let started = format!("trap \"\" TERM; echo $$ > {}; exec sleep 600", file.display());
    let mut settings = settings(url, &format!("sh -c '{started}' < /dev/null > /dev/null 2>&1 & wait"), 1);
    if let Target::Command(command) = &mut settings.target {
        command.timeout = Duration::from_secs(2);
    }
    let stop = CancellationToken::new();
    let relay = crate::supervise::spawn_child(run(settings, stop.clone(), CancellationToken::new()));
    bench.next().await.ack.ack().await;
    let process = process_in(&file).await;
    until(async || !is_running(&process)).await;
    stop.cancel();
    timeout(LONG, relay).await.expect("the relay stops").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_came_again_after_a_lost_connection_leaves_the_probe_its_place() {
    let (mut bench, hand, url) = bench().await;
    let [long, failing, probing] = [(); 3].map(|()| TaskId::mint(Uuid::now_v7(), ShardId::new(1)).to_string());
    publish(&hand, &long, QUEUE).await;
    let folder = tempfile::tempdir().unwrap();
    let [program, begun, may_end] = ["sh", "begun", "may-end"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let line = format!("echo > {}; until [ -e {} ]; do sleep 0.05; done", begun.display(), may_end.display());
    let mut settings = settings(url, &line, CONCURRENCY);
    if let Target::Command(command) = &mut settings.target {
        command.program.clone_from(&program);
    }
    let stop = CancellationToken::new();
    let relay = crate::supervise::spawn_child(run(settings, stop.clone(), CancellationToken::new()));
    until(async || begun.exists()).await;
    // A program that is not there cannot be run, so the target counts as down.
    std::fs::remove_file(&program).unwrap();
    publish(&hand, &failing, QUEUE).await;
    until_reported(&mut bench, &failing).await;
    bench.drop_connections().await;
    let hand = bench.hand().await;
    publish(&hand, &probing, QUEUE).await;
    until_reported(&mut bench, &probing).await;
    std::fs::write(&may_end, "").unwrap();
    until_reported(&mut bench, &long).await;
    stop.cancel();
    timeout(LONG, relay).await.expect("the relay stops").unwrap();
}

/// Waits for a report on the task. One on another task may come again.
async fn until_reported(bench: &mut Bench, task: &str) {
    loop {
        let back = bench.next().await;
        back.ack.ack().await;
        if back.correlation_id.as_deref() == Some(task) {
            return;
        }
    }
}

/// The id that a process has written into the file.
async fn process_in(file: &Path) -> String {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    until(async || read().ends_with('\n')).await;
    read().trim().to_owned()
}

/// Whether a process has not ended. One that has, and is not collected yet, has no command line.
fn is_running(process: &str) -> bool {
    std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Waits until the condition holds.
async fn until(holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, wait).await.expect("the condition comes to hold");
}

/// Takes two tasks, and returns what reports on them are about.
async fn two(worker: &mut Worker) -> [Subject; 2] {
    worker.subscribe(2).await.unwrap();
    let mut next = async || timeout(LONG, worker.next()).await.expect("a task comes").unwrap().task.subject.unwrap();
    [next().await, next().await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_beside_a_refused_one_is_sent() {
    let (mut bench, hand, url) = bench().await;
    publish(&hand, "refused", "elsewhere").await;
    publish(&hand, "good", QUEUE).await;
    let mut worker = Worker::open(&Login::new(url.into()), QUEUE).await.unwrap();
    let subjects = two(&mut worker).await;
    let (reports, body) = (worker.reports(), ResultBody::new(ReportStatus::Succeeded));
    let sent = tokio::join!(reports.send(&subjects[0], &body), reports.send(&subjects[1], &body));
    assert!(matches!(sent, (Outcome::Refused(_), Outcome::Done(()))), "{sent:?}");
    let back = bench.next().await;
    assert_eq!((back.source, back.correlation_id.as_deref()), (Source::Results, Some("good")));
    worker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_no_queue_takes_is_not_sent_and_says_nothing_about_others() {
    let (mut bench, hand, _) = bench().await;
    publish(&hand, "good", QUEUE).await;
    publish(&hand, "lost", "elsewhere").await;
    let mut worker = Worker::open(&Login::new(bench.rabbit.url(&bench.vhost).into()), QUEUE).await.unwrap();
    let subjects = two(&mut worker).await;
    let (reports, body) = (worker.reports(), ResultBody::new(ReportStatus::Succeeded));
    let (channel, all, some) = (&hand.channel, result_key("#"), result_key(QUEUE));
    channel
        .queue_bind(RESULTS.into(), IN.into(), some.into(), QueueBindOptions::default(), FieldTable::default())
        .await
        .unwrap();
    channel.queue_unbind(RESULTS.into(), IN.into(), all.clone().into(), FieldTable::default()).await.unwrap();
    for _ in 0..20 {
        let sent = join_all((0..CONCURRENCY).map(|number| reports.send(&subjects[usize::from(number % 2)], &body)));
        for (number, sent) in sent.await.into_iter().enumerate() {
            assert_eq!(matches!(sent, Outcome::Done(())), number % 2 == 0, "{number}: {sent:?}");
            assert_eq!(matches!(sent, Outcome::Unknown(_)), number % 2 == 1, "{number}: {sent:?}");
        }
    }
    channel
        .queue_bind(RESULTS.into(), IN.into(), all.into(), QueueBindOptions::default(), FieldTable::default())
        .await
        .unwrap();
    assert_eq!(reports.send(&subjects[1], &body).await, Outcome::Done(()));
    let mut came = Vec::new();
    while came.last().is_none_or(|task| task != "lost") {
        let back = bench.next().await;
        came.push(back.correlation_id.clone().unwrap());
        back.ack.ack().await;
    }
    assert_eq!(came.len(), 20 * usize::from(CONCURRENCY) / 2 + 1, "each report that was sent, once");
    worker.close().await;
}
