//! A broker under test, and a second client at the same virtual host that inspects and meddles.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    outcome::Outcome,
    task::{Content, Delivery},
    time::UnixMicros,
    wire::amqp::{ExchangeType, HEADER_REDELIVERED},
};
use futures::{FutureExt, StreamExt};
use integration_tests::sandbox::{Rabbit, shared};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::BasicGetMessage,
    options::{
        BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, QueueDeclareOptions,
        QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::{
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc},
    task::JoinHandle,
    time::timeout,
};
use uuid::Uuid;

use super::super::{
    AmqpSettings, Broker, BrokerMetrics, BrokerState, DelayExchange, Incoming, Login, NotTaken, Outgoing, Published,
    QueueDeclaration, Route, publisher::CONFIRM_WITHIN,
};

/// Longer than any step takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Held for writing by a test that disturbs the whole server.
static SERVER: RwLock<()> = RwLock::const_new(());

pub(crate) struct Bench {
    pub(crate) broker: Broker,
    pub(crate) incoming: mpsc::Receiver<Incoming>,
    pub(crate) metrics: Arc<BrokerMetrics>,
    pub(crate) rabbit: &'static Rabbit,
    pub(crate) vhost: String,
    pub(crate) keeper: JoinHandle<()>,
    url: String,
    _share: Option<RwLockReadGuard<'static, ()>>,
    _whole: Option<RwLockWriteGuard<'static, ()>>,
}

impl Bench {
    /// A connected bench that other tests may run beside.
    pub(crate) async fn new() -> Self {
        let share = SERVER.read().await;
        let mut bench = Self::open(CONFIRM_WITHIN, Vec::new()).await;
        bench._share = Some(share);
        bench
    }

    /// A connected bench that other tests may run beside, with a delay exchange `name`.
    pub(super) async fn with_delay_exchange(name: &str) -> Self {
        let share = SERVER.read().await;
        let exchange = DelayExchange { name: name.to_owned(), kind: ExchangeType::Topic };
        let mut bench = Self::open(CONFIRM_WITHIN, vec![exchange]).await;
        bench._share = Some(share);
        bench
    }

    /// A connected bench with the server to itself.
    pub(crate) async fn alone(confirm_within: Duration) -> Self {
        let whole = SERVER.write().await;
        let mut bench = Self::open(confirm_within, Vec::new()).await;
        bench._whole = Some(whole);
        bench
    }

    async fn open(confirm_within: Duration, delay_exchanges: Vec<DelayExchange>) -> Self {
        // `RUST_LOG` selects the log lines that are shown with a failure.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let rabbit = shared::rabbit().await.expect("a private RabbitMQ starts");
        let vhost = shared::unique("broker");
        let url = rabbit.add_vhost(&vhost).await.expect("a virtual host is made");
        let settings =
            AmqpSettings { login: Login::new(url.clone().into()), consume: true, delay_exchanges, cluster: None };
        let metrics = Arc::new(BrokerMetrics::register(&prometheus::Registry::new()).unwrap());
        let (broker, keeper) = Broker::with_confirm_deadline(settings, Arc::clone(&metrics), confirm_within);
        let incoming = broker.incoming();
        let keeper = crate::supervise::spawn_child(keeper);
        let bench = Self { broker, incoming, metrics, rabbit, vhost, keeper, url, _share: None, _whole: None };
        bench.until_up().await;
        bench
    }

