//! `stack bench`: measures a cluster on this machine, each part on fresh data, against its targets.
#![expect(clippy::disallowed_methods, reason = "this is not a node: its threads end with it")]

mod arrivals;
pub(crate) mod broker;
pub(crate) mod burst;
mod calls;
mod crowd;
pub(crate) mod drain;
pub(crate) mod feed;
mod findings;
mod first;
mod idle;
pub(crate) mod instants;
mod lateness;
mod limited;
mod limits;
mod machine;
mod moments;
mod moving;
pub(crate) mod numbers;
mod raw;
mod raw_lateness;
mod record;
pub(crate) mod report;
mod result;
mod same_work;
mod scale;
mod scrape;
mod shards;
pub(crate) mod singles;
pub(crate) mod sleeper;
mod soak;
mod steady;
mod submit;
mod takeover;
mod throughput;
mod times;
mod volume;
mod window;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use integration_tests::sandbox::{Builder, Postgres, Sandbox, scratch_below, shared};

use report::{Output, Report};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// RabbitMQ alone: publish and consume at the same time. With `throughput`, before each of its cases.
    Raw,
    /// How late tasks are published and arrive, with many others pending, and how late without Duetime.
    Lateness,
    /// Tasks a second from submission to ack, the ratio to RabbitMQ alone, and how long a task takes at half the rate.
    Throughput,
    /// Many tasks due at one instant, the ratio to RabbitMQ alone, and what they cost another queue.
    Burst,
    /// Tasks settled a second by the reports of their consumer, in order too, and what limits cost another queue.
    Result,
    /// Processor time of a task in clusters of 1 to 8 nodes and of 1 to 4 databases, under one load and under one load
    /// a node or a database.
    Scale,
    /// What queues that are paused, full, limited or ordered cost the others.
    Crowd,
    /// How long shards stand still when their owner dies or leaves.
    Takeover,
    /// What it costs that half of the shards move to a second database.
    Move,
    /// What a cluster of few and of many shards costs at idle, at its start and after a kill.
    Shards,
    /// How many tasks a second are durable before the answer: one by one, in batches, over AMQP, in SQL.
    Submit,
    /// How long look-ups, changes and cancels take, beside a stream of due tasks.
    Calls,
    /// What a cluster without tasks costs.
    Idle,
    /// How late the first tasks of a new cluster are, and of one that starts again.
    First,
    /// Whether anything grows in an hour of load. Only when it is named.
    Soak,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Settle {
    Confirm,
    Reject,
    Result,
}

impl Settle {
    const fn text(self) -> &'static str {
        match self {
            Self::Confirm => "confirm",
            Self::Reject => "reject",
            Self::Result => "result",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these parts; all but `soak` when absent. The ratio of `throughput` needs `raw`.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// How long each figure is measured.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Tasks due in some weeks that fill the database before lateness is measured.
    #[arg(long, default_value_t = 1_000_000)]
    pending: usize,
    /// Tasks due a second while lateness is measured, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [2_000, 6_000])]
    rate: Vec<u32>,
    /// Settle policies of the queues lateness is measured with.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Settle::Confirm])]
    settle: Vec<Settle>,
    /// Databases, each on a server of its own, over which throughput is spread, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    databases: Vec<usize>,
    /// Queues over which throughput and bursts are spread, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    queues: Vec<usize>,
    /// Look-ups, changes and cancels a second, one kind after another, over 64 connections.
    #[arg(long, default_value_t = 1_000)]
    calls_rate: u32,
    /// Tasks of a burst, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [50_000, 100_000])]
    burst: Vec<usize>,
    /// Tasks due a second in clusters of different sizes: in each, or in the largest where the load grows.
    #[arg(long, default_value_t = 2_000)]
    scale_rate: u32,
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Shards of the cluster; otherwise as many as `duetime migrate` chooses.
    #[arg(long)]
    shards: Option<u32>,
    /// Appended to each node's configuration, as TOML.
    #[arg(long, default_value = "")]
    config: String,
    /// Also report what the nodes did meanwhile: statements, claims, confirms.
    #[arg(long)]
    details: bool,
    /// Write the lateness of each arrival to this file, one line `due_us,late_us` each, to look for bad moments.
    #[arg(long)]
    arrivals: Option<PathBuf>,
    #[command(flatten)]
    soak: soak::SoakOptions,
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        if self.only.is_empty() { part != Part::Soak } else { self.only.contains(&part) }
    }

