//! Arbitrary messages in the queues that nodes read: each becomes a task, is quarantined or is set aside, and the
//! nodes go on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{
    load::Load,
    raw_amqp::{self, RawAmqp, Sent},
    sandbox::Sandbox,
};
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::{Connection as _, PgConnection};

use crate::{confirm, scenario, stream::Stream, until};

const DELAY_EXCHANGE: &str = "\n[[delay_exchange]]\nname = \"late\"\ntype = \"topic\"\ndeliver_to = \"orders\"\n";
/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// The number of random messages, beside those that are known to be hard.
const MESSAGES: usize = 400;

/// Counts of the messages published by hand.
#[derive(Debug, Default)]
struct Published {
    /// To be a task, or to be set aside.
    submitted: i64,
    /// To be applied, or to be quarantined.
    reported: i64,
}

/// The target of a message: exchange and routing key.
const TARGETS: [(&str, &[u8]); 5] = [
    ("", b"duetime.submit"),
    ("", b"duetime.results"),
    ("", b"duetime.rejected"),
    ("late", b"some.key"),
    ("late", b"caf\xe9.key"),
];

/// Properties that have proved hard, each with a body.
fn hard() -> Vec<(Vec<u8>, Vec<u8>)> {
    use raw_amqp::{deepest, headers, message_id, nested, text};
    let queue = text(b"duetime-queue", b"fuzzed");
    let submission = |more: &[u8]| headers(&[&queue[..], more].concat());
    vec![
        (headers(&nested(b"n", deepest(0))), Vec::new()),
        (submission(&nested(b"n", deepest(queue.len()))), b"{}".to_vec()),
        (submission(&nested(b"n", 1_500)), b"{}".to_vec()),
        (submission(&nested(b"n", 20)), b"{}".to_vec()),
        (message_id(b"\xff"), b"{}".to_vec()),
        (message_id(b"a\0b"), b"\0".to_vec()),
        (headers(&text(b"nul", b"a\0b")), b"{\"status\":\"succeeded\"}".to_vec()),
        (headers(&text(b"a\0b", b"a")), vec![0xff; 300_000]),
        (headers(&text(b"long", &vec![b'x'; 120_000])), b"{}".to_vec()),
        (submission(&text(b"duetime-key", b"a\0b")), b"{}".to_vec()),
        (submission(b"\x04nameF\0\0\0\x05\x01aA\0\0"), b"{}".to_vec()),
        (submission(b""), b"{\"good\":true}".to_vec()),
        (submission(b""), vec![b'x'; 3 << 20]),
    ]
}

async fn publish(
    raw: &mut RawAmqp,
    published: &mut Published,
    target: usize,
    properties: &[u8],
    body: &[u8],
) -> Result<()> {
    let (exchange, routing_key) = TARGETS[target];
    if raw.publish(exchange, routing_key, properties, body).await? == Sent::Confirmed {
        let count = if [1, 2].contains(&target) { &mut published.reported } else { &mut published.submitted };
        *count += 1;
    }
    Ok(())
}

/// Declares the exchange that delayed messages go on to, and a queue that takes all of them.
async fn declare_orders(sandbox: &Sandbox) -> Result<()> {
    let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare("orders".into(), ExchangeKind::Fanout, options, FieldTable::default()).await?;
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare("orders".into(), options, FieldTable::default()).await?;
    let bind = QueueBindOptions::default();
    channel.queue_bind("orders".into(), "orders".into(), "".into(), bind, FieldTable::default()).await?;
    Ok(())
}

async fn count(database: &mut PgConnection, from: &str) -> Result<i64> {
    let statement = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {from}"));
    Ok(sqlx::query_scalar(statement).fetch_one(database).await?)
}

/// The tasks of these queues, live and finished. One statement counts both: a task may end between two.
async fn tasks_of(database: &mut PgConnection, queues: &str) -> Result<i64> {
    let of = |table: &str| format!("SELECT 1 FROM duetime.{table} WHERE queue IN ({queues})");
    count(database, &format!("({} UNION ALL {}) AS known", of("task"), of("archive"))).await
}

async fn sum(sandbox: &Sandbox, metric: &str) -> Result<i64> {
    let mut sum = 0.0;
    for client in sandbox.clients() {
        sum += client.metric(metric).await?.with_context(|| format!("there is no {metric}"))?;
    }
    Ok(sum as i64)
}

