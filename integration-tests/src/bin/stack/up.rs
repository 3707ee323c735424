//! `stack up`: stores and three nodes, detached from the shell that started them.

use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use integration_tests::sandbox::{
    DatabaseConfig, Etcd, Identity, Node, NodeConfig, Postgres, Rabbit, Tether, migrate,
    secret::{remembered_own, remembered_port},
};
use lapin::{Connection, ConnectionProperties, ExchangeKind, options::ExchangeDeclareOptions, types::FieldTable};
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    down,
    env_file::Addresses,
    place::{Place, Running},
    say::say,
};

const READY_WITHIN: Duration = Duration::from_secs(60);
const DATABASE: &str = "duetime";
/// A delay exchange and its target, to try delays as the delayed-message plugin offers them.
const DELAY_EXCHANGE: &str = "demo.delayed";
const DELAY_TARGET: &str = "demo.target";

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// How long a silent node keeps its shards.
    #[arg(long, default_value_t = 10)]
    lease_ttl_s: u64,
}

/// The stores of one stack.
struct Stores {
    postgres: Postgres,
    etcd: Etcd,
    rabbit: Rabbit,
}

/// What has been started so far. Each start is on record at once, so that `down` finds what an `up` that is killed
/// leaves behind.
struct Record<'a> {
    place: &'a Place,
    running: Mutex<Running>,
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    let place = Place::new(base)?;
    if place.is_whole()? {
        say("The local stack already runs.");
    } else {
        // Processes of an earlier stack would be in the way.
        down::stop(&place).await?;
        let started = tokio::select! {
            biased;
            interrupted = asked_to_end() => interrupted,
            started = start(&place, options) => started,
        };
        if started.is_err() {
            down::stop(&place).await?;
        }
        started.with_context(|| format!("all is stopped again; the logs are in {}", place.folder.display()))?;
    }
    print_commands(&place)?;
    Ok(ExitCode::SUCCESS)
}

/// Fails once this process is asked to end: by Ctrl-C, by `kill`, or because its terminal is gone. `nohup` has the last
/// of them ignored, and it stays so.
async fn asked_to_end() -> Result<()> {
    let ignores_hangup = ignores_hangup()?;
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupts.recv() => {}
        _ = terminations.recv() => {}
        _ = hangups.recv(), if !ignores_hangup => {}
    }
    bail!("interrupted")
}

/// Whether the caller had this process ignore SIGHUP, the first bit of the mask.
fn ignores_hangup() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).context("Linux tells it")?;
    Ok(u64::from_str_radix(mask.trim(), 16)? & 1 == 1)
}

async fn start(place: &Place, options: &Options) -> Result<()> {
    let began = Instant::now();
    let record = Record { place, running: Mutex::default() };
    let stores = start_stores(&record).await?;
    say(format_args!("PostgreSQL, etcd and RabbitMQ run ({:.1} s)", began.elapsed().as_secs_f32()));

    let nodes = prepare_nodes(place, options, &stores).await?;
    for node in &nodes {
        node.start()?;
        record.add_node(node)?;
    }
    for node in &nodes {
        node.wait_ready(READY_WITHIN).await?;
    }
    declare_target(&nodes).await?;
    say(format_args!("{} nodes are ready ({:.1} s)", nodes.len(), began.elapsed().as_secs_f32()));

    let config = nodes.first().context("there is at least one node")?.config();
    Addresses {
        urls: nodes.iter().map(Node::url).collect(),
        token: config.token.clone(),
        pids: record.running.lock().nodes.iter().map(|node| node.pid).collect(),
        amqp_url: config.amqp_url.clone(),
        database_urls: config.databases.iter().map(|database| database.url.clone()).collect(),
        etcd_endpoints: config.etcd_endpoints.clone(),
        delay_exchange: DELAY_EXCHANGE.to_owned(),
        delay_target: DELAY_TARGET.to_owned(),
    }
    .write(&place.env_file)
}

impl Record<'_> {
    fn add_stores(&self, name: &str, pids: impl IntoIterator<Item = u32>) -> Result<()> {
        let mut running = self.running.lock();
        // One that has already ended needs no record.
        running.stores.extend(pids.into_iter().filter_map(|pid| Identity::of(name, pid).ok()));
        self.place.remember(&running)
    }

    fn add_node(&self, node: &Node) -> Result<()> {
        let mut running = self.running.lock();
        running.nodes.push(Identity::of(node.name(), node.pid().context("it has just been started")?)?);
        self.place.remember(&running)
    }
}