    /// The most databases of any part.
    fn servers(&self) -> usize {
        let of_move = if self.wants(Part::Move) { 2 } else { 1 };
        let of_scale = if self.wants(Part::Scale) { scale::DATABASES_MAX } else { 1 };
        self.databases.iter().copied().fold(of_move.max(of_scale), usize::max)
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// A cluster as in production: no watcher beside the benchmark itself.
    fn cluster(&self) -> Builder {
        let cluster =
            Sandbox::builder().nodes(self.nodes).lease_ttl(Duration::from_secs(10)).unwatched().config(&self.config);
        self.shards.into_iter().fold(cluster, Builder::shards)
    }
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    ensure!(options.seconds > 0, "measuring takes at least a second");
    ensure!(options.nodes > 0, "there is nothing to measure without a node");
    ensure!(options.rate.iter().all(|rate| *rate > 0), "a rate is at least 1 a second");
    ensure!(options.calls_rate > 0, "there is nothing to measure without calls");
    let most = shared::POSTGRES_MAX;
    ensure!(options.databases.iter().all(|count| (1..=most).contains(count)), "a bench has 1 to {most} databases");
    ensure!(options.burst.iter().all(|tasks| *tasks > 0), "a burst has at least one task");
    ensure!(options.scale_rate > 0, "a rate is at least 1 a second");
    ensure!(options.queues.iter().all(|queues| *queues > 0), "there is no throughput without a queue");
    let folder = base.join("bench");
    scratch_below(&folder)?;
    // Dropping a cluster stops its nodes; the stores end with this process.
    tokio::select! {
        outcome = measure(&folder, options) => outcome,
        _ = tokio::signal::ctrl_c() => {
            report::progress("\ninterrupted: all is stopped");
            Ok(ExitCode::from(130))
        }
    }
}

async fn measure(folder: &Path, options: &Options) -> Result<ExitCode> {
    let mut report = Report::new(options.output);
    for number in 0..options.servers() {
        ripen(shared::numbered_postgres(number).await?).await.context("preparing a database")?;
    }
    // With throughput, it runs right before each case that it is compared with.
    if options.wants(Part::Raw) && !options.wants(Part::Throughput) {
        raw::measure(options, &mut report).await.context("measuring RabbitMQ alone")?;
    }
    if options.wants(Part::Lateness) {
        lateness::measure(options, &mut report).await.context("measuring lateness")?;
    }
    if options.wants(Part::Throughput) {
        throughput::measure(options, &mut report).await.context("measuring throughput")?;
    }
    measure_load(options, &mut report).await?;
    if options.wants(Part::Crowd) {
        crowd::measure(options, &mut report).await.context("measuring many queues")?;
    }
    if options.wants(Part::Takeover) {
        ensure!(options.nodes >= 2, "a takeover needs at least two nodes");
        takeover::measure(options, &mut report).await.context("measuring takeovers")?;
    }
    if options.wants(Part::Move) {
        moving::measure(options, &mut report).await.context("measuring a move of shards")?;
    }
    if options.wants(Part::Shards) {
        shards::measure(options, &mut report).await.context("measuring the price of a shard")?;
    }
    measure_api(options, &mut report).await?;
    if options.wants(Part::Soak) {
        soak::measure(options, folder, &mut report).await.context("measuring growth")?;
    }
    report.end()
}

/// The parts about submissions and other calls, and about clusters that idle or begin.
async fn measure_api(options: &Options, report: &mut Report) -> Result<()> {
    if options.wants(Part::Submit) {
        submit::measure(options, report).await.context("measuring submissions")?;
    }
    if options.wants(Part::Calls) {
        calls::measure(options, report).await.context("measuring calls")?;
    }
    if options.wants(Part::Idle) {
        idle::measure(options, report).await.context("measuring an idle cluster")?;
    }
    if options.wants(Part::First) {
        first::measure(options, report).await.context("measuring the first tasks")?;
    }
    Ok(())
}

/// Bursts, reports, and clusters of different sizes.
async fn measure_load(options: &Options, report: &mut Report) -> Result<()> {
    if options.wants(Part::Burst) {
        burst::measure(options, report).await.context("measuring bursts")?;
    }
    if options.wants(Part::Result) {
        result::measure(options, report).await.context("measuring reports")?;
    }
    if options.wants(Part::Scale) {
        scale::measure(options, report).await.context("measuring clusters of different sizes")?;
    }
    Ok(())
}

/// Gives a fresh server a stock of old log files. A server that has run for a while recycles the files of its log. A
/// fresh one creates each file anew, and every commit then waits a tenth of a second.
pub(crate) async fn ripen(postgres: &Postgres) -> Result<()> {
    postgres.execute("ALTER SYSTEM SET min_wal_size = '1GB'").await?;
    postgres.execute("SELECT pg_reload_conf()").await?;
    postgres
        .execute(
            "DO $$ BEGIN FOR i IN 1..56 LOOP \
             PERFORM pg_logical_emit_message(false, 'bench', 'old'); PERFORM pg_switch_wal(); END LOOP; END $$",
        )
        .await?;
    postgres.execute("CHECKPOINT").await
}

/// Writes all dirty pages to disk, so that no later measurement pays for them.
async fn flush(cluster: &Sandbox) -> Result<()> {
    for postgres in cluster.postgreses() {
        postgres.execute("CHECKPOINT").await?;
    }
    tokio::process::Command::new("sync").status().await.context("running sync")?;
    Ok(())
}

/// Ends a cluster and removes its data, which would keep the database busy.
pub(crate) async fn end(cluster: Sandbox) -> Result<()> {
    let (servers, database): (Vec<_>, _) = (cluster.postgreses().collect(), cluster.vhost().to_owned());
    drop(cluster);
    for postgres in servers {
        postgres.drop_database(&database).await?;
    }
    Ok(())
}
