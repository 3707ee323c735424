//! How long shards stand still when their owner dies, and when it leaves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_us, sandbox::Sandbox};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Options,
    drain::{Drain, Seen},
    feed::{Accepted, Feed, Way},
    findings::Arrived,
    record::{Record, missing},
    report::{Report, Target, progress},
};

const PER_SECOND: u32 = 500;
/// Until the stream's first tasks are all due.
const WARM_UP: Duration = Duration::from_secs(10);
/// The time measured after the owner's end: longer than any acceptable takeover, shorter than the stream's lead.
const AFTERWARDS: Duration = Duration::from_secs(12);
const LEAVES_WITHIN: Duration = Duration::from_secs(30);
const LONGEST_TAKEOVER: Duration = Duration::from_secs(2);
const LONGEST_HAND_OVER: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Leaving,
}

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("takeover: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    // Each has its own queue: a stream submits ahead, and its last tasks fire while the next one is measured.
    for (part, queue, end, master) in [
        ("takeover, an owner killed", "owner-killed", End::Killed, false),
        ("takeover, the master killed", "master-killed", End::Killed, true),
        ("hand-over, an owner leaves", "owner-leaves", End::Leaving, false),
        ("hand-over, the master leaves", "master-leaves", End::Leaving, true),
    ] {
        progress(&format!("{part} ..."));
        let chief = cluster.master().await?;
        let number = if master { chief } else { (chief + 1) % cluster.nodes().len() };
        round(&cluster, number, (part, queue), end, report).await?;
        cluster.restart(number).await?;
        cluster.settled().await?;
    }
    super::end(cluster).await
}

async fn round(
    cluster: &Sandbox,
    number: usize,
    (part, queue): (&str, &str),
    end: End,
    report: &mut Report,
) -> Result<()> {
    let record = Arc::new(Record::default());
    let _drain = Drain::start(&cluster.amqp_url(), queue, record.eye());
    let feed = Feed::new(cluster.clients());
    feed.open(queue, "confirm", &record.seen).await?;
    let shards = shards_of(cluster, number).await?;

    let until = Instant::now() + WARM_UP + AFTERWARDS;
    let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
    let ending = async {
        tokio::time::sleep(WARM_UP).await;
        let at_us = now_us();
        match end {
            End::Killed => cluster.kill(number),
            End::Leaving => {
                cluster.node(number).stop(LEAVES_WITHIN).await?;
            }
        }
        Ok::<_, anyhow::Error>(at_us)
    };
    let ways = [Way::to(queue)];
    let (ended_us, ()) = tokio::join!(ending, feed.stream(&ways, PER_SECOND, until, &accepted));
    let (ended_us, until_us) = (ended_us?, now_us());
    let accepted: Vec<Accepted> = accepted.lock().iter().filter(|task| task.due_us < until_us).copied().collect();
    let missing = missing(&accepted, &[&record]).await;

    let story = Story { arrivals: record.take(), shards, ended_us };
    let target = Target::AtMost(match end {
        End::Killed => LONGEST_TAKEOVER.as_secs_f64() * 1e3,
        End::Leaving => LONGEST_HAND_OVER.as_secs_f64() * 1e3,
    });
    report.judged(part, "longest wait of a task of its shards", story.longest_wait_us() as f64 / 1e3, "ms", target);
    report.figure(part, "last of its shards fired again after", story.last_shard_us() as f64 / 1e3, "ms");
    report.figure(part, "longest wait of any other task", story.longest_wait_of_others_us() as f64 / 1e3, "ms");
    let findings = Arrived::of(&story.arrivals).findings(missing);
    match end {
        End::Killed => findings.tell_around_a_fault(part, report),
        End::Leaving => findings.tell(part, "", report),
    }
    Ok(())
}

async fn shards_of(cluster: &Sandbox, number: usize) -> Result<BTreeSet<u16>> {
    let (name, report) = (cluster.node(number).name(), cluster.live()?.cluster().await?);
    let shards = report["shards"].as_array().context("the cluster's report lists its shards")?;
    let owned = shards.iter().filter(|shard| shard["owner"].as_str() == Some(name));
    let owned: BTreeSet<u16> = owned.filter_map(|shard| u16::try_from(shard["shard"].as_u64()?).ok()).collect();
    ensure!(!owned.is_empty(), "{name} owns no shards");
    Ok(owned)
}

struct Story {
    arrivals: Vec<Seen>,
    /// The shards of the node that ended.
    shards: BTreeSet<u16>,
    ended_us: i64,
}

impl Story {
    /// The waits of the tasks that the end of their owner could affect.
    fn waits_us(&self, of_shards: bool) -> impl Iterator<Item = i64> {
        let from_us = self.ended_us - 1_000_000;
        self.arrivals
            .iter()
            .filter(move |seen| seen.stamp_us >= from_us)
            .filter(move |seen| seen.shard.is_some_and(|shard| self.shards.contains(&shard)) == of_shards)
            .map(|seen| seen.at_us - seen.stamp_us)
    }

    fn longest_wait_us(&self) -> i64 {
        self.waits_us(true).max().unwrap_or(0)
    }

    fn longest_wait_of_others_us(&self) -> i64 {
        self.waits_us(false).max().unwrap_or(0)
    }

    /// From the end of the owner until each of its shards had delivered a task that became due since.
    fn last_shard_us(&self) -> i64 {
        let mut first: BTreeMap<u16, i64> = BTreeMap::new();
        for seen in self.arrivals.iter().filter(|seen| seen.stamp_us >= self.ended_us) {
            if let Some(shard) = seen.shard.filter(|shard| self.shards.contains(shard)) {
                let at_us = first.entry(shard).or_insert(seen.at_us);
                *at_us = (*at_us).min(seen.at_us);
            }
        }
        first.values().max().map_or(0, |last_us| last_us - self.ended_us)
    }
}
