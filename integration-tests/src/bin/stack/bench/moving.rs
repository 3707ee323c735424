//! What a move of half of the shards to a second database costs the tasks that fire meanwhile.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use integration_tests::{clock::now_us, sandbox::Sandbox};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Options,
    drain::{Drain, Seen},
    feed::{Accepted, Feed, Way},
    findings::Arrived,
    lateness::fill,
    record::{Late, Record, missing},
    report::{Report, Target, progress},
};

const PART: &str = "move";
const QUEUE: &str = "moving";
const PER_SECOND: u32 = 2_000;
/// Until the stream's first tasks are all due.
const WARM_UP: Duration = Duration::from_secs(10);
/// The longest move that is waited for.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// A move is over when no source has rows of its shards left. That takes a while after the last cut.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A move may double the lateness of the slowest per cent.
const LATER_AT_MOST: f64 = 2.0;
const LATEST_MS: f64 = 1_000.0;
const LONGEST_CUT_MS: f64 = 500.0;

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("move: starting the cluster ...");
    let cluster = options.cluster().databases(2).first_has_all().start().await?;
    fill(&cluster, options.pending, report).await?;
    super::flush(&cluster).await?;

    let record = Arc::new(Record::default());
    let _drain = Drain::start(&cluster.amqp_url(), QUEUE, record.eye());
    let feed = Feed::new(cluster.clients());
    feed.open(QUEUE, "confirm", &record.seen).await?;
    let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
    let ways = [Way::to(QUEUE)];
    let until = Instant::now() + WARM_UP + options.time() * 2 + PATIENCE;
    let story = tokio::select! {
        story = story(options, &cluster) => story?,
        () = feed.stream(&ways, PER_SECOND, until, &accepted) => bail!("the move has not ended within {PATIENCE:?}"),
    };
    let accepted: Vec<Accepted> = accepted.lock().iter().filter(|task| task.due_us < story.until_us).copied().collect();
    let missing = missing(&accepted, &[&record]).await;
    let arrivals = record.take();
    tell(&story, &arrivals, report);
    Arrived::of(&arrivals).findings(missing).tell(PART, "", report);
    feed.tell_refused_under_stress(PART, report);
    super::end(cluster).await
}

/// When the phases of the measurement began, and what the cluster says of the moves.
struct Story {
    began_us: i64,
    moving_us: i64,
    moved_us: i64,
    until_us: i64,
    ended: Vec<Value>,
}

/// Waits, moves half of the shards, and waits again.
async fn story(options: &Options, cluster: &Sandbox) -> Result<Story> {
    tokio::time::sleep(WARM_UP).await;
    let began_us = now_us();
    tokio::time::sleep(options.time()).await;
    let client = cluster.live()?;
    let shards = client.cluster().await?["shards"].as_array().map_or(0, Vec::len);
    let half = format!("0-{}", shards / 2 - 1);
    progress(&format!("move: shards {half} go to the second database ..."));
    let moving_us = now_us();
    client
        .call::<Value>(Method::POST, "/v1/shards/moves", Some(&json!({ "shards": half, "to": "db2" })))
        .await
        .context("asking for the move")?;
    let ended = loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let moves: Value = client.call(Method::GET, "/v1/shards/moves", None).await?;
        if moves["moves"].as_array().is_some_and(Vec::is_empty) {
            break moves["ended"].as_array().cloned().unwrap_or_default();
        }
    };
    let moved_us = now_us();
    tokio::time::sleep(options.time()).await;
    Ok(Story { began_us, moving_us, moved_us, until_us: now_us(), ended })
}

fn tell(story: &Story, arrivals: &[Seen], report: &mut Report) {
    let seconds = (story.moved_us - story.moving_us) as f64 / 1e6;
    let rows: f64 = story.ended.iter().filter_map(|ended| ended["rows_copied"].as_f64()).sum();
    let cut_ms = story.ended.iter().filter_map(|ended| ended["cut_ms"].as_f64()).fold(0.0, f64::max);
    report.figure(PART, "shards moved", story.ended.len() as f64, "");
    report.figure(PART, "duration", seconds, "s");
    report.figure(PART, "rows copied", rows / seconds, "/s");
    report.judged(PART, "longest cut", cut_ms, "ms", Target::AtMost(LONGEST_CUT_MS));
    let phases = [
        ("before", story.began_us, story.moving_us),
        ("during", story.moving_us, story.moved_us),
        ("after", story.moved_us, story.until_us),
    ];
    let mut before_p99 = f64::NAN;
    for (phase, from_us, until_us) in phases {
        let late = Late::of(arrivals, &(from_us..until_us));
        let (p99, largest) = (late.ms(0.99), late.ms(1.0));
        report.figure(PART, &format!("{phase}: consumed late, p50"), late.ms(0.5), "ms");
        if phase == "during" {
            let target = Target::AtMost(LATER_AT_MOST * before_p99);
            report.judged(PART, &format!("{phase}: consumed late, p99"), p99, "ms", target);
            report.judged(PART, &format!("{phase}: consumed late, max"), largest, "ms", Target::AtMost(LATEST_MS));
        } else {
            report.figure(PART, &format!("{phase}: consumed late, p99"), p99, "ms");
            report.figure(PART, &format!("{phase}: consumed late, max"), largest, "ms");
            before_p99 = if phase == "before" { p99 } else { before_p99 };
        }
    }
}