/// Declares the target of delayed messages. It belongs to the application, and here this program is the application.
async fn declare_target(nodes: &[Node]) -> Result<()> {
    let url = &nodes.first().context("there is at least one node")?.config().amqp_url;
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(DELAY_TARGET.into(), ExchangeKind::Topic, options, FieldTable::default()).await?;
    Ok(connection.close(200, "OK".into()).await?)
}

/// Starts the stores, all at the same time. No launch is followed by a wait before it is on record.
async fn start_stores(record: &Record<'_>) -> Result<Stores> {
    record.place.make_stores()?;
    let folder = |name: &str| record.place.stores.join(name);
    let postgres = async {
        let server = Postgres::launched(&folder("postgres"), Tether::Detached).await?;
        record.add_stores("postgresql", server.pid())?;
        server.restart().await?;
        anyhow::Ok(server)
    };
    let etcd = async {
        let cluster = Etcd::launched(&folder("etcd"), 1, Tether::Detached)?;
        record.add_stores("etcd", cluster.pids())?;
        cluster.restart_all().await?;
        anyhow::Ok(cluster)
    };
    let rabbit = async {
        let broker = Rabbit::launched(&folder("rabbit"), Tether::Detached)?;
        record.add_stores("rabbitmq", broker.pids())?;
        broker.restart().await?;
        anyhow::Ok(broker)
    };
    let (postgres, etcd, rabbit) = tokio::try_join!(postgres, etcd, rabbit)?;
    Ok(Stores { postgres, etcd, rabbit })
}

async fn prepare_nodes(place: &Place, options: &Options, stores: &Stores) -> Result<Vec<Node>> {
    let folder = place.nodes();
    fs::create_dir_all(&folder)?;
    let database = DatabaseConfig {
        name: "main".into(),
        url: stores.postgres.ensure_database(DATABASE).await?,
        shards: String::new(),
    };
    let token = remembered_own(&place.folder.join("token"))?;
    let mut nodes = Vec::new();
    for number in 1..=options.nodes.max(1) {
        let name = format!("node-{number}");
        let config = NodeConfig {
            port: remembered_port(&folder.join(format!("{name}.port")))?,
            name,
            etcd_endpoints: stores.etcd.endpoints(),
            etcd_prefix: "/duetime".into(),
            lease_ttl: Duration::from_secs(options.lease_ttl_s),
            databases: vec![database.clone()],
            amqp_url: stores.rabbit.url("/"),
            token: token.clone(),
            more: format!(
                "[[delay_exchange]]\nname = {DELAY_EXCHANGE:?}\ntype = \"topic\"\ndeliver_to = {DELAY_TARGET:?}\n"
            ),
        };
        // A history grows for as long as its node runs, on the disk of the stores.
        nodes.push(Node::new(&folder, config, Tether::Detached)?.without_history());
    }
    if let Some(first) = nodes.first() {
        migrate(first).await.context("if you no longer need its data: `make down ARGS=--purge` removes it")?;
    }
    Ok(nodes)
}

fn print_commands(place: &Place) -> Result<()> {
    let env = place.env_file.display();
    let settings = fs::read_to_string(&place.env_file).with_context(|| format!("reading {env}"))?;
    let urls = settings.lines().find_map(|line| line.strip_prefix("export DUETIME_URLS=")).unwrap_or_default();
    let urls = urls.trim_matches('\'').replace(',', "  ");
    say(format_args!(
        r#"
Nodes: {urls}
Logs:  {logs}

Try it:

  source {env}
  api=${{DUETIME_URLS%%,*}}; auth="Authorization: Bearer $DUETIME_TOKEN"

  # hand over a greeting in 5 seconds
  curl -s "$api/v1/tasks" -H "$auth" -d '{{"queue":"greetings","payload":{{"hello":"world"}},"delay_ms":5000}}'

  # look it up, run it now, cancel it
  curl -s "$api/v1/tasks/<id>" -H "$auth"
  curl -s -X POST "$api/v1/tasks/<id>/run" -H "$auth"
  curl -s -X DELETE "$api/v1/tasks/<id>" -H "$auth"

  # who owns what, and what is in a queue
  curl -s "$api/v1/cluster" -H "$auth"
  curl -s "$api/v1/queues/greetings" -H "$auth"

  # consume: any AMQP client; with Debian's amqp-tools
  amqp-consume --url="$AMQP_URL" -q greetings cat

Stop it: make down"#,
        logs = place.nodes().display(),
    ));
    Ok(())
}
