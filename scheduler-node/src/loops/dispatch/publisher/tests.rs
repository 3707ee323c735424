use std::collections::BTreeSet;

use common::{
    outbox::{HOLD, MANY, SPAN},
    queue::{Format, QueueBook, Settle, Unroutable},
    wire::{
        DelayRoute,
        amqp::{HEADER_MAX_ATTEMPTS, HeaderValue},
    },
};
use tokio::sync::watch;

use super::*;
use crate::{
    broker::tests::bench::{self, Bench, LONG, batch, route_with_length, tally, with_small_messages},
    loops::tests::Loops,
    store::{
        PoolKind,
        change::{Guarded, Keep},
    },
    supervise::spawn_child,
    working_set::{delay_rules::DelayRule, failures::tests::Log},
};

/// A first attempt on its way to `queue`, claimed and due at the same moment.
pub(super) fn dispatch(queue: &str, at: Instant) -> Dispatch {
    let delivery = bench::outgoing(queue).delivery;
    Dispatch { database: DatabaseIndex::HOME, delivery, publish_at: at, claimed_at: at }
}

#[test]
fn the_last_attempt_of_a_new_budget_is_counted_from_where_it_began() {
    let (attempt, attempts_base) = (Attempt::new(26), Attempt::new(25));
    let delivery = Delivery { attempt, attempts_base, max_attempts: Some(4), ..bench::outgoing("q").delivery };
    let outgoing = outgoing(delivery, None, &Queue::with_defaults(QueueName::new("q")), &ReceiptKeys::default());
    let headers = outgoing.delivery.headers(outgoing.max_attempts);
    assert!(headers.contains(&(HEADER_MAX_ATTEMPTS.into(), HeaderValue::I64(29))), "{headers:?}");
}

#[test]
fn a_routing_key_counts_only_with_an_exchange() {
    let mut queue = Queue::with_defaults(QueueName::new("mails"));
    queue.policy.routing_key = Some("elsewhere".to_owned());
    let keys = |queue: &Queue| (route(queue, None).routing_key, returned::routing_key(queue, None));
    assert_eq!(keys(&queue), ("mails".to_owned(), "mails".to_owned()));
    queue.policy.exchange = Some("orders".to_owned());
    assert_eq!(keys(&queue), ("elsewhere".to_owned(), "elsewhere".to_owned()));
    assert_eq!(returned::routing_key(&queue, Some("its own".to_owned())), "its own");
}

#[test]
fn a_message_is_published_while_the_lease_of_its_claim_must_live_and_for_some_seconds_at_most() {
    for (lease_ttl_s, expected_ms) in [(2, 1_000), (3, 1_500), (10, 5_000), (600, 5_000)] {
        assert_eq!(longest_hold(Duration::from_secs(lease_ttl_s)), Duration::from_millis(expected_ms));
    }
}

#[test]
fn tasks_are_claimed_so_late_that_half_of_the_time_to_hold_a_message_is_left() {
    let lead_ms = |claim_ahead_ms, lease_ttl_s| {
        longest_lead(Duration::from_millis(claim_ahead_ms), Duration::from_secs(lease_ttl_s)).as_millis()
    };
    assert_eq!((lead_ms(2_000, 10), lead_ms(2_000, 60)), (2_000, 2_000));
    assert_eq!((lead_ms(2_000, 4), lead_ms(2_000, 2), lead_ms(100, 2)), (1_000, 500, 100));
}

/// A queue that takes no message.
async fn full(bench: &Bench, queue: &Queue) {
    let route = route_with_length(queue.name.as_str(), queue.policy.max_length);
    let filled =
        async { while tally(&bench.broker.publish(&route, batch(queue.name.as_str(), 10)).await).nacked < 10 {} };
    tokio::time::timeout(LONG, filled).await.expect("the queue is full");
}

/// A broker that notes how many messages each batch has, and never answers.
#[derive(Debug)]
struct Silent(mpsc::Sender<usize>);

impl Publish for Silent {
    fn state(&self) -> watch::Receiver<BrokerState> {
        watch::channel(BrokerState::Up { blocked: false }).1
    }

    async fn publish(&self, _route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        self.0.send(batch.len()).await.expect("the test listens");
        std::future::pending().await
    }
}

