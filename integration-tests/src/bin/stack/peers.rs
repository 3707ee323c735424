//! `stack peers`: Duetime and other schedulers on the same work, machine and run, and one table of what came of it.

mod chart;
mod collector;
mod delayed_plugin;
mod duetime;
mod judge;
mod limit_postgres;
mod limit_rabbit;
mod machine;
mod pace;
mod program;
mod results;
mod roster;
mod singles;
mod sorted_set;
mod stores;
mod table;
mod ttl_queue;
mod work;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use integration_tests::sandbox::{fresh, scratch_below};

use crate::bench::{broker, report::progress, sleeper::Sleeper};
use machine::Machine;
use results::{Results, Row};
use roster::Peer;
use stores::{Empty, Stores};
use work::{Order, Outcome, Work};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these peers; all when absent.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these works; all when absent.
    #[arg(long, value_enum, value_delimiter = ',')]
    works: Vec<Work>,
    /// How often each peer does each work.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// How long `late`, `throughput` and `submit` take.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Tasks due a second in `late`.
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// Tasks due in a month while `late` is measured.
    #[arg(long, default_value_t = 100_000)]
    pending: u64,
    /// Tasks due at one instant in `burst`.
    #[arg(long, default_value_t = 50_000)]
    tasks: u64,
    /// Clients of `submit`.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Tasks submitted at once where a peer can.
    #[arg(long, default_value_t = 1_000)]
    batch: usize,
    #[arg(long, default_value_t = 80)]
    payload_bytes: usize,
}

impl Options {
    fn works(&self) -> Vec<Work> {
        let wanted = |work: &&Work| self.works.is_empty() || self.works.contains(work);
        Work::value_variants().iter().filter(wanted).copied().collect()
    }

    fn order(&self, work: Work, empty: &Empty, arrivals: PathBuf) -> Order {
        Order {
            work,
            postgres_url: empty.postgres_url.clone(),
            redis_url: empty.redis_url(),
            amqp_url: empty.amqp_url.clone(),
            seconds: self.seconds,
            rate: self.rate,
            pending: self.pending,
            tasks: self.tasks,
            connections: self.connections,
            batch: self.batch,
            payload_bytes: self.payload_bytes,
            arrivals,
        }
    }

    fn amounts(&self) -> [(&'static str, u64); 8] {
        [
            ("runs", self.runs as u64),
            ("seconds", self.seconds),
            ("rate", self.rate),
            ("pending", self.pending),
            ("tasks", self.tasks),
            ("connections", self.connections as u64),
            ("batch", self.batch as u64),
            ("payload_bytes", self.payload_bytes as u64),
        ]
    }
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    ensure!(options.runs > 0 && options.seconds > 0 && options.rate > 0, "there is nothing to measure");
    ensure!(options.tasks > 0 && options.connections > 0 && options.batch > 0, "there is nothing to submit");
    let folder = base.join("peers");
    scratch_below(&folder)?;
    let folder = folder.canonicalize()?;
    let peers = roster::chosen(&options.only, &options.works(), &folder)?;
    // Dropping a peer stops it; the stores end with this process.
    tokio::select! {
        outcome = measure(options, &folder, peers) => outcome,
        _ = tokio::signal::ctrl_c() => {
            progress("\ninterrupted: all is stopped");
            Ok(ExitCode::from(130))
        }
    }
}

async fn measure(options: &Options, folder: &Path, peers: Vec<Peer>) -> Result<ExitCode> {
    let began = time_of_day();
    let machine = Machine::look().await?;
    progress(&format!("{} peers, {} runs of each work", peers.len(), options.runs));
    let mut rows = Vec::new();
    for peer in &peers {
        rows.push(installed(peer, &options.works()).await);
    }
    let (stores, sleeper) = (Stores::start().await?, Sleeper::start());
    let (versions, amounts) = (stores.versions().await?, options.amounts().into_iter().collect());
    let mut results =
        Results { began, machine, stores: versions.into_iter().collect(), amounts, sleeper_p99_ms: 0.0, rows };
    for round in 1..=options.runs {
        for work in options.works() {
            // Each round begins with another peer, so that none is always the first or the last.
            for place in 0..peers.len() {
                let turn = (place + round - 1) % peers.len();
                play(options, &stores, &peers[turn], work, round, &mut results.rows[turn]).await;
            }
        }
        // After each round: an interrupted comparison leaves the rounds before.
        results.sleeper_p99_ms = sleeper.p99_ms();
        write(folder, &results)?;
    }
    println!("{}", table::text(&results));
    progress(&format!("table.md, results.json and chart.svg are in {}", folder.display()));
    Ok(verdict(&results.rows))
}

/// Fails when Duetime took part and is not sound. Others may fail: that is a figure of theirs.
fn verdict(rows: &[Row]) -> ExitCode {
    match rows.iter().find(|row| row.peer == roster::DUETIME && !row.is_sound()) {
        None => ExitCode::SUCCESS,
        Some(row) => {
            let [lost, doubled, early] = row.findings().unwrap_or_default();
            let not_run = row.not_run.len();
            progress(&format!(
                "FAILED: duetime: {lost} lost, {doubled} doubled, {early} early; {not_run} works not run"
            ));
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path, results: &Results) -> Result<()> {
    for (name, content) in [
        ("table.md", table::text(results)),
        ("results.json", serde_json::to_string_pretty(results)?),
        ("chart.svg", chart::svg(results)),
    ] {
        std::fs::write(folder.join(name), content).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

async fn installed(peer: &Peer, works: &[Work]) -> Row {
    let mut row = Row { peer: peer.name().to_owned(), is_limit: peer.is_limit(), ..Row::default() };
    if let Err(error) = peer.install().await {
        let why = one_line(&error);
        progress(&format!("{}: not run: {why}", row.peer));
        row.not_run = works.iter().map(|work| (*work, why.clone())).collect();
    }
    row
}

/// Lets one peer do one work. What failed is not tried again in a later round.
async fn play(options: &Options, stores: &Stores, peer: &Peer, work: Work, round: usize, row: &mut Row) {
    if row.not_run.contains_key(&work) || row.not_its.contains_key(&work) || !peer.limits(work) {
        return;
    }
    let what = format!("round {round} of {}, {}, {}", options.runs, work.text(), row.peer);
    progress(&format!("{what} ..."));
    let sleeper = Sleeper::start();
    match outcome(options, stores, peer, work).await {
        Ok(outcome) => row.add(work, options.seconds, outcome, sleeper.p99_ms()),
        Err(error) => {
            let why = one_line(&error);
            progress(&format!("{what}: {why}"));
            row.not_run.insert(work, format!("in round {round}: {why}"));
        }
    }
}

async fn outcome(options: &Options, stores: &Stores, peer: &Peer, work: Work) -> Result<Outcome> {
    let (empty, folder) = (stores.empty().await?, fresh("arrivals"));
    let order = options.order(work, &empty, folder.join("arrivals"));
    let deadline = order.deadline();
    let ended = tokio::time::timeout(deadline, peer.run(&order)).await;
    std::fs::remove_dir_all(folder)?;
    stores.clear(empty).await?;
    ended.with_context(|| format!("it did not end within {} s", deadline.as_secs()))?
}

fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The date and time in UTC, as `date` prints it.
fn time_of_day() -> String {
    let said = std::process::Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    said.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned()).unwrap_or_default()
}
