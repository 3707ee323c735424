//! The promises that hold while the connection, or the broker behind it, is gone.

use std::{
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{outcome::Outcome, wire::amqp::SUBMIT};
use futures::{FutureExt, future::join_all};
use lapin::BasicProperties;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        AmqpSettings, Broker, BrokerMetrics, BrokerState, Login, Outgoing, Published, Received, Route,
        addresses::tests::make_name, lost::DOUBTED_AFTER,
    },
    bench::{Bench, Hand, LONG, Tally, batch, route, server, tally},
    refused::forward,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_leaves_its_batches_unknown_and_is_replaced() {
    let bench = Bench::new().await;
    let route = route("mail");
    let over = CancellationToken::new();
    let publishing = async {
        let mut all = Vec::new();
        while !over.is_cancelled() {
            let published = bench.broker.publish(&route, batch("mail", 100)).await;
            if tally(&published).unknown > 0 {
                bench.until_up().await;
            }
            all.extend(published);
        }
        all
    };
    let killing = async {
        for times in 1..=3 {
            bench.drop_connections().await;
            let replaced = async {
                // Both connections have to be replaced.
                while bench.metrics.reconnects.get() < 2 * times {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(LONG, replaced).await.expect("the connections are replaced");
            bench.until_up().await;
        }
        over.cancel();
    };
    let (published, ()) = tokio::join!(publishing, killing);
    assert!(tally(&published).unknown > 0);
    assert_eq!(tally(&published).unroutable + tally(&published).nacked, 0);
    // No message whose outcome was `Done` is missing, and none is there twice without a mark.
    let mut copies: HashMap<String, usize> = HashMap::new();
    for id in bench.hand().await.take_all_but_copies("mail").await {
        *copies.entry(id).or_default() += 1;
    }
    for of in &published {
        let found = copies.get(&format!("{}:1", of.id)).copied().unwrap_or(0);
        match of.outcome {
            Outcome::Done(()) => assert_eq!(found, 1),
            _ => assert!(found <= 1),
        }
    }
}

/// Publishes new batches until a connection that knows of the alarm has replaced this one: the alarm takes effect some
/// moments after it is raised. Returns the ids of the messages that are not known to be taken.
async fn caught_by_the_alarm(bench: &Bench) -> HashSet<String> {
    let (before, state, mut caught) = (bench.metrics.reconnects.get(), bench.broker.state(), HashSet::new());
    let is_blocked = || matches!(*state.borrow(), BrokerState::Up { blocked: true });
    let publishing = async {
        while bench.metrics.reconnects.get() == before || !is_blocked() {
            // A batch that the alarm catches misses its deadline, and costs the connection.
            let published = bench.broker.publish(&route("mail"), batch("mail", 10)).await;
            let open = published.iter().filter(|of| of.outcome != Outcome::Done(()));
            caught.extend(open.map(|of| format!("{}:1", of.id)));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, publishing).await.expect("the alarm costs the connection");
    caught
}

/// Publishes a batch again and again to a server that is known to take no messages, and sets a message aside: nothing
/// is sent.
async fn refused_while_blocked(bench: &Bench, refused: &[Outgoing], invalid: &Received) {
    assert_eq!(bench.metrics.blocked.get(), 1);
    let why = bench.broker.set_aside(invalid, "it is no task").await.expect_err("nothing is taken");
    assert!(why.contains("has blocked"), "{why}");
    for _ in 0..20 {
        let published = bench.broker.publish(&route("mail"), refused.to_vec()).await;
        let is_refused = |of: &Published| {
            of.sent_at.is_none() && matches!(&of.outcome, Outcome::Unknown(why) if why.contains("has blocked"))
        };
        assert!(published.iter().all(is_refused), "{published:?}");
    }
}

async fn until_it_takes(bench: &Bench, messages: bool) {
    let agrees = async {
        while bench.broker.takes_messages().await != messages {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, agrees).await.expect("the broker says whether it takes messages");
}

/// Ends the alarm and raises another one, while nothing is published.
async fn sounded_out_in_the_next_alarm(bench: &Bench) {
    bench.rabbit.ctl(&["set_vm_memory_high_watermark", "0.4"]).await.unwrap();
    bench.until_up().await;
    until_it_takes(bench, true).await;
    bench.rabbit.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await.unwrap();
    until_it_takes(bench, false).await;
    bench.until(|state| matches!(state, BrokerState::Up { blocked: true })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_short_of_memory_shows_as_blocked_and_gets_at_most_one_copy() {
    let bench = Bench::alone(Duration::from_secs(2)).await;
    bench.until_taken("mail").await;
    let (mut received, hand) = (bench.broker.received(), bench.hand().await);
    hand.publish(SUBMIT, b"no task", BasicProperties::default()).await;
    let invalid = timeout(LONG, received.recv()).await.expect("it comes").expect("the broker lives");
    bench.rabbit.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await.unwrap();
    let refused = batch("mail", 10);
    let alarms = async {
        let caught = caught_by_the_alarm(&bench).await;
        refused_while_blocked(&bench, &refused, &invalid).await;
        sounded_out_in_the_next_alarm(&bench).await;
        caught
    };
    let alarms = AssertUnwindSafe(alarms).catch_unwind().await;
    // Other tests use the same server: the alarm ends with this test, whatever it found.
    bench.rabbit.ctl(&["set_vm_memory_high_watermark", "0.4"]).await.unwrap();
    let caught = alarms.unwrap_or_else(|panic| resume_unwind(panic));

    bench.until_up().await;
    bench.until_taken("mail").await;
    let there = bench.hand().await.take_all("mail").await;
    assert!(refused.iter().all(|of| !there.contains(&format!("{}:1", of.delivery.id))), "{there:?}");
    // The broker may have received a batch before it stopped reading.
    for id in &caught {
        assert!(there.iter().filter(|there| *there == id).count() <= 1, "{there:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_falls_silent_leaves_batches_unknown_at_the_deadline_and_costs_the_connection() {
    let bench = Bench::alone(Duration::from_secs(2)).await;
    let route = route("mail");
    bench.until_taken("mail").await;
    bench.rabbit.pause().unwrap();
    let published = timeout(LONG, bench.broker.publish(&route, batch("mail", 100))).await.expect("the deadline");
    // A process stops thread by thread: the first few messages may still have been answered.
    let first = tally(&published);
    assert_eq!(first.done + first.unknown, 100);
    assert!(first.unknown > 0);
    bench.until(|state| matches!(state, BrokerState::Down { .. })).await;
    bench.rabbit.resume().unwrap();
    bench.until_taken("mail").await;
}

/// Publishes eight batches at the same time, until the messages of all are done.
async fn until_together(bench: &Bench) {
    const MESSAGES: usize = 10;
    let route = route("mail");
    let all_are_done = async || {
        let published = join_all((0..8).map(|_| bench.broker.publish(&route, batch("mail", MESSAGES)))).await;
        published.iter().all(|batch| tally(batch).done == MESSAGES)
    };
    timeout(LONG, async { while !all_are_done().await {} }).await.expect("eight batches are confirmed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_on_its_way_to_a_queue_that_is_deleted_is_known_long_before_the_deadline() {
    let bench = Bench::alone(10 * LONG).await;
    let route = route("mail");
    bench.until_taken("mail").await;
    let hand = bench.hand().await;
    for round in 0..10 {
        // Makes every channel known to the queue: RabbitMQ 3.10 closes the connection over an unknown one.
        until_together(&bench).await;
        let publishing = join_all((0..8).map(|_| bench.broker.publish(&route, batch("mail", 200))));
        let deleting = hand.delete("mail");
        timeout(LONG, async { tokio::join!(publishing, deleting) })
            .await
            .unwrap_or_else(|_| panic!("round {round}: a batch waits for confirms that never come"));
    }
}

/// Publishes four batches of 50 to a broker that stands still for longer than a confirm is awaited without
/// doubt. Returns the outcomes, how many copies of these messages are in the queue afterwards, and how long the
/// confirms took.
async fn published_to_a_slow_broker(bench: &Bench, hand: &Hand) -> (Vec<Published>, usize, Duration) {
    // Opens enough channels first: a broker that does not open one in time loses the connection.
    until_together(bench).await;
    hand.take_all("mail").await;
    let route = route("mail");
    bench.rabbit.pause().unwrap();
    let began = Instant::now();
    let slow = async {
        tokio::time::sleep(DOUBTED_AFTER + Duration::from_secs(1)).await;
        bench.rabbit.resume().unwrap();
    };
    let batches = (0..4).map(|_| bench.broker.publish(&route, batch("mail", 50)));
    let (published, ()) = tokio::join!(join_all(batches), slow);
    let (published, took): (Vec<_>, _) = (published.into_iter().flatten().collect(), began.elapsed());
    bench.until_taken("mail").await;
    let sent: HashSet<_> = published.iter().map(|of| format!("{}:1", of.id)).collect();
    let copies = hand.take_all("mail").await.iter().filter(|id| sent.contains(*id)).count();
    (published, copies, took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_broker_gets_one_copy_of_one_message_at_most() {
    let bench = Bench::alone(LONG).await;
    bench.until_taken("mail").await;
    let hand = bench.hand().await;
    for _ in 0..5 {
        let reconnects = bench.metrics.reconnects.get();
        let (published, copies, took) = published_to_a_slow_broker(&bench, &hand).await;
        if bench.metrics.reconnects.get() > reconnects || took >= 2 * DOUBTED_AFTER {
            // On a busy machine the broker may need so long to go on that two heartbeats are missing, or that the copy
            // is in doubt itself.
            bench.until_up().await;
            continue;
        }
        let (tally, sent) = (tally(&published), published.len());
        assert_eq!(tally, Tally { done: sent, ..Tally::default() });
        assert!((sent..=sent + 1).contains(&copies), "{copies} of {sent} messages");
        return;
    }
    panic!("the broker needs too long to go on each time, although it stands still for less than two heartbeats");
}

/// How long a broker stands still that makes a batch too late. It is shorter than a confirm is awaited without doubt.
const STANDS_STILL: Duration = Duration::from_secs(2);

/// Publishes ten messages to a broker that stands still for longer than they may be sent. Returns them and their
/// outcomes.
async fn published_too_late(bench: &Bench, route: &Route) -> (Vec<Outgoing>, Vec<Published>) {
    let send_before = Instant::now() + STANDS_STILL / 2;
    let batch = batch("mail", 10).into_iter().map(|of| Outgoing { send_before: Some(send_before), ..of });
    let batch: Vec<Outgoing> = batch.collect();
    bench.rabbit.pause().unwrap();
    let going_on = async {
        tokio::time::sleep(STANDS_STILL).await;
        bench.rabbit.resume().unwrap();
    };
    let (published, ()) = tokio::join!(bench.broker.publish(route, batch.clone()), going_on);
    assert!(published.iter().all(|of| of.sent_at.is_none_or(|at| at < send_before)), "sent late: {published:?}");
    (batch, published)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_queue_takes_too_long_to_declare_is_not_sent() {
    let bench = Bench::alone(LONG).await;
    for turn in 0..5 {
        let queue = format!("mail-{turn}");
        let (_, published) = published_too_late(&bench, &route(&queue)).await;
        bench.until_up().await;
        if published.iter().any(|of| of.sent_at.is_some()) {
            // A process stops thread by thread: the broker declared the queue before it stood still.
            continue;
        }
        assert_eq!(tally(&published), Tally { unknown: 10, ..Tally::default() });
        bench.until_taken(&queue).await;
        let there = bench.hand().await.take_all(&queue).await;
        assert!(published.iter().all(|of| !there.contains(&format!("{}:1", of.id))), "{there:?}");
        return;
    }
    panic!("the broker declares the queue each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_batch_is_not_sent_when_the_confirm_of_the_first_message_takes_too_long() {
    let bench = Bench::alone(LONG).await;
    let forward = forward(&bench).await;
    for turn in 0..5 {
        // Leaves a free channel, so that the first message needs no answer of the broker.
        bench.until_taken("mail").await;
        // Nothing has gone this way yet, and no queue is declared for it.
        let route = Route { routing_key: turn.to_string(), ..forward.clone() };
        let (batch, published) = published_too_late(&bench, &route).await;
        if tally(&published) != (Tally { done: 1, unknown: 9, ..Tally::default() }) {
            // The broker answered before it stood still, or needed so long to go on that its connection is lost.
            bench.until_up().await;
            continue;
        }
        assert!(published[1..].iter().all(|of| of.sent_at.is_none()), "{published:?}");
        let read_again = batch[1..].iter().map(|of| Outgoing { send_before: None, ..of.clone() }).collect();
        assert_eq!(tally(&bench.broker.publish(&route, read_again).await).done, 9);
        let there = bench.hand().await.take_all_but_copies("kept").await;
        let copies = |of: &Published| there.iter().filter(|id| **id == format!("{}:1", of.id)).count();
        assert!(published[1..].iter().all(|of| copies(of) == 1), "{there:?}");
        return;
    }
    panic!("the broker answers at once each time, or its connection is lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_is_found_again_and_has_kept_what_was_done() {
    let bench = Bench::alone(Duration::from_secs(10)).await;
    let route = route("mail");
    assert_eq!(tally(&bench.publish_once_ready(&route, batch("mail", 100)).await).done, 100);
    // RabbitMQ keeps the register of its quorum queues in such a table, and saves it some time after a change. A queue
    // of a broker that is killed before that never starts again.
    let save = "[ok = dets:sync(Table) || Table <- dets:all()]";
    bench.rabbit.eval(&[save.to_owned()]).await.unwrap();
    let since = Instant::now();
    bench.rabbit.kill();
    bench.until(|state| matches!(state, BrokerState::Down { .. })).await;
    let BrokerState::Down { reason, since: down_since } = bench.broker.state().borrow().clone() else {
        panic!("it is down");
    };
    assert!(!reason.is_empty() && down_since >= since);
    let published = bench.broker.publish(&route, batch("mail", 10)).await;
    assert_eq!(tally(&published), Tally { unknown: 10, ..Tally::default() });
    assert_eq!(bench.metrics.up.get(), 0);
    bench.rabbit.restart().await.unwrap();
    bench.until_up().await;
    assert_eq!(bench.metrics.up.get(), 1);
    bench.until_taken("mail").await;
    assert!(bench.hand().await.depth("mail").await >= 110);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_the_keeper_and_what_is_published_then_is_not_sent() {
    let bench = Bench::new().await;
    bench.broker.close().await;
    assert!(bench.keeper.is_finished() || bench.keeper.await.is_ok());
    let published = bench.broker.publish(&route("mail"), batch("mail", 2)).await;
    assert_eq!(tally(&published), Tally { unknown: 2, ..Tally::default() });
    assert!(matches!(&*bench.broker.state().borrow(), BrokerState::Down { .. }));
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_down_with_a_reason_that_holds_no_password() {
    let port = integration_tests::sandbox::free_port();
    for url in [format!("amqp://guest:swordfish@127.0.0.1:{port}/"), "http://guest:swordfish@127.0.0.1/".to_owned()] {
        let settings =
            AmqpSettings { login: Login::new(url.into()), consume: false, delay_exchanges: Vec::new(), cluster: None };
        let metrics = BrokerMetrics::register(&prometheus::Registry::new()).unwrap();
        let (broker, keeper) = Broker::new(settings, metrics.into());
        let keeper = crate::supervise::spawn_child(keeper);
        let mut state = broker.state();
        let told = |state: &BrokerState| match state {
            BrokerState::Down { reason, .. } => reason != "not connected yet",
            BrokerState::Up { .. } => false,
        };
        state.wait_for(told).await.unwrap();
        let published = broker.publish(&route("mail"), batch("mail", 1)).await;
        let Outcome::Unknown(reason) = &published[0].outcome else { panic!("{published:?}") };
        assert!(!reason.contains("swordfish"), "{reason}");
        broker.close().await;
        keeper.await.unwrap();
    }
}

/// The kernel of a frozen broker takes connections.
#[tokio::test]
async fn a_frozen_broker_behind_the_first_address_of_a_name_hides_no_other_address() {
    let frozen = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_share, rabbit) = server().await;
    let url = rabbit.url("/");
    let port = Login::new(url.clone().into()).uri().unwrap().authority.port;
    make_name("first-frozen", vec![frozen.local_addr().unwrap(), ([127, 0, 0, 1], port).into()]);
    let login = Login::new(url.replace("@127.0.0.1:", "@first-frozen:").into());
    let settings = AmqpSettings { login, consume: false, delay_exchanges: Vec::new(), cluster: None };
    let metrics = BrokerMetrics::register(&prometheus::Registry::new()).unwrap();
    let (broker, keeper) = Broker::new(settings, metrics.into());
    let keeper = crate::supervise::spawn_child(keeper);
    let mut state = broker.state();
    let up = state.wait_for(|state| matches!(state, BrokerState::Up { .. }));
    timeout(LONG, up).await.expect("it is found behind the second address").unwrap();
    broker.close().await;
    keeper.await.unwrap();
}

#[tokio::test]
async fn a_dead_broker_in_the_url_delays_no_connection_to_the_next_one() {
    let dead = integration_tests::sandbox::free_port();
    let (_share, rabbit) = server().await;
    let url = rabbit.url("/").replace("@127.0.0.1:", &format!("@127.0.0.1:{dead},127.0.0.1:"));
    let settings =
        AmqpSettings { login: Login::new(url.into()), consume: false, delay_exchanges: Vec::new(), cluster: None };
    let metrics = Arc::new(BrokerMetrics::register(&prometheus::Registry::new()).unwrap());
    let mut reports = Vec::new();
    while reports.len() < 5 {
        let (broker, keeper) = Broker::new(settings.clone(), Arc::clone(&metrics));
        let keeper = crate::supervise::spawn_child(keeper);
        let mut state = broker.state();
        // The first report comes after the attempt at the second broker, as `duetime check` expects.
        timeout(LONG, state.changed()).await.unwrap().unwrap();
        let report = state.borrow().clone();
        broker.close().await;
        keeper.await.unwrap();
        if matches!(report, BrokerState::Up { .. }) {
            return;
        }
        // On a busy machine the second broker may answer too late.
        reports.push(report);
    }
    panic!("each first report is of a broker that is down: {reports:?}");
}
