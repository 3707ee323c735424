//! Lateness: of publishing by the nodes' own histogram, of arrival by the consumer's clock.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use integration_tests::{clock::now_us, sandbox::Sandbox};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Options, Settle,
    drain::{Drain, Eye, Seen},
    feed::{Accepted, Batch, Feed, Way},
    machine::Watch,
    report::{Report, Target, progress},
    scrape::Scrape,
    volume,
};

const FILL_BATCH: usize = 5_000;
/// Until the stream's first tasks are all due.
const WARM_UP: Duration = Duration::from_secs(10);
/// The limit for the last tasks of a measurement to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("lateness: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    fill(&cluster, options.pending, report).await?;
    super::flush(&cluster).await?;
    volume::pending(&cluster, options.pending, report).await?;
    for settle in &options.settle {
        for rate in &options.rate {
            stream(options, &cluster, *settle, *rate, report).await?;
        }
    }
    super::end(cluster).await
}

/// Submits tasks that stay pending throughout.
pub(super) async fn fill(cluster: &Sandbox, pending: usize, report: &mut Report) -> Result<()> {
    let began = Instant::now();
    let feed = Feed::new(cluster.clients());
    let stored = AtomicUsize::new(0);
    let count = |batch: Vec<Accepted>| {
        let all = stored.fetch_add(batch.len(), Ordering::Relaxed) + batch.len();
        if all % 100_000 < batch.len() {
            progress(&format!("{all} of {pending} pending tasks are stored"));
        }
    };
    feed.submit_all(&[Way::to("pending")], pending, FILL_BATCH, Batch::far, count).await?;
    if pending > 0 {
        report.figure("filling", "tasks stored", pending as f64 / began.elapsed().as_secs_f64(), "/s");
    }
    Ok(())
}

/// Arrivals of the tasks that are due while the measurement runs.
#[derive(Debug)]
struct Arrivals {
    from_us: AtomicI64,
    until_us: AtomicI64,
    seen: AtomicU64,
    early: AtomicU64,
    late_us: Mutex<Histogram<u64>>,
    /// The due instant and the lateness of each, where they are to be kept.
    each: Option<Mutex<Vec<(i64, u64)>>>,
}

impl Arrivals {
    fn new(keeps_each: bool) -> Arc<Self> {
        let (from_us, until_us, seen, early) = Default::default();
        let late_us = Mutex::new(Histogram::new_with_bounds(1, 600_000_000, 3).expect("ten minutes in three digits"));
        let each = keeps_each.then(Mutex::default);
        Arc::new(Self { from_us, until_us, seen, early, late_us, each })
    }