/// A publisher that publishes to `broker`, and `queue` with its policy.
pub(super) fn publisher<B: Publish>(
    loops: &Loops,
    broker: B,
    queue: &Queue,
    longest_hold: Duration,
) -> Publisher<Arc<Database>, B> {
    let books = Arc::clone(&loops.counter.books);
    books.store(Arc::new(QueueBook::new(1, [queue.clone()])));
    Publisher {
        databases: loops.counter.databases.clone(),
        broker,
        alarm: Alarm::default(),
        books,
        lanes: Arc::default(),
        settlements: [Settlements::channel(100).0].into_iter().collect(),
        reporter: loops.reporter(),
        metrics: Arc::clone(&loops.metrics),
        traces: Traces::default(),
        history: History::default(),
        receipts: loops.keys.subscribe(),
        longest_hold,
        delay_rules: DelayRules::new([]),
    }
}

/// A claimed task on its way to `queue`.
async fn claimed(loops: &Loops, queue: &Queue) -> Dispatch {
    let ids = loops.three(|task| task.queue = queue.name.clone()).await;
    let open = BTreeSet::new();
    let claim = loops.test.database.task_claim(&ids[..1], &loops.fences, Duration::ZERO, &open, i64::MAX);
    let delivery = claim.await.unwrap().deliveries.remove(0);
    loops.counter.databases.home().sql.ping().await.unwrap();
    of(delivery)
}