    /// Publishes until one batch is taken as a whole. A queue that is electing a leader may refuse or keep
    /// silent for a while.
    pub(crate) async fn until_taken(&self, queue: &str) -> Vec<Published> {
        let mut last = String::new();
        let taken = async {
            loop {
                let published = self.broker.publish(&route(queue), batch(queue, 10)).await;
                if tally(&published).done == published.len() {
                    return published;
                }
                last = format!("{:?}", published[0]);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let taken = timeout(LONG, taken).await;
        taken.unwrap_or_else(|_| panic!("`{queue}` accepts no messages: {last}"))
    }

    /// Publishes the batch, and again as long as nothing of it was sent: a busy broker may need longer to declare a
    /// queue than a batch waits for it.
    pub(crate) async fn publish_once_ready(&self, route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        let mut last = String::new();
        let published = async {
            loop {
                let published = self.broker.publish(route, batch.clone()).await;
                if tally(&published).unknown == 0 || published.iter().any(|of| of.sent_at.is_some()) {
                    return published;
                }
                last = format!("{:?}", published[0]);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let published = timeout(LONG, published).await;
        published.unwrap_or_else(|_| panic!("nothing is sent: {last}"))
    }

    pub(crate) async fn until_up(&self) {
        self.until(|state| matches!(state, BrokerState::Up { blocked: false })).await;
    }

    pub(crate) async fn until(&self, wanted: impl Fn(&BrokerState) -> bool) {
        let mut state = self.broker.state();
        let waited = timeout(LONG, state.wait_for(|state| wanted(state))).await.map(|state| state.is_ok());
        assert!(waited == Ok(true), "the broker stays {:?}", self.broker.state().borrow());
    }

    pub(crate) async fn next(&mut self) -> Incoming {
        timeout(LONG, self.incoming.recv()).await.expect("something comes in").expect("the broker lives")
    }

    /// The messages that come back from the broker.
    pub(crate) fn take_incoming(&mut self) -> mpsc::Receiver<Incoming> {
        std::mem::replace(&mut self.incoming, mpsc::channel(1).1)
    }

    /// Takes the messages that come back, and counts them as they pass.
    pub(crate) fn counted(&mut self) -> (mpsc::Receiver<Incoming>, Arc<AtomicUsize>) {
        let mut arriving = self.take_incoming();
        let ((passed_on, incoming), arrivals) = (mpsc::channel(1), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&arrivals);
        crate::supervise::spawn_child(async move {
            while let Some(message) = arriving.recv().await {
                counted.fetch_add(1, Ordering::Relaxed);
                if passed_on.send(message).await.is_err() {
                    return;
                }
            }
        });
        (incoming, arrivals)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn hand(&self) -> Hand {
        Hand::at(&self.url).await
    }

    /// Drops every connection of this virtual host.
    pub(crate) async fn drop_connections(&self) {
        let words = ["close_all_connections", "--vhost", &self.vhost, "test"];
        self.rabbit.ctl(&words).await.expect("rabbitmqctl closes connections");
    }
}

/// A share of the server, and the server. No other test disturbs it while the share lives.
pub(super) async fn server() -> (RwLockReadGuard<'static, ()>, &'static Rabbit) {
    let share = SERVER.read().await;
    (share, shared::rabbit().await.expect("a private RabbitMQ starts"))
}

/// Runs `test` on a bench with the server to itself, which takes messages of at most 1,000 bytes.
pub(crate) async fn with_small_messages(test: impl AsyncFnOnce(&Bench)) {
    let bench = Bench::alone(CONFIRM_WITHIN).await;
    let limit = |bytes: usize| [format!("application:set_env(rabbit, max_message_size, {bytes})")];
    bench.rabbit.eval(&limit(1_000)).await.unwrap();
    let tested = AssertUnwindSafe(test(&bench)).catch_unwind().await;
    // Other tests use the same server: the limit ends with this test, whatever it found.
    bench.rabbit.eval(&limit(128 << 20)).await.unwrap();
    tested.unwrap_or_else(|panic| resume_unwind(panic));
}

/// A second client.
pub(crate) struct Hand {
    pub(crate) channel: Channel,
    _connection: Connection,
}

impl Hand {
    async fn at(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self { channel, _connection: connection }
    }

    pub(crate) async fn depth(&self, queue: &str) -> u32 {
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap().message_count()
    }

    pub(crate) async fn delete(&self, queue: &str) {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    /// Takes one message for good.
    pub(crate) async fn take(&self, queue: &str) -> Option<BasicGetMessage> {
        self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
    }

    /// Takes all messages that are in the queue now, and returns their ids in order.
    pub(crate) async fn take_all(&self, queue: &str) -> Vec<String> {
        self.take_each(queue).await.iter().map(message_id).collect()
    }

    /// Like [`Hand::take_all`], without the marked copies of messages that are in the queue too: on a busy machine a
    /// confirm can be in doubt.
    pub(crate) async fn take_all_but_copies(&self, queue: &str) -> Vec<String> {
        let taken = self.take_each(queue).await;
        taken.iter().filter(|of| !is_marked_as_copy(of)).map(message_id).collect()
    }

    async fn take_each(&self, queue: &str) -> Vec<BasicProperties> {
        let last = BasicProperties::default().with_message_id("last".into());
        self.publish(queue, b"", last).await;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consume = self.channel.basic_consume(queue.into(), "all".into(), options, FieldTable::default());
        let mut messages = consume.await.unwrap();
        let mut taken = Vec::new();
        loop {
            let message = timeout(LONG, messages.next()).await.expect("the last one comes").unwrap().unwrap();
            if message_id(&message.properties) == "last" {
                self.channel.basic_cancel("all".into(), BasicCancelOptions::default()).await.unwrap();
                return taken;
            }
            taken.push(message.properties.clone());
        }
    }

    pub(crate) async fn publish(&self, queue: &str, body: &[u8], properties: BasicProperties) {
        let options = BasicPublishOptions::default();
        self.channel.basic_publish("".into(), queue.into(), options, body, properties).await.unwrap();
    }
}

fn message_id(of: &BasicProperties) -> String {
    of.message_id().as_ref().unwrap().to_string()
}

fn is_marked_as_copy(of: &BasicProperties) -> bool {
    let mark = of.headers().as_ref().and_then(|headers| headers.inner().get(HEADER_REDELIVERED));
    mark == Some(&AMQPValue::Boolean(true))
}

pub(crate) fn route(queue: &str) -> Route {
    route_with_length(queue, 1_000_000)
}

pub(crate) fn route_with_length(queue: &str, max_length: i64) -> Route {
    Route {
        exchange: "duetime".to_owned(),
        routing_key: queue.to_owned(),
        declare: Some(QueueDeclaration { queue: QueueName::new(queue), max_length, use_existing: false }),
    }
}

pub(crate) fn outgoing(queue: &str) -> Outgoing {
    Outgoing {
        delivery: Delivery {
            id: TaskId::mint(Uuid::now_v7(), ShardId::new(7)),
            attempt: Attempt::new(1),
            attempts_base: Attempt::NONE,
            queue: QueueName::new(queue),
            due_at: UnixMicros::new(1_800_000_000_123_456),
            content: Content {
                payload: br#"{"n":1}"#.to_vec(),
                content_type: "application/json".to_owned(),
                headers: BTreeMap::new(),
            },
            priority: 3,
            key: None,
            partition_key: None,
            version: 0,
            max_attempts: None,
            timeout_ms: None,
            redelivered: false,
            envelope: None,
        },
        max_attempts: 25,
        wants_result: false,
        shaped: None,
        receipt: None,
        send_before: None,
    }
}

pub(crate) fn batch(queue: &str, len: usize) -> Vec<Outgoing> {
    std::iter::repeat_with(|| outgoing(queue)).take(len).collect()
}

/// The numbers of messages by their outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) done: usize,
    pub(crate) unroutable: usize,
    pub(crate) nacked: usize,
    pub(crate) unacceptable: usize,
    pub(crate) unknown: usize,
}

pub(crate) fn tally<'a>(published: impl IntoIterator<Item = &'a Published>) -> Tally {
    let mut tally = Tally::default();
    for one in published {
        match one.outcome {
            Outcome::Done(()) => tally.done += 1,
            Outcome::Refused(NotTaken::Unroutable) => tally.unroutable += 1,
            Outcome::Refused(NotTaken::Nacked) => tally.nacked += 1,
            Outcome::Refused(NotTaken::Unacceptable { .. }) => tally.unacceptable += 1,
            Outcome::Unknown(_) => tally.unknown += 1,
        }
    }
    tally
}
