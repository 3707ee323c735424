//! `stack demo`: a cluster of its own, a stream of tasks, the master killed half way, a verdict.

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use integration_tests::{
    clock::now_us,
    ledger::Verdict,
    load::Load,
    sandbox::{Sandbox, scratch_below},
};
use serde_json::json;
use tokio::sync::watch;

use crate::view::{Happening, View};

const QUEUE: &str = "demo";
/// The limit after the last submission: its due time, and the delay of a dead master.
const PATIENCE: Duration = Duration::from_secs(60);
/// Only requests that were open at the killed master have no answer: a batch or two of thousands.
const ACCEPTED_PERCENT: usize = 90;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long tasks are submitted.
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// Tasks a second.
    #[arg(long, default_value_t = 300)]
    rate: u32,
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// How long a silent node keeps its shards.
    #[arg(long, default_value_t = 3)]
    lease_ttl_s: u64,
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    if options.nodes < 2 {
        bail!("the demo kills the master: it needs at least two nodes");
    }
    scratch_below(&base.join("demo"))?;
    // Dropping the cluster stops its nodes; the stores end with this process.
    tokio::select! {
        outcome = play(options) => outcome,
        _ = tokio::signal::ctrl_c() => {
            println!("\ninterrupted: all is stopped");
            Ok(ExitCode::from(130))
        }
    }
}

async fn play(options: &Options) -> Result<ExitCode> {
    let began = Instant::now();
    println!("starting PostgreSQL, etcd, RabbitMQ and {} nodes ...", options.nodes);
    let cluster =
        Sandbox::builder().nodes(options.nodes).lease_ttl(Duration::from_secs(options.lease_ttl_s)).start().await?;
    cluster.consume_and_ack(QUEUE, &json!({})).await?;
    println!(
        "ready after {:.1} s; {} tasks a second for {} s",
        began.elapsed().as_secs_f32(),
        options.rate,
        options.seconds
    );

    let story = stream(&cluster, options).await?;
    let verdict = cluster.ledger.judge();
    tell(&cluster, &story, &verdict);
    let is_taken = verdict.accepted * 100 >= verdict.submitted * ACCEPTED_PERCENT;
    if !is_taken {
        println!("\nfewer than {ACCEPTED_PERCENT} of 100 submissions were accepted");
    }
    Ok(if verdict.holds() && is_taken { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The times of the story's events, in microseconds since 1970.
struct Story {
    killed_us: i64,
    /// When the remaining nodes owned all shards again.
    whole_us: i64,
}

/// Submits, kills the master half way, and waits for the last task, while the view shows it.
async fn stream(cluster: &Sandbox, options: &Options) -> Result<Story> {
    let (happen, happening) = watch::channel(Happening::default());
    let load = Load::new(QUEUE, options.rate).due_in_ms(200..5_000);
    let (clients, ledger) = (cluster.clients(), Arc::clone(&cluster.ledger));
    let time = Duration::from_secs(options.seconds);
    let submitting = async {
        load.run(&clients, &ledger, time).await;
        happen.send_modify(|happening| happening.phase = "all submitted, waiting for the last");
        cluster.ledger.wait_all(PATIENCE).await;
    };
    let killing = async {
        tokio::time::sleep(time / 2).await;
        let master = cluster.master().await?;
        let name = cluster.node(master).name().to_owned();
        let killed_us = now_us();
        cluster.kill(master);
        happen.send_modify(|happening| {
            happening.phase = "the master is dead";
            happening.note = Some(format!("{name} was master and has been killed"));
        });
        cluster.settled().await?;
        let whole_us = now_us();
        happen.send_modify(|happening| {
            happening.phase = "submitting";
            happening.note =
                Some(format!("the others owned all shards {:.1} s later", (whole_us - killed_us) as f64 / 1e6));
        });
        Ok(Story { killed_us, whole_us })
    };
    let view = View::new(cluster, happening);
    tokio::select! {
        (_, story) = async { tokio::join!(submitting, killing) } => story,
        never = view.show() => match never {},
    }
}

fn tell(cluster: &Sandbox, story: &Story, verdict: &Verdict) {
    let ledger = &cluster.ledger;
    println!("\n{verdict}");
    println!("    before the kill       {}", ledger.lateness(i64::MIN, story.killed_us));
    println!("    until all was owned   {}", ledger.lateness(story.killed_us, story.whole_us));
    println!("    after                 {}", ledger.lateness(story.whole_us, i64::MAX));
}