/// A delivery that was claimed now and is due.
fn of(delivery: Delivery) -> Dispatch {
    let now = Instant::now();
    Dispatch { database: DatabaseIndex::HOME, delivery, publish_at: now, claimed_at: now }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_a_full_queue_refuses_stays_claimed_and_cannot_be_cancelled() {
    let (loops, bench) = (Loops::new().await, Bench::new().await);
    let mut queue = Queue::with_defaults(QueueName::new("orders"));
    queue.policy.max_length = 1;
    full(&bench, &queue).await;
    let dispatch = claimed(&loops, &queue).await;
    let id = dispatch.delivery.id;
    publisher(&loops, bench.broker.clone(), &queue, LONG).publish(&queue.name, vec![dispatch]).await;
    assert_eq!(loops.metrics.publish_nacked.get(), 1);
    assert_eq!(loops.test.state_of(id).await.as_deref(), Some("dispatching"), "a refusal undoes no claim");
    let keep = Keep::of(&loops.counter.books.load());
    let cancel = loops.test.database.task_cancel(id, &keep).await.unwrap();
    assert!(!matches!(cancel, Guarded::Done(_)), "a claimed task was cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_message_rabbitmq_refuses_is_dead_with_the_reason_and_its_neighbours_are_published() {
    with_small_messages(async |bench| {
        let loops = Loops::new().await;
        let queue = Queue::with_defaults(QueueName::new("mails"));
        let ids = loops.three(|task| task.queue = queue.name.clone()).await;
        let large = "UPDATE duetime.task SET payload = convert_to(repeat('x', 2000), 'UTF8') WHERE id = $1";
        sqlx::query(large).bind(ids[1].uuid()).execute(&loops.test.pool).await.unwrap();
        let (database, open) = (&loops.test.database, BTreeSet::new());
        let publisher = publisher(&loops, bench.broker.clone(), &queue, LONG);
        let claimed = database.task_claim(&ids, &loops.fences, Duration::ZERO, &open, i64::MAX).await.unwrap();
        database.ping().await.unwrap();
        publisher.publish(&queue.name, claimed.deliveries.into_iter().map(of).collect()).await;
        bench.until_up().await;
        let rescued = database.task_rescue(&ids[1..], &loops.fences).await.unwrap();
        publisher.publish(&queue.name, rescued.deliveries.into_iter().map(of).collect()).await;

        assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("dead"));
        let error = "SELECT history->0->>'error' FROM duetime.archive WHERE id = $1";
        let error: String = sqlx::query_scalar(error).bind(ids[1].uuid()).fetch_one(&loops.test.pool).await.unwrap();
        assert!(error.starts_with("RabbitMQ refuses the message: 406 PRECONDITION_FAILED"), "{error}");
        let there: BTreeSet<String> = bench.hand().await.take_all(queue.name.as_str()).await.into_iter().collect();
        assert_eq!(there, [ids[0], ids[2]].map(|id| format!("{id}:1")).into());
        assert!(publisher.lanes.is_open(&queue.name, Instant::now()), "the refusal closes no lane");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_claimed_too_long_ago_is_not_published_before_its_row_is_read_again() {
    let (loops, bench) = (Loops::new().await, Bench::new().await);
    let queue = Queue::with_defaults(QueueName::new("orders"));
    let there = bench.until_taken("orders").await.len();
    let dispatch = claimed(&loops, &queue).await;
    publisher(&loops, bench.broker.clone(), &queue, Duration::ZERO).publish(&queue.name, vec![dispatch]).await;
    assert_eq!(bench.hand().await.take_all("orders").await.len(), there, "an old claim was published");
    assert_eq!(loops.counter.databases.home().owned_shards.heap_len(), 1, "it is looked at again");
}

/// A broker that returns every message.
#[derive(Debug)]
struct Unbound;

impl Publish for Unbound {
    fn state(&self) -> watch::Receiver<BrokerState> {
        watch::channel(BrokerState::Up { blocked: false }).1
    }

    async fn publish(&self, _route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        let returned = |Outgoing { delivery, .. }: Outgoing| Published {
            id: delivery.id,
            attempt: delivery.attempt,
            sent_at: Some(Instant::now()),
            outcome: Outcome::Refused(NotTaken::Unroutable),
        };
        batch.into_iter().map(returned).collect()
    }
}

/// A broker without the exchange of any message.
#[derive(Debug)]
struct Missing;

impl Publish for Missing {
    fn state(&self) -> watch::Receiver<BrokerState> {
        watch::channel(BrokerState::Up { blocked: false }).1
    }

    async fn publish(&self, _route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        let unknown = |Outgoing { delivery, .. }: Outgoing| Published {
            id: delivery.id,
            attempt: delivery.attempt,
            sent_at: Some(Instant::now()),
            outcome: Outcome::Unknown("there is no such exchange".to_owned()),
        };
        batch.into_iter().map(unknown).collect()
    }
}

#[tokio::test]
async fn a_message_for_an_exchange_that_its_delay_exchange_has_left_neither_closes_nor_opens_a_lane() {
    let loops = Loops::new().await;
    let queue = Queue::with_defaults(QueueName::new("orders.delayed"));
    let publisher = publisher(&loops, Missing, &queue, LONG);
    let leads_to = |deliver_to: &str| {
        publisher.delay_rules.replace([DelayRule {
            exchange: "orders.delayed".to_owned(),
            route: DelayRoute::new("orders.delayed", deliver_to),
            unroutable: Unroutable::SetAside,
        }])
    };
    let mut dispatch = claimed(&loops, &queue).await;
    let (id, owned_shards) = (dispatch.delivery.id, &loops.database().owned_shards);
    dispatch.delivery.envelope = Some(Box::new(Envelope { exchange: "ordres".to_owned(), ..Envelope::default() }));
    let again = || of(dispatch.delivery.clone());

    assert_eq!(leads_to("orders"), std::slice::from_ref(&queue.name));
    publisher.publish(&queue.name, vec![again()]).await;
    assert!(publisher.lanes.is_open(&queue.name, Instant::now()), "others go elsewhere by now");
    leads_to("ordres");
    publisher.publish(&queue.name, vec![again()]).await;
    assert!(!publisher.lanes.is_open(&queue.name, Instant::now()), "all messages go to the missing exchange");
    leads_to("orders");
    publisher.publish(&queue.name, vec![again()]).await;
    assert!(!publisher.lanes.is_open(&queue.name, Instant::now()), "it says nothing about the present exchange");
    let probed_at = Instant::now();
    assert!(publisher.lanes.may_probe(&queue.name, probed_at), "and takes no probe from the other messages");
    let mut rescued = dispatch.delivery.clone();
    rescued.redelivered = true;
    publisher.publish(&queue.name, vec![of(rescued)]).await;
    let soon = probed_at + Duration::from_millis(100);
    assert!(!publisher.lanes.may_probe(&queue.name, soon), "one that comes again was no probe");
    publisher.lanes.open(&queue.name);
    assert!(publisher.lanes.is_open(&queue.name, Instant::now()), "a new configuration does that");
    assert_eq!(loops.test.state_of(id).await.as_deref(), Some("dispatching"));
    assert_eq!(owned_shards.heap_len(), 1, "it is looked at again");
}

#[tokio::test]
async fn a_message_that_is_returned_again_leaves_its_lane_as_it_is_and_one_that_is_returned_first_closes_it() {
    let loops = Loops::new().await;
    let mut queue = Queue::with_defaults(QueueName::new("orders"));
    (queue.policy.exchange, queue.policy.unroutable) = (Some("events".to_owned()), Unroutable::Wait);
    let publisher = publisher(&loops, Unbound, &queue, LONG);
    let again = Delivery { redelivered: true, ..claimed(&loops, &queue).await.delivery };
    let is_open = || publisher.lanes.is_open(&queue.name, Instant::now());

    publisher.publish(&queue.name, vec![of(again.clone())]).await;
    assert!(is_open(), "others may find a queue");
    assert_eq!(loops.database().owned_shards.heap_len(), 1, "it is looked at again");
    publisher.publish(&queue.name, vec![of(again.clone()), dispatch("orders", Instant::now())]).await;
    assert!(!is_open(), "there may be no queue at all");
    publisher.publish(&queue.name, vec![of(again.clone())]).await;
    assert!(!is_open(), "it shows no queue");

    let declared = Queue::with_defaults(QueueName::new("mails"));
    publisher.publish(&declared.name, vec![of(Delivery { queue: declared.name.clone(), ..again })]).await;
    assert!(!publisher.lanes.is_open(&declared.name, Instant::now()), "its queue is missing");
}

/// Publishes three tasks of `queue` that reach no consumer, while the archive refuses the second one.
async fn ends_around_a_refused_one(queue: Queue) {
    let loops = Loops::new().await;
    let ids = loops.three(|task| task.queue = queue.name.clone()).await;
    let (database, owned_shards, open) = (&loops.test.database, &loops.database().owned_shards, BTreeSet::new());
    let claimed = database.task_claim(&ids, &loops.fences, Duration::ZERO, &open, i64::MAX).await.unwrap();
    owned_shards.begin(ids);
    database.ping().await.unwrap();
    loops.test.refuse("INSERT", "archive", "id", &ids[1].uuid().to_string()).await;
    let batch = claimed.deliveries.into_iter().map(of).collect();
    publisher(&loops, Unbound, &queue, LONG).publish(&queue.name, batch).await;
    for (id, state) in ids.into_iter().zip(["dead", "dispatching", "dead"]) {
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some(state));
    }
    assert_eq!(loops.test.quarantine().await, [("report".to_owned(), Some(format!("{}:1", ids[1])))]);
    assert_eq!((owned_shards.in_flight(), owned_shards.heap_len()), (0, 0), "no rescue publishes it again");
    let next = crate::store::tests::node("b");
    let taken = database.shard_acquire(&[ids[1].shard()], &next).await.unwrap().into_iter().collect();
    assert_eq!(database.task_takeover(&taken, 100).await.unwrap(), [], "the next owner leaves it alone");
}

#[tokio::test]
async fn neighbours_of_a_returned_task_whose_end_is_refused_are_dead_and_it_is_set_aside() {
    let mut queue = Queue::with_defaults(QueueName::new("orders"));
    queue.policy.exchange = Some("events".to_owned());
    queue.policy.unroutable = Unroutable::SetAside;
    ends_around_a_refused_one(queue).await;
}

#[tokio::test]
async fn neighbours_of_a_task_that_does_not_fit_and_whose_end_is_refused_are_dead_and_it_is_set_aside() {
    let mut queue = Queue::with_defaults(QueueName::new("orders"));
    queue.policy.format = Format::Celery;
    ends_around_a_refused_one(queue).await;
}

#[tokio::test]
async fn a_task_that_does_not_fit_is_dead_also_where_its_confirm_would_finish_it() {
    let mut queue = Queue::with_defaults(QueueName::new("orders"));
    (queue.policy.format, queue.policy.settle) = (Format::Celery, Settle::Confirm);
    ends_around_a_refused_one(queue).await;
}

/// A broker that confirms every message at once.
#[derive(Debug)]
struct Quick;

impl Publish for Quick {
    fn state(&self) -> watch::Receiver<BrokerState> {
        watch::channel(BrokerState::Up { blocked: false }).1
    }

    async fn publish(&self, _route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        let confirmed = |Outgoing { delivery, .. }: Outgoing| Published {
            id: delivery.id,
            attempt: delivery.attempt,
            sent_at: Some(Instant::now()),
            outcome: Outcome::Done(()),
        };
        batch.into_iter().map(confirmed).collect()
    }
}

/// A broker that does not take the first message of each batch for this reason, and confirms the others.
#[derive(Debug)]
struct Returning(NotTaken);

impl Publish for Returning {
    fn state(&self) -> watch::Receiver<BrokerState> {
        watch::channel(BrokerState::Up { blocked: false }).1
    }

    async fn publish(&self, route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        let mut published = Quick.publish(route, batch).await;
        published[0].outcome = Outcome::Refused(self.0.clone());
        published
    }
}

#[tokio::test]
async fn messages_that_reach_no_consumer_are_in_the_log_once_for_each_reason_and_not_with_each_publish() {
    let (log, loops, lanes) = (Log::keep(), Loops::new().await, Arc::<Lanes>::default());
    let queue = |unroutable, format| {
        let mut queue = Queue::with_defaults(QueueName::new("orders"));
        queue.policy.exchange = Some("orders".to_owned());
        (queue.policy.unroutable, queue.policy.format) = (unroutable, format);
        queue
    };
    let refused = NotTaken::Unacceptable { reason: "406 PRECONDITION_FAILED".to_owned() };
    for (queue, why, news) in [
        (queue(Unroutable::Wait, Format::Raw), NotTaken::Unroutable, "rule=Wait"),
        (queue(Unroutable::Drop, Format::Raw), NotTaken::Unroutable, "rule=Drop"),
        (queue(Unroutable::SetAside, Format::Raw), NotTaken::Unroutable, "rule=SetAside"),
        (queue(Unroutable::Wait, Format::Raw), refused, "the broker refuses messages"),
        (queue(Unroutable::Wait, Format::Celery), NotTaken::Nacked, "payloads do not fit"),
        (queue(Unroutable::Wait, Format::Raw), NotTaken::Nacked, r#"reason="RabbitMQ refused it (nack)"#),
    ] {
        let (settlements, _settled) = Settlements::channel(100);
        let (settlements, lanes) = ([settlements].into_iter().collect(), Arc::clone(&lanes));
        let publisher = Publisher { settlements, lanes, ..publisher(&loops, Returning(why), &queue, LONG) };
        for _ in 0..10 {
            publisher.publish(&queue.name, ["orders"; 2].map(|queue| dispatch(queue, Instant::now())).into()).await;
            // Consumers have made room.
            publisher.lanes.open(&queue.name);
        }
        assert_eq!(log.count(news), 1, "{news}");
    }
    assert_eq!(log.count("the broker returned messages"), 30);
}

#[tokio::test]
async fn a_database_whose_confirms_are_not_written_keeps_no_task_of_another_from_its_publish() {
    const WINDOW: usize = 1_100;
    let loops = Loops::new().await;
    let queues = ["orders", "mails", "calls"].map(|name| Queue::with_defaults(QueueName::new(name)));
    let [(home, mut settled), (stuck, _unread)] = [Settlements::channel(WINDOW), Settlements::channel(WINDOW)];
    let settlements = [home, stuck].into_iter().collect();
    let publisher = Publisher { settlements, ..publisher(&loops, Quick, &queues[0], LONG) };
    let published = async {
        for number in 0..WINDOW {
            let queue = &queues[number % queues.len()].name;
            let database = DatabaseIndex::new(1);
            let one = Dispatch { database, ..dispatch(queue.as_str(), Instant::now()) };
            publisher.publish(queue, vec![one]).await;
        }
        publisher.publish(&queues[0].name, vec![dispatch("orders", Instant::now())]).await;
        settled.recv().await
    };
    let settled = tokio::time::timeout(LONG, published).await.expect("no publish waits for the settler of a database");
    assert_eq!(settled.map(|confirmed| confirmed.len()), Some(1));
}

#[tokio::test]
async fn a_database_that_does_not_end_an_unfit_task_keeps_no_other_from_its_publish() {
    let loops = Loops::new().await;
    let mut queue = Queue::with_defaults(QueueName::new("orders"));
    queue.policy.format = Format::Celery;
    let unfit = claimed(&loops, &queue).await;
    let id = unfit.delivery.id;
    let mut fit = dispatch("orders", Instant::now());
    fit.delivery.content.payload = br#"{"task":"mails.send"}"#.to_vec();
    let (settlements, mut settled) = Settlements::channel(100);
    let settlements = [settlements].into_iter().collect();
    let publisher = Publisher { settlements, ..publisher(&loops, Quick, &queue, LONG) };
    loops.test.be_patient(PoolKind::Fire).await;
    let mut hold = loops.test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").execute(&mut *hold).await.unwrap();
    let go_on = async {
        let confirmed = tokio::time::timeout(LONG, settled.recv()).await.expect("the other one is published");
        assert_eq!(confirmed.map(|confirmed| confirmed.len()), Some(1));
        sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    };
    tokio::join!(publisher.publish(&queue.name, vec![unfit, fit]), go_on);
    assert_eq!(loops.test.state_of(id).await.as_deref(), Some("dead"), "its end had to wait for nothing else");
}

#[tokio::test]
async fn more_messages_than_there_is_room_for_are_handed_over_in_their_order() {
    let (claimed, mut dispatches) = mpsc::channel(3);
    let messages: Vec<Dispatch> = (0..10).map(|_| dispatch("orders", Instant::now())).collect();
    let ids: Vec<TaskId> = messages.iter().map(|one| one.delivery.id).collect();
    let receive = async {
        for id in ids {
            assert_eq!(dispatches.recv().await.map(|one: Dispatch| one.delivery.id), Some(id));
        }
    };
    tokio::join!(hand_over(&claimed, messages), receive);
    drop(dispatches);
    hand_over(&claimed, [dispatch("orders", Instant::now())]).await;
}

/// Publishes a burst, and a message a span later, to a broker that never answers. Returns how many messages left with
/// that one, and how long after its due moment. `None`: the burst was too long ago for the rate to count it.
async fn after_a_burst(loops: &Loops, queue: &Queue) -> Option<(usize, Duration)> {
    let (batches, mut sent) = mpsc::channel(MANY);
    let (claimed, dispatches) = mpsc::channel(MANY);
    // Few of each queue, so that they do not wait for room. All are there when the publisher starts, so it counts
    // them at one moment.
    let due = |number| {
        let other = format!("other-{}", number / 10);
        dispatch(if number < 10 { queue.name.as_str() } else { &other }, Instant::now())
    };
    hand_over(&claimed, (0..MANY).map(due)).await;
    let began = Instant::now();
    let running = spawn_child(publisher(loops, Silent(batches), queue, LONG).run(dispatches));
    let mut left = MANY;
    while left > 0 {
        left -= tokio::time::timeout(LONG, sent.recv()).await.expect("they leave").expect("the publisher runs");
    }
    // The rate counts a span once it has passed.
    tokio::time::sleep(SPAN).await;
    let last = due(0);
    let due_at = last.publish_at;
    hand_over(&claimed, [last]).await;
    let left_with = tokio::time::timeout(LONG, sent.recv()).await.expect("it leaves while no batch has ended");
    let late = due_at.elapsed();
    running.abort();
    left_with.filter(|_| began.elapsed() < 2 * SPAN).map(|messages| (messages, late))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_for_a_batch_leaves_although_the_batch_never_ends() {
    let loops = Loops::new().await;
    let queue = Queue::with_defaults(QueueName::new("orders"));
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        let Some((messages, late)) = after_a_burst(&loops, &queue).await else { continue };
        assert_eq!(messages, 1);
        assert!(late >= HOLD, "it did not wait: {late:?}");
        return;
    }
    panic!("this machine is too slow for the rate to count a burst");
}
