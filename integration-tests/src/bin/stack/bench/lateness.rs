//! Lateness: of publishing by the nodes' own histogram, of arrival by the consumer's clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use integration_tests::{clock::now_us, sandbox::Sandbox};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Options, Settle,
    arrivals::Arrivals,
    drain::Drain,
    feed::{Accepted, Batch, Feed, Way},
    limits::Limits,
    raw_lateness,
    report::{Report, progress},
    scrape::Histogram,
    volume::{self, Written},
    window::{Measured, Window},
};

const FILL_BATCH: usize = 5_000;
/// Idle processes of PostgreSQL report their last figures within 10 s.
const REPORTED_WITHIN: Duration = Duration::from_secs(11);
/// Until the stream's first tasks are all due.
const WARM_UP: Duration = Duration::from_secs(10);

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("lateness: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    if options.pending > 0 {
        let before = Written::so_far(&cluster).await?;
        fill(&cluster, options.pending, report).await?;
        tokio::time::sleep(REPORTED_WITHIN).await;
        let written = Written::so_far(&cluster).await?.since(&before);
        written.tell_log("filling", options.pending as f64, report);
    }
    super::flush(&cluster).await?;
    volume::pending(&cluster, options.pending, report).await?;
    for settle in &options.settle {
        for per_second in &options.rate {
            let stream = Stream {
                part: format!("lateness {per_second}/s {}", settle.text()),
                queue: format!("late-{per_second}-{}", settle.text()),
                settle: *settle,
                per_second: *per_second,
            };
            let (came, ()) = stream.measure(options, &cluster, std::future::ready(Ok(())), report).await?;
            came.tell_written(&stream.part, options, report);
            raw_lateness::measure(options, &cluster, &stream, &came, report).await.context("RabbitMQ alone")?;
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

/// Tasks of one queue, so many due a second, each submitted some seconds ahead.
#[derive(Debug)]
pub(super) struct Stream {
    pub part: String,
    pub queue: String,
    pub settle: Settle,
    pub per_second: u32,
}

/// What is left of a stream when it has been measured.
#[derive(Debug)]
pub(super) struct Came {
    /// The due instants of the tasks that were measured, from the beginning of the measurement.
    pub after_us: Vec<i64>,
    /// When the last task of the stream is due. That is some seconds after the measurement.
    pub last_due_us: i64,
    pub consumed_p99_ms: f64,
    /// By PostgreSQL while the stream was measured.
    written: Written,
}

impl Came {
    fn tell_written(&self, part: &str, options: &Options, report: &mut Report) {
        let tasks = self.after_us.len() as f64;
        self.written.tell_log(part, tasks, report);
        if options.details {
            self.written.tell_more(part, tasks, report);
        }
    }
}

impl Stream {
    pub(super) fn limits(&self) -> Limits {
        Limits::of(self.per_second)
    }

    /// Measures the stream for `--seconds`, and what else happens `meanwhile`, from the first second that counts on.
    pub(super) async fn measure<T>(
        &self,
        options: &Options,
        cluster: &Sandbox,
        meanwhile: impl Future<Output = Result<T>>,
        report: &mut Report,
    ) -> Result<(Came, T)> {
        progress(&format!("{}: {} s to warm up, {} s measured ...", self.part, WARM_UP.as_secs(), options.seconds));
        let arrivals = Arrivals::new(options.arrivals.is_some());
        let _drain = Drain::start(&cluster.amqp_url(), &self.queue, arrivals.eye());
        let feed = Feed::new(cluster.clients());
        feed.open(&self.queue, self.settle.text(), &arrivals.seen).await?;

        let from_us = now_us() + WARM_UP.as_micros() as i64;
        let until_us = from_us + options.time().as_micros() as i64;
        arrivals.expect(from_us, until_us);
        let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
        let end = Instant::now() + WARM_UP + options.time();
        let ways = [Way::to(&self.queue)];
        let (watched, ()) =
            tokio::join!(watch(cluster, end, meanwhile), feed.stream(&ways, self.per_second, end, &accepted));
        let (measured, written, done) = watched?;

        let accepted = std::mem::take(&mut *accepted.lock());
        let due_us: Vec<i64> = accepted.iter().map(|task| task.due_us).collect();
        let last_due_us = due_us.iter().copied().max().unwrap_or(until_us);
        let counted = due_us.into_iter().filter(|due_us| (from_us..until_us).contains(due_us));
        let after_us: Vec<i64> = counted.map(|due_us| due_us - from_us).collect();
        arrivals.wait(after_us.len() as u64).await;
        self.tell(options, &arrivals, after_us.len() as u64, &measured, report)?;
        feed.tell_refused(&self.part, report);
        measured.tell(&self.part, options, report)?;
        Ok((Came { after_us, last_due_us, consumed_p99_ms: arrivals.late.ms(0.99), written }, done))
    }

    fn tell(
        &self,
        options: &Options,
        arrivals: &Arrivals,
        expected: u64,
        measured: &Measured,
        report: &mut Report,
    ) -> Result<()> {
        let (part, limits) = (&self.part, self.limits());
        let queue = format!("\"{}\"", self.queue);
        tell_published(part, &measured.nodes.histogram("duetime_lateness_seconds", &queue), limits, report);
        arrivals.late.tell(part, "consumed late", limits.consumed_p99_ms, report);
        arrivals.tell_moments(part, options.details, report);
        if let Some(file) = &options.arrivals {
            arrivals.write_each(file).with_context(|| format!("writing {}", file.display()))?;
        }
        report.figure(part, "tasks due while measured", expected as f64, "");
        arrivals.judge(part, "", expected, report);
        Ok(())
    }
}

/// Watches the nodes, the machine and PostgreSQL from the end of the warm-up on.
async fn watch<T>(
    cluster: &Sandbox,
    end: Instant,
    meanwhile: impl Future<Output = Result<T>>,
) -> Result<(Measured, Written, T)> {
    tokio::time::sleep(WARM_UP).await;
    let (window, before) = (Window::open(cluster).await?, Written::so_far(cluster).await?);
    let done = meanwhile.await?;
    tokio::time::sleep_until(end).await;
    Ok((window.close().await?, Written::so_far(cluster).await?.since(&before), done))
}

/// Tells the lateness by the nodes' histogram, which knows the bounds of its buckets only.
pub(super) fn tell_published(part: &str, late: &Histogram, limits: Limits, report: &mut Report) {
    let ms = |share: f64| late.quantile(share) * 1e3;
    report.limited(part, "published late: p50", ms(0.5), "ms", limits.published_p50_ms);
    report.limited(part, "published late: p99", ms(0.99), "ms", limits.published_p99_ms);
    let name = "published late: at most (a bucket's bound)";
    report.limited(part, name, late.largest() * 1e3, "ms", limits.published_max_ms);
}
