//! Each loop gets a row that the database refuses: its neighbours pass, the loop goes on, and the row is set aside
//! with its reason.

mod held;
mod trouble;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    delay::{
        ClaimSize, Lead,
        heap::{Entry, WakeKind},
    },
    ids::{Attempt, Epoch, QueueName, ShardId, TaskId},
    outbox::Dispatch,
    queue::{Queue, QueueBook},
    task::{Dependency, NewTask, ValidTask, verdict::AfterConfirm},
    time::UnixMicros,
    wire::amqp::RESULTS,
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    dispatch::{
        claims::ClaimHandler,
        dispatcher::{Dispatcher, Pace},
        ready_starter::ReadyStarter,
    },
    nudger::Nudger,
    outcome::{
        archiver::Archiver,
        releaser::Releaser,
        reporter::{self, ReportLines, Reporter},
        settler::{Confirmed, Settlements, Settler},
    },
    upkeep::prober::NodeFitness,
};
use crate::{
    audit::{Audit, AuditMetrics},
    broker::{BrokerState, tests::bench},
    clock,
    desk::tests::{Counter, fresh},
    intake::sql::SqlIntake,
    metrics::Metrics,
    receipt::ReceiptKeys,
    store::{
        quarantine::Quarantined,
        submit::Sending,
        tests::{
            changed,
            fixture::{self, TestDatabase},
            new_task,
        },
    },
    supervise::spawn_child,
    traces::Traces,
    working_set::{
        database::{DatabaseIndex, NodeDatabase},
        lanes::Lanes,
        set_aside::Kind,
    },
};

pub(super) const SUCCEED: AfterConfirm = AfterConfirm::Succeed { keep_ms: 60_000 };
pub(super) const DELIVER: AfterConfirm = AfterConfirm::Deliver { timeout_ms: 60_000 };

/// Longer than anything takes on a busy machine.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// The queue whose rows a test's database refuses.
pub(super) const POISON: &str = "poison";

/// The confirm of a first attempt. It gives way to due messages.
pub(super) fn confirmed(id: TaskId, verdict: AfterConfirm) -> Confirmed {
    let (attempt, queue) = (Attempt::new(1), QueueName::new("orders"));
    Confirmed { id, attempt, queue, verdict, at: clock::instant(), gives_way: true }
}

pub(super) struct Loops {
    pub(super) counter: Counter,
    pub(super) test: TestDatabase,
    pub(super) metrics: Arc<Metrics>,
    pub(super) fences: BTreeMap<ShardId, Epoch>,
    broker: watch::Sender<BrokerState>,
    pub(super) keys: watch::Sender<Option<Arc<ReceiptKeys>>>,
}

impl Loops {
    /// A node's loops over a fresh database, of which it owns shard 0.
    pub(super) async fn new() -> Self {
        let (counter, test) = fresh().await;
        let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
        let queues = ["orders", POISON].map(|name| Queue::with_defaults(QueueName::new(name)));
        counter.books.store(Arc::new(QueueBook::new(1, queues)));
        let node = crate::store::tests::node("a");
        let taken = test.database.shard_acquire(&[ShardId::new(0)], &node).await.unwrap();
        let fences: BTreeMap<ShardId, Epoch> = taken.into_iter().collect();
        counter.databases.all()[0]
            .owned_shards
            .adopt(&fences.iter().map(|(shard, epoch)| (*shard, *epoch)).collect::<Vec<_>>());
        let broker = watch::channel(BrokerState::Up { blocked: false }).0;
        let keys = watch::channel(Some(Arc::default())).0;
        Self { counter, test, metrics, fences, broker, keys }
    }

    pub(super) fn database(&self) -> &NodeDatabase {
        &self.counter.databases.all()[0]
    }

    fn releaser(&self) -> Releaser {
        Releaser::new(Nudger::new(self.counter.databases.clone(), Duration::from_secs(10)))
    }

    pub(super) fn reporter(&self) -> Reporter {
        Reporter {
            databases: self.counter.databases.clone(),
            books: Arc::clone(&self.counter.books),
            releaser: self.releaser(),
            metrics: Arc::clone(&self.metrics),
            traces: Traces::default(),
            receipts: self.keys.subscribe(),
            lines: ReportLines::default(),
            default_exchange: true,
            audit: Audit::new(AuditMetrics::register(&Registry::new()).unwrap()).0,
        }
    }