    fn note(&self, seen: Seen) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        if seen.stamp_us >= self.from_us.load(Ordering::Relaxed)
            && seen.stamp_us < self.until_us.load(Ordering::Relaxed)
        {
            match u64::try_from(seen.at_us - seen.stamp_us) {
                Ok(late_us) => {
                    self.late_us.lock().saturating_record(late_us);
                    if let Some(each) = &self.each {
                        each.lock().push((seen.stamp_us, late_us));
                    }
                }
                Err(_) => {
                    self.early.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn write_each(&self, file: &Path) -> Result<()> {
        let Some(each) = &self.each else { return Ok(()) };
        let mut lines = BufWriter::new(File::options().create(true).append(true).open(file)?);
        for (due_us, late_us) in each.lock().iter() {
            writeln!(lines, "{due_us},{late_us}")?;
        }
        Ok(lines.flush()?)
    }

    fn counted(&self) -> u64 {
        self.late_us.lock().len() + self.early.load(Ordering::Relaxed)
    }
}

async fn stream(options: &Options, cluster: &Sandbox, settle: Settle, rate: u32, report: &mut Report) -> Result<()> {
    let part = &format!("lateness {rate}/s {}", settle.text());
    let queue = &format!("late-{rate}-{}", settle.text());
    progress(&format!("{part}: {} s to warm up, {} s measured ...", WARM_UP.as_secs(), options.seconds));
    let (clients, arrivals) = (cluster.clients(), Arrivals::new(options.arrivals.is_some()));
    let eye: Eye = {
        let arrivals = Arc::clone(&arrivals);
        Arc::new(move |seen| arrivals.note(seen))
    };
    let _drain = Drain::start(&cluster.amqp_url(), queue, eye);
    let feed = Feed::new(clients.clone());
    feed.open(queue, settle.text(), &arrivals.seen).await?;

    let from_us = now_us() + WARM_UP.as_micros() as i64;
    let until_us = from_us + options.time().as_micros() as i64;
    arrivals.from_us.store(from_us, Ordering::Relaxed);
    arrivals.until_us.store(until_us, Ordering::Relaxed);
    let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
    let end = Instant::now() + WARM_UP + options.time();
    let watching = async {
        tokio::time::sleep(WARM_UP).await;
        let (watch, before) = (Watch::start(cluster), Scrape::of(&clients).await?);
        tokio::time::sleep_until(end).await;
        Ok::<_, anyhow::Error>((Scrape::of(&clients).await?.since(&before), watch))
    };
    let ways = [Way::to(queue)];
    let (watched, ()) = tokio::join!(watching, feed.stream(&ways, rate, end, &accepted));
    let (nodes, watch) = watched?;

    let expected = accepted.lock().iter().filter(|task| (from_us..until_us).contains(&task.due_us)).count() as u64;
    let deadline = Instant::now() + PATIENCE;
    while arrivals.counted() < expected && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tell_published(part, rate, &nodes.histogram("duetime_lateness_seconds", &format!("\"{queue}\"")), report);
    tell_arrived(part, rate, &arrivals, report);
    if let Some(file) = &options.arrivals {
        arrivals.write_each(file).with_context(|| format!("writing {}", file.display()))?;
    }
    let missing = expected.saturating_sub(arrivals.counted());
    report.figure(part, "tasks due while measured", expected as f64, "");
    report.judged(part, "missing", missing as f64, "", Target::AtMost(0.0));
    report.judged(part, "early", arrivals.early.load(Ordering::Relaxed) as f64, "", Target::AtMost(0.0));
    report.judged(part, "refused", feed.refused.load(Ordering::Relaxed) as f64, "", Target::AtMost(0.0));
    watch.end(part, report)?;
    if options.details {
        nodes.details(part, options.time().as_secs_f64(), report);
    }
    Ok(())
}

fn tell_published(part: &str, rate: u32, late: &super::scrape::Histogram, report: &mut Report) {
    let ms = |share: f64| late.quantile(share) * 1e3;
    match rate {
        2_000 => {
            report.judged(part, "published late: p50", ms(0.5), "ms", Target::AtMost(1.0));
            report.judged(part, "published late: p99", ms(0.99), "ms", Target::AtMost(5.0));
        }
        _ => {
            report.figure(part, "published late: p50", ms(0.5), "ms");
            match rate {
                6_000 => report.judged(part, "published late: p99", ms(0.99), "ms", Target::AtMost(20.0)),
                _ => report.figure(part, "published late: p99", ms(0.99), "ms"),
            }
        }
    }
    report.figure(part, "published late: at most", late.largest() * 1e3, "ms");
}

fn tell_arrived(part: &str, rate: u32, arrivals: &Arrivals, report: &mut Report) {
    let late = arrivals.late_us.lock();
    let ms = |share: f64| late.value_at_quantile(share) as f64 / 1e3;
    report.figure(part, "consumed late: p50", ms(0.5), "ms");
    match rate {
        2_000 => report.judged(part, "consumed late: p99", ms(0.99), "ms", Target::AtMost(12.0)),
        _ => report.figure(part, "consumed late: p99", ms(0.99), "ms"),
    }
    report.figure(part, "consumed late: max", late.max() as f64 / 1e3, "ms");
}