async fn depth(sandbox: &Sandbox, queue: &str) -> Result<i64> {
    let words = ["list_queues", "-p", sandbox.vhost(), "name", "messages", "--no-table-headers", "--quiet"];
    let listing = sandbox.rabbit().ctl(&words).await?;
    let line = listing.lines().find_map(|line| line.trim().strip_prefix(queue)?.strip_prefix('\t'));
    Ok(line.with_context(|| format!("no queue {queue}: {listing}"))?.trim().parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_made_by_hand_cost_no_node_and_no_neighbour_anything() {
    scenario(Sandbox::builder().nodes(2).config(DELAY_EXCHANGE), async |sandbox| {
        let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
        declare_orders(sandbox).await?;
        sandbox.put_queues(&[("fuzzed", confirm())]).await?;
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let pids: Vec<_> = sandbox.nodes().iter().map(|node| node.pid()).collect();
        let beside = Stream::start(sandbox, &[0, 1], Load::new("mail", 20));
        let mut raw = RawAmqp::connect(&sandbox.amqp_url()).await?;
        let (mut dice, mut published) = (StdRng::seed_from_u64(seed), Published::default());
        for (properties, body) in hard() {
            for target in 0..TARGETS.len() {
                publish(&mut raw, &mut published, target, &properties, &body).await?;
            }
        }
        for _ in 0..MESSAGES {
            let properties = raw_amqp::random_properties(&mut dice, 0.05);
            let target = dice.random_range(0..TARGETS.len());
            publish(&mut raw, &mut published, target, &properties, b"{\"status\":\"succeeded\"}").await?;
            for client in sandbox.clients() {
                let (is_ready, said) = client.readiness().await?;
                ensure!(is_ready, "seed {seed}: a node is not ready: {said}");
            }
        }
        beside.end().await?;
        ensure!(published.submitted > 100 && published.reported > 100, "seed {seed}: {published:?}");
        account(sandbox, &published).await.with_context(|| format!("seed {seed}"))?;
        ensure!(sum(sandbox, "duetime_broker_reconnects_total").await? == 0, "seed {seed}: a connection was lost");
        let now: Vec<_> = sandbox.nodes().iter().map(|node| node.pid()).collect();
        ensure!(now == pids && sandbox.nodes().iter().all(|node| node.is_running()), "seed {seed}: a node ended");
        Ok(())
    })
    .await;
}

/// Checks that every message became a task, was quarantined or was set aside.
async fn account(sandbox: &Sandbox, published: &Published) -> Result<()> {
    let mut database = PgConnection::connect(&sandbox.database_url(0)).await?;
    let mut seen = Seen::default();
    let accounted = until("all messages are accounted for", SOON, async || {
        seen = Seen::look(sandbox, &mut database).await.ok()?;
        let Seen { tasks, invalid, quarantined, stale } = seen;
        (tasks + invalid == published.submitted && quarantined + stale == published.reported).then_some(())
    })
    .await;
    accounted.with_context(|| format!("{seen:?} of {published:?}"))?;
    ensure!(seen.tasks > 0 && seen.invalid > 0 && seen.quarantined > 0, "{seen:?}");
    Ok(())
}

/// Counts of what became of the messages.
#[derive(Debug, Default)]
struct Seen {
    tasks: i64,
    /// Set aside in RabbitMQ.
    invalid: i64,
    quarantined: i64,
    stale: i64,
}

impl Seen {
    async fn look(sandbox: &Sandbox, database: &mut PgConnection) -> Result<Self> {
        Ok(Self {
            tasks: tasks_of(database, "'late', 'fuzzed'").await?,
            invalid: depth(sandbox, "duetime.submit.invalid").await?,
            quarantined: count(database, "duetime.quarantine").await?,
            stale: sum(sandbox, "duetime_reports_stale_total").await?,
        })
    }
}

/// The peak memory of a process, in bytes.
pub(crate) fn peak(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("Linux says it")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_large_messages_takes_a_bounded_part_of_a_nodes_memory() {
    scenario(Sandbox::builder().nodes(1).config(DELAY_EXCHANGE), async |sandbox| {
        sandbox.put_queues(&[("fuzzed", confirm())]).await?;
        let mut raw = RawAmqp::connect(&sandbox.amqp_url()).await?;
        let pid = sandbox.node(0).pid().context("the node runs")?;
        let before = peak(pid)?;
        let properties = raw_amqp::headers(&raw_amqp::text(b"duetime-queue", b"fuzzed"));
        // A node holds messages that it cannot store: while PostgreSQL is away, prefetch alone would let it hold all
        // of these.
        sandbox.postgres(0).pause()?;
        let large = vec![b'x'; 8 << 20];
        for _ in 0..24 {
            ensure!(raw.publish("", b"duetime.submit", &properties, &large).await? == Sent::Confirmed);
        }
        let usual = vec![b'x'; 250 << 10];
        for _ in 0..800 {
            ensure!(raw.publish("", b"duetime.submit", &properties, &usual).await? == Sent::Confirmed);
        }
        let aside = until("the large ones are set aside", SOON, async || {
            depth(sandbox, "duetime.submit.invalid").await.ok().filter(|aside| *aside == 24)
        })
        .await;
        let grown = peak(pid)?.saturating_sub(before);
        sandbox.postgres(0).resume()?;
        aside?;
        ensure!(grown < 128 << 20, "the node's memory grew by {} MiB", grown >> 20);
        let mut database = PgConnection::connect(&sandbox.database_url(0)).await?;
        let tasks = until("the 800 became tasks", SOON, async || {
            tasks_of(&mut database, "'fuzzed'").await.ok().filter(|tasks| *tasks >= 800)
        })
        .await?;
        ensure!(tasks == 800, "{tasks} tasks of 800 messages");
        Ok(())
    })
    .await;
}
