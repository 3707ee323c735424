//! The floor of a stream's lateness: the same messages at the same instants, straight to RabbitMQ.

use std::time::Duration;

use anyhow::{Context, Result};
use integration_tests::{clock::now_us, sandbox::Sandbox};

use super::{
    Options,
    arrivals::Arrivals,
    drain::Drain,
    instants::{Task, at_their_instants, instant_of, micros},
    lateness::{Came, Stream},
    raw,
    report::{Report, progress},
    same_work::ensure_same,
};

const QUEUE: &str = "raw-late";
/// The floor shows within this time.
const LONGEST: Duration = Duration::from_secs(60);
/// From the last task of the stream until its last row is archived.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// Before the first message.
const AHEAD: Duration = Duration::from_secs(1);

/// Publishes a message for each task of the stream, with the same distances in time. A thread that sleeps until each
/// instant publishes, and the same consumer reads: no scheduler in front of this broker is less late.
pub(super) async fn measure(
    options: &Options,
    cluster: &Sandbox,
    stream: &Stream,
    came: &Came,
    report: &mut Report,
) -> Result<()> {
    let (part, time_us) = (&stream.part, micros(options.time().min(LONGEST)));
    tokio::time::sleep_until(instant_of(came.last_due_us) + QUIET_AFTER).await;
    progress(&format!("{part}: the same messages straight to RabbitMQ, {} s ...", time_us / 1_000_000));
    let broker = raw::open(&cluster.amqp_url(), QUEUE).await?;
    ensure_same(cluster, &broker, &stream.queue, QUEUE).await.context("comparing the work")?;
    let arrivals = Arrivals::new(false);
    let _drain = Drain::start(&cluster.amqp_url(), QUEUE, arrivals.eye());

    let from_us = now_us() + micros(AHEAD);
    let mut after_us: Vec<i64> = came.after_us.iter().filter(|after_us| **after_us < time_us).copied().collect();
    after_us.sort_unstable();
    let tasks: Vec<Task> =
        (0..).zip(after_us).map(|(number, after_us)| Task { number, due_us: from_us + after_us }).collect();
    let expected = tasks.len() as u64;
    arrivals.expect(from_us, from_us + time_us);
    let coming = at_their_instants(tasks, Duration::ZERO);
    broker.publish_as_they_come(coming, |task| raw::message(QUEUE, task.due_us, task.number)).await?;
    arrivals.wait(expected).await;

    arrivals.late.tell(part, "raw late", None, report);
    arrivals.judge(part, "raw: ", expected, report);
    let times = came.consumed_p99_ms / arrivals.late.ms(0.99);
    report.limited(part, "consumed late, p99: times raw", times, "", stream.limits().times_raw_p99);
    Ok(())
}