    fn sql_intake(&self) -> SqlIntake {
        SqlIntake {
            index: DatabaseIndex::HOME,
            databases: self.counter.databases.clone(),
            desk: self.counter.desk.clone(),
            books: Arc::clone(&self.counter.books),
            fitness: watch::channel(NodeFitness::default()).1,
            releaser: self.releaser(),
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// Writes two tasks of `orders` with one of the poisoned queue between them, on shard 0, due at once.
    pub(super) async fn three(&self, change: impl Fn(&mut ValidTask)) -> [TaskId; 3] {
        let ids: [TaskId; 3] = std::array::from_fn(|_| fixture::fresh_id_of(ShardId::new(0)));
        let task = |(id, queue): (&TaskId, _)| {
            changed(new_task(*id), |task| {
                task.queue = QueueName::new(queue);
                change(task);
            })
        };
        let tasks: Vec<NewTask> = ids.iter().zip(["orders", POISON, "orders"]).map(task).collect();
        self.test.database.task_submit(&tasks, Sending::First).await.unwrap();
        ids
    }

    /// Writes three `ready` tasks of one queue, the second with the partition key [`POISON`].
    async fn three_ready(&self) -> [TaskId; 3] {
        let change = |task: &mut ValidTask| {
            task.partition_key = Some(task.queue.to_string());
            task.queue = QueueName::new("orders");
        };
        let ids = self.three(change).await;
        sqlx::raw_sql("UPDATE duetime.task SET state = 'ready'").execute(&self.test.pool).await.unwrap();
        ids
    }

    pub(super) async fn claimed(&self) -> [TaskId; 3] {
        let ids = self.three(|_| ()).await;
        let claimed =
            self.test.database.task_claim(&ids, &self.fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await;
        assert_eq!(claimed.unwrap().deliveries.len(), 3);
        ids
    }

    /// A settler for a window of so many tasks.
    pub(super) fn settler(&self, window: usize, lanes: &Arc<Lanes>) -> Settler {
        let (databases, releaser) = (self.counter.databases.clone(), self.releaser());
        let (lanes, metrics) = (Arc::clone(lanes), Arc::clone(&self.metrics));
        Settler { databases, index: DatabaseIndex::HOME, releaser, window, lanes, metrics }
    }

    /// Hands three confirms to a settler, and waits until it has ended.
    pub(super) async fn settle(&self, ids: [TaskId; 3], verdict: AfterConfirm) {
        let (settlements, confirms) = Settlements::channel(100);
        settlements.confirmed(ids.map(|id| confirmed(id, verdict)).to_vec()).await;
        drop(settlements);
        let run = self.settler(100, &Arc::default()).run(confirms, CancellationToken::new());
        tokio::time::timeout(LONG, run).await.expect("the settler ends when every row is written or set aside");
    }

    /// Handles claims. The returned receiver yields what it hands to the publisher.
    pub(super) fn claims(&self) -> (ClaimHandler, mpsc::Receiver<Dispatch>) {
        let (publisher, dispatches) = mpsc::channel(100);
        let (database, metrics) = (self.database().clone(), Arc::clone(&self.metrics));
        (ClaimHandler { database, index: DatabaseIndex::HOME, publisher, metrics, longest_hold: LONG }, dispatches)
    }

    /// Starts tasks that wait for room, and hands them to the publisher with `claims`.
    pub(super) fn ready_starter(&self, claims: ClaimHandler) -> ReadyStarter {
        ReadyStarter {
            claims,
            pace: Pace { batch: 100, window: 1_000 },
            lanes: Arc::default(),
            books: Arc::clone(&self.counter.books),
            broker: self.broker.subscribe(),
            places: self.counter.store.places().clone(),
            progress: Arc::default(),
        }
    }

    /// Wakes `ids` in a dispatcher. The returned receiver yields what it hands to the publisher.
    pub(super) fn dispatch(&self, kind: WakeKind, ids: &[TaskId]) -> (mpsc::Receiver<Dispatch>, CancellationToken) {
        let (claims, dispatches) = self.claims();
        self.database().owned_shards.offer(ids.iter().map(|id| Entry { wake_at: UnixMicros::new(0), id: *id, kind }));
        let (stop, lead) = (CancellationToken::new(), Lead::new(Duration::ZERO, Instant::now()));
        spawn_child(self.dispatcher(claims, lead).run(stop.clone()));
        (dispatches, stop)
    }

    pub(super) fn dispatcher(&self, claims: ClaimHandler, lead: Lead) -> Dispatcher {
        Dispatcher {
            claims,
            pace: Pace { batch: 100, window: 1_000 },
            lead: Arc::new(Mutex::new(lead)),
            size: Arc::new(Mutex::new(ClaimSize::new(100))),
            lanes: Arc::default(),
            books: Arc::clone(&self.counter.books),
            broker: self.broker.subscribe(),
            sounded: None,
            reporter: self.reporter(),
        }
    }

    async fn until_aside(&self, kind: Kind) {
        until(|| async { self.database().set_aside.count(kind) > 0 }).await;
        until(|| async { !self.test.quarantine().await.is_empty() }).await;
        let reasons = self.database().set_aside.reasons();
        assert!(reasons.iter().any(|reason| reason.contains(kind.text()) && reason.contains("refuses")), "{reasons:?}");
    }

    async fn until_state(&self, id: TaskId, state: &str) {
        until(|| async { self.test.state_of(id).await.as_deref() == Some(state) }).await;
    }

    /// Whether the task wakes at the end of all times, where no preload, takeover or deadline finds it.
    async fn is_parked(&self, id: TaskId) -> bool {
        sqlx::query_scalar("SELECT wake_at > now() + interval '1000 years' FROM duetime.task WHERE id = $1")
            .bind(id.uuid())
            .fetch_one(&self.test.pool)
            .await
            .unwrap()
    }
}

pub(super) async fn until<F: Future<Output = bool>>(done: impl Fn() -> F) {
    let deadline = Instant::now() + LONG;
    while !done().await {
        assert!(Instant::now() < deadline, "not within {LONG:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Receives `count` dispatches.
pub(super) async fn ids_of(dispatches: &mut mpsc::Receiver<Dispatch>, count: usize) -> BTreeSet<TaskId> {
    let mut ids = BTreeSet::new();
    while ids.len() < count {
        ids.insert(tokio::time::timeout(LONG, dispatches.recv()).await.expect("in time").expect("open").delivery.id);
    }
    ids
}

#[tokio::test]
async fn a_refused_end_is_set_aside_and_never_published_again_and_its_neighbours_finish() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.test.refuse("INSERT", "archive", "queue", POISON).await;
    loops.settle(ids, SUCCEED).await;
    let states = [ids[0], ids[1], ids[2]].map(|id| loops.test.state_of(id));
    let states = futures::future::join_all(states).await;
    assert_eq!(
        states.iter().map(|state| state.as_deref().unwrap()).collect::<Vec<_>>(),
        ["succeeded", "dispatching", "succeeded"]
    );
    assert!(loops.is_parked(ids[1]).await);
    assert_eq!(loops.database().set_aside.count(Kind::Confirm), 1);
    assert_eq!(loops.test.quarantine().await, [("confirm".to_owned(), Some(format!("{}:1", ids[1])))]);
    let later = crate::store::tests::node("b");
    let taken = loops.test.database.shard_acquire(&[ShardId::new(0)], &later).await.unwrap().into_iter().collect();
    assert_eq!(loops.test.database.task_takeover(&taken, 100).await.unwrap(), [], "the next owner leaves it alone");
}

#[tokio::test]
async fn a_refused_delivery_is_left_alone_and_its_neighbours_are_delivered() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.test.refuse("UPDATE", "task", "queue", POISON).await;
    loops.settle(ids, DELIVER).await;
    for id in [ids[0], ids[2]] {
        assert_eq!(loops.test.state_of(id).await.as_deref(), Some("delivered"));
    }
    let owned_shards = &loops.database().owned_shards;
    owned_shards.offer(ids.map(|id| Entry { wake_at: UnixMicros::new(0), id, kind: WakeKind::Rescue }));
    assert_eq!(owned_shards.heap_len(), 2, "no row of it can be changed, so a pass does not retry it");
}

#[tokio::test]
async fn neighbours_of_a_task_whose_claim_is_refused_are_claimed() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    loops.test.refuse("UPDATE", "task", "queue", POISON).await;
    let (mut dispatches, _stop) = loops.dispatch(WakeKind::Claim, &ids);
    assert_eq!(ids_of(&mut dispatches, 2).await, BTreeSet::from([ids[0], ids[2]]));
    loops.until_aside(Kind::Claim).await;
}

#[tokio::test]
async fn neighbours_of_a_ready_task_whose_start_is_refused_are_started() {
    let loops = Loops::new().await;
    let ids = loops.three_ready().await;
    loops.test.refuse("UPDATE", "task", "partition_key", POISON).await;
    let (claims, mut dispatches) = loops.claims();
    let stop = CancellationToken::new();
    spawn_child(loops.ready_starter(claims).run(stop.clone()));
    assert_eq!(ids_of(&mut dispatches, 2).await, BTreeSet::from([ids[0], ids[2]]));
    loops.until_aside(Kind::Claim).await;
    // Later tasks start in one statement, which passes over the refused one.
    let late = loops.three(|task| task.queue = QueueName::new("orders")).await;
    sqlx::raw_sql("UPDATE duetime.task SET state = 'ready' WHERE state = 'scheduled'")
        .execute(&loops.test.pool)
        .await
        .unwrap();
    assert_eq!(ids_of(&mut dispatches, 3).await, BTreeSet::from(late));
    assert_eq!(loops.database().set_aside.count(Kind::Claim), 1);
    stop.cancel();
}

#[tokio::test]
async fn neighbours_of_a_task_whose_rescue_is_refused_are_rescued() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.test.refuse("UPDATE", "task", "queue", POISON).await;
    let (mut dispatches, _stop) = loops.dispatch(WakeKind::Rescue, &ids);
    assert_eq!(ids_of(&mut dispatches, 2).await, BTreeSet::from([ids[0], ids[2]]));
    loops.until_aside(Kind::Rescue).await;
}

#[tokio::test]
async fn neighbours_of_a_task_whose_deadline_is_refused_end_and_it_is_set_aside() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    loops.settle(ids, DELIVER).await;
    sqlx::query("UPDATE duetime.task SET wake_at = now() - interval '1 s'").execute(&loops.test.pool).await.unwrap();
    loops.test.refuse("INSERT", "archive", "queue", POISON).await;
    let (_dispatches, _stop) = loops.dispatch(WakeKind::Deadline, &ids);
    for id in [ids[0], ids[2]] {
        loops.until_state(id, "succeeded").await;
    }
    loops.until_aside(Kind::Deadline).await;
    until(|| loops.is_parked(ids[1])).await;
}

#[tokio::test]
async fn neighbours_of_a_waiting_task_whose_release_is_refused_are_released() {
    let loops = Loops::new().await;
    let ids: [TaskId; 3] = std::array::from_fn(|_| fixture::fresh_id_of(ShardId::new(0)));
    sqlx::raw_sql("INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key, finished_at, drop_on)
                   VALUES (gen_random_uuid(), 0, 'orders', 'succeeded', now(), now(), '', 'x', 'first', 'p', now(), current_date + 1)")
        .execute(&loops.test.pool)
        .await
        .unwrap();
    for (id, queue) in ids.iter().zip(["orders", POISON, "orders"]) {
        let depends_on = vec![Dependency { queue: QueueName::new("orders"), key: "first".to_owned() }];
        let task = changed(new_task(*id), |task| {
            task.queue = QueueName::new(queue);
            task.partition_key = Some("p".to_owned());
            task.depends_on = depends_on;
        });
        let hold = crate::store::put::Retention { window_ms: 1, keep_ms: 1 };
        loops.test.database.task_put(&[task], &[hold]).await.unwrap();
    }
    loops.test.refuse("UPDATE", "task", "queue", POISON).await;
    let (_dispatches, _stop) = loops.dispatch(WakeKind::Look, &ids);
    for id in [ids[0], ids[2]] {
        until(|| async { loops.test.state_of(id).await.as_deref() != Some("waiting") }).await;
    }
    loops.until_aside(Kind::Release).await;
}

#[tokio::test]
async fn neighbours_of_an_expired_task_that_the_archive_refuses_expire() {
    let loops = Loops::new().await;
    let ids = loops.three(|task| task.expires_at = Some(UnixMicros::new(1))).await;
    loops.test.refuse("INSERT", "archive", "queue", POISON).await;
    let archiver = Archiver {
        database: loops.database().clone(),
        books: Arc::clone(&loops.counter.books),
        metrics: Arc::clone(&loops.metrics),
        audit: None,
    };
    spawn_child(archiver.run(CancellationToken::new()));
    for id in [ids[0], ids[2]] {
        loops.until_state(id, "expired").await;
    }
    loops.until_aside(Kind::Expiry).await;
    let next = loops.three(|task| task.expires_at = Some(UnixMicros::new(1))).await;
    loops.until_state(next[2], "expired").await;
}

#[tokio::test]
async fn rows_of_an_inbox_that_the_database_refuses_or_nobody_can_read_stay_there_and_their_neighbours_are_tasks() {
    let loops = Loops::new().await;
    loops.test.refuse("INSERT", "task", "queue", POISON).await;
    // Four rows like this, larger than any submission may be, once stopped an inbox for good.
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
         SELECT duetime.mint(now(), 0), 0, jsonb_build_object('queue', 'orders', 'headers', jsonb_build_object('a', repeat('x', 40000000))),
                now() - interval '1 minute'
           FROM generate_series(1, 4);
         SELECT duetime.submit('orders', '1'), duetime.submit('poison', '2'), duetime.submit('orders', '3'),
                duetime.submit('orders', '4', key => 'k'), duetime.submit('poison', '5', key => 'k')",
    )
    .execute(&loops.test.pool)
    .await
    .unwrap();
    spawn_child(loops.sql_intake().run(CancellationToken::new()));
    until(|| async { loops.test.live().await == 3 }).await;
    let left = "SELECT count(*) FROM duetime.inbox WHERE error IS NOT NULL";
    until(|| async { sqlx::query_scalar::<_, i64>(left).fetch_one(&loops.test.pool).await.unwrap() == 6 }).await;
    assert!(loops.database().set_aside.count(Kind::Inbox) >= 2);
}

#[tokio::test]
async fn what_the_quarantine_refuses_as_it_came_is_kept_in_a_form_that_it_takes() {
    let loops = Loops::new().await;
    let database = loops.database();
    let headers = serde_json::json!({ "x\0": "y\0" });
    let kept = |reason| Quarantined::new("results", reason, Some("a\0b"), headers.clone(), b"\0".to_vec());
    database.set_aside.quarantine(&database.sql, vec![kept("it has a \0 in it")]).await;
    loops.test.refuse("INSERT", "quarantine", "message_id", "a\u{fffd}b").await;
    database.set_aside.quarantine(&database.sql, vec![kept("again")]).await;
    assert_eq!(
        loops.test.quarantine().await,
        [("results".to_owned(), Some("a\u{fffd}b".to_owned())), ("results".to_owned(), None)]
    );
    loops.test.refuse("INSERT", "quarantine", "source", "results").await;
    database.set_aside.quarantine(&database.sql, vec![kept("not at all")]).await;
    assert_eq!(loops.test.quarantine().await.len(), 2);
    assert_eq!(database.set_aside.count(Kind::Quarantine), 3);
}

fn report(id: TaskId) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), AMQPValue::LongInt(1));
    headers.insert("nul".into(), AMQPValue::LongString("\0".into()));
    BasicProperties::default().with_correlation_id(id.to_string().into()).with_headers(headers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_cannot_be_kept_or_written_holds_up_no_other() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.test.refuse("INSERT", "archive", "queue", POISON).await;
    let hand = bench.hand().await;
    reporter::tests::start(loops.reporter(), bench.take_incoming());
    hand.publish(RESULTS, b"no JSON", report(ids[0])).await;
    for id in ids {
        hand.publish(RESULTS, br#"{"status":"succeeded"}"#, report(id)).await;
    }
    for id in [ids[0], ids[2]] {
        loops.until_state(id, "succeeded").await;
    }
    loops.until_aside(Kind::Report).await;
    until(|| loops.is_parked(ids[1])).await;
    let kept = loops.test.quarantine().await;
    assert!(["results", "report"].iter().all(|from| kept.iter().any(|(source, _)| source == from)), "{kept:?}");
}

#[tokio::test]
async fn a_row_that_is_left_alone_is_tried_again_after_a_while() {
    let loops = Loops::new().await;
    let (owned_shards, id) = (&loops.database().owned_shards, fixture::fresh_id_of(ShardId::new(0)));
    let entry = Entry { wake_at: UnixMicros::new(0), id, kind: WakeKind::Claim };
    for (until, is_first, heap_len) in [(Instant::now() + LONG, true, 0), (Instant::now(), false, 1)] {
        assert_eq!(owned_shards.set_aside(id, until), is_first);
        owned_shards.offer([entry]);
        assert_eq!(owned_shards.heap_len(), heap_len);
    }
}
