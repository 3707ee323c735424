//! Whether anything grows in a cluster that runs for long under load: memory, handles, threads, tables, queues, keys.
//!
//! A stream of tasks goes over four queues, due in 2 to 10 s. 2 % of them are cancelled, 2 % moved, and 1 % fail twice.
//! Nothing is kept longer than the product has to, and the tool makes that shorter: [`day`] says how.

mod book;
mod day;
mod flat;
mod look;
mod traffic;

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Args;
use integration_tests::sandbox::Sandbox;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{
    Options,
    machine::Watch,
    report::{Report, Target, progress},
};
use book::Book;
use day::Days;
use look::{Csv, Looker, Row};
use traffic::Traffic;

const PART: &str = "soak";
/// The part of its rate that a soak has to reach: a cluster that takes nothing breaks no other rule.
const PART_OF_RATE: f64 = 0.95;
const CSV: &str = "soak.csv";
/// No task is missing while others still come. It is longer than the longest lead with a move and two retries.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(super) struct SoakOptions {
    /// Tasks that `soak` submits a second.
    #[arg(long, default_value_t = 4_000)]
    soak_rate: u32,
    /// How long `soak` runs.
    #[arg(long, default_value_t = 60)]
    soak_minutes: u64,
    /// Seconds between two looks of `soak`.
    #[arg(long, default_value_t = 60)]
    soak_every: u64,
}

impl SoakOptions {
    fn time(&self) -> Duration {
        Duration::from_secs(self.soak_minutes * 60)
    }

    fn every(&self) -> Duration {
        Duration::from_secs(self.soak_every)
    }
}

pub(super) async fn measure(options: &Options, folder: &Path, report: &mut Report) -> Result<()> {
    let soak = &options.soak;
    ensure!(soak.soak_rate > 0, "a rate is at least 1 a second");
    ensure!(soak.soak_minutes > 0 && soak.soak_every > 0, "a soak takes at least a minute, a look each second at most");
    progress("soak: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    super::flush(&cluster).await?;
    let book = Arc::<Book>::default();
    let traffic = Traffic::open(&cluster, soak.soak_rate, &book).await?;
    let csv = folder.join(CSV);
    progress(&format!("soak: {} minutes; its rows go to {}", soak.soak_minutes, csv.display()));
    let archive_settled = soak.time() / 4 >= day::SETTLED_AFTER;
    if !archive_settled {
        progress("soak: the size of the archive is not judged in a run of less than an hour");
    }

    let (began, watch) = (Instant::now(), Watch::start(&cluster));
    let mut days = Days::new(began);
    let submitting = async {
        traffic.run(began + soak.time()).await;
        Ok(())
    };
    let looking = looks(soak, &cluster, &book, &mut days, Csv::create(&csv)?, report);
    let (rows, ()) = tokio::try_join!(looking, submitting)?;
    let per_second = book.tally().submitted as f64 / soak.time().as_secs_f64();
    wait_all(&book).await;
    tell(&traffic, &book, soak.soak_rate, per_second, report);
    flat::judge(PART, &rows, flat::Run { per_second, nodes: options.nodes, archive_settled }, report);
    let alive = cluster.nodes().iter().filter(|node| node.is_running()).count();
    report.judged(PART, "nodes alive", alive as f64, "", Target::AtLeast(options.nodes as f64));
    watch.end(PART, report)?;
    days.tell(PART, &cluster, report).await?;
    drop(traffic);
    super::end(cluster).await
}

/// Waits until all accepted tasks have come, or no more of them come.
async fn wait_all(book: &Book) {
    let (mut open, mut deadline) = (book.open(), Instant::now() + PATIENCE);
    while open > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if book.open() < open {
            (open, deadline) = (book.open(), Instant::now() + PATIENCE);
        }
    }
}

async fn looks(
    soak: &SoakOptions,
    cluster: &Sandbox,
    book: &Book,
    days: &mut Days,
    mut csv: Csv,
    report: &mut Report,
) -> Result<Vec<Row>> {
    let mut looker = Looker::start(cluster).await?;
    let (began, mut rows) = (Instant::now(), Vec::new());
    let mut ticks = interval_at(began + soak.every(), soak.every());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < began + soak.time() {
        ticks.tick().await;
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let row = looker.look(minutes, book).await;
        csv.add(&row)?;
        let figures = row.cells.iter().map(|cell| (cell.name.as_str(), cell.value, cell.unit));
        report.row(&format!("{PART}, minute {minutes:.1}"), figures);
        rows.push(row);
        days.pass(cluster).await;
    }
    Ok(rows)
}

fn tell(traffic: &Traffic, book: &Book, rate: u32, per_second: f64, report: &mut Report) {
    let tally = book.tally();
    report.figure(PART, "submitted", tally.submitted as f64, "");
    report.judged(PART, "rate reached", per_second, "/s", Target::AtLeast(PART_OF_RATE * f64::from(rate)));
    traffic.feed.tell_refused_under_stress(PART, report);
    for (figure, count) in [
        ("left out: the stream was behind", traffic.left_out.load(Ordering::Relaxed)),
        ("cancelled", tally.cancelled),
        ("moved", tally.moved),
        ("cancels and moves without effect", tally.unchanged),
        ("attempts after the first", tally.retried),
        ("messages marked as possible copies", tally.marked),
    ] {
        report.figure(PART, figure, count as f64, "");
    }
    report.judged(PART, "attempts without a failure", tally.unasked as f64, "", Target::AtMost(0.0));
    for (figure, count) in [
        ("missing", book.open() as u64),
        ("early", tally.early),
        ("copies without a mark", tally.unmarked_copies),
        ("delivered after a cancel", tally.after_cancel),
    ] {
        report.finding(PART, figure, count);
    }
}
