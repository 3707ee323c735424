//! How many tasks a second are durable before the answer: one by one, in batches, over AMQP, in SQL. All are due in
//! an hour, and nothing fires.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use integration_tests::{client::Client, sandbox::Sandbox};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::{
    sync::{Mutex, Semaphore},
    time::Instant,
};

use super::{
    Options,
    broker::{Broker, Message},
    feed::{self, Batch, Feed, HOUR_MS, in_an_hour_ms, post},
    report::{Report, Target, progress},
    scrape::Scrape,
    singles::{Calls, one_after_another},
    volume,
    window::{Measured, Window},
};

const QUEUE: &str = "submitted";
const WARM_UP: Duration = Duration::from_secs(3);
/// Clients that submit one task after another, spread over the nodes.
const CONNECTIONS: usize = 64;
const BATCH: usize = 1_000;
const BATCHES_IN_FLIGHT: usize = 6;
const SQL_CONNECTIONS: usize = 16;
/// Messages published that are no tasks yet: enough to keep all nodes busy from one look to the next.
const BACKLOG: usize = 20_000;
/// A look reads all metrics of all nodes, which takes them a few milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For the last submissions over AMQP and in SQL to become tasks.
const PATIENCE: Duration = Duration::from_secs(120);

const SINGLES_PER_S: f64 = 12_000.0;
const BATCHES_PER_S: f64 = 90_000.0;
const AMQP_PER_S: f64 = 10_000.0;
const SQL_PER_S: f64 = 8_000.0;

const SUBMIT: &str = "SELECT duetime.submit($1, $2, now() + interval '1 hour')::text";

#[derive(Clone, Copy, Debug)]
enum Way {
    Singly,
    InBatches,
    Amqp,
    Sql,
}

impl Way {
    const ALL: [Self; 4] = [Self::Singly, Self::InBatches, Self::Amqp, Self::Sql];

    const fn part(self) -> &'static str {
        match self {
            Self::Singly => "submit, one by one",
            Self::InBatches => "submit, in batches",
            Self::Amqp => "submit over AMQP",
            Self::Sql => "submit in SQL",
        }
    }
}

/// Each way on a fresh cluster: none reads or vacuums the rows of another.
pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for way in Way::ALL {
        let part = way.part();
        progress(&format!("{part}: starting the cluster ..."));
        let cluster = options.cluster().start().await?;
        cluster.live()?.put_queue(QUEUE, &json!({ "settle": "confirm" })).await?;
        super::flush(&cluster).await?;
        progress(&format!("{part}: {} s to warm up, {} s measured ...", WARM_UP.as_secs(), options.seconds));
        let trial = Trial { part, options, cluster: &cluster, clients: cluster.clients() };
        let accepted = match way {
            Way::Singly => singly(&trial, report).await,
            Way::InBatches => in_batches(&trial, report).await,
            Way::Amqp => over_amqp(&trial, report).await,
            Way::Sql => in_sql(&trial, report).await,
        };
        let (accepted, rows) = (accepted.context(part)?, volume::rows(&cluster, QUEUE).await?);
        report.figure(part, "accepted in all", accepted as f64, "tasks");
        report.finding(part, "missing", accepted.saturating_sub(rows));
        report.finding(part, "stored twice", rows.saturating_sub(accepted));
        super::end(cluster).await?;
    }
    Ok(())
}

/// One way of submitting, on its own cluster.
struct Trial<'a> {
    part: &'static str,
    options: &'a Options,
    cluster: &'a Sandbox,
    clients: Vec<Client>,
}

impl Trial<'_> {
    /// Lets each client make one call after another, first to warm up and then measured. Returns the calls of the
    /// warm-up too.
    async fn call<C>(&self, clients: &[C], one: impl AsyncFn(&C, u64) -> Result<()>) -> Result<(u64, Calls, Measured)> {
        let before = one_after_another(WARM_UP, clients, &one).await?.count;
        let window = Window::open(self.cluster).await?;
        let calls = one_after_another(self.options.time(), clients, &one).await?;
        Ok((before, calls, window.close().await?))
    }

    /// The submissions of this source that all nodes have made tasks of.
    async fn tasks(&self, source: Source) -> Result<u64> {
        Ok(source.tasks(&Scrape::of(&self.clients).await?) as u64)
    }

    /// Waits until all submissions are tasks, and tells how long that took.
    async fn wait(&self, source: Source, accepted: u64, report: &mut Report) -> Result<()> {
        let began = Instant::now();
        let waiting = accepted.saturating_sub(self.tasks(source).await?);
        report.figure(self.part, "no tasks yet at the end", waiting as f64, "");
        while self.tasks(source).await? < accepted && began.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        report.figure(self.part, "all are tasks after", began.elapsed().as_secs_f64(), "s");
        Ok(())
    }
}

/// The source of submissions that become tasks later, as the metric names it.
#[derive(Clone, Copy, Debug)]
enum Source {
    Amqp,
    Sql,
}

impl Source {
    fn tasks(self, nodes: &Scrape) -> f64 {
        let mark = match self {
            Self::Amqp => "source=\"amqp\"",
            Self::Sql => "source=\"sql\"",
        };
        nodes.total_of("duetime_tasks_submitted_total", mark)
    }
}

async fn singly(trial: &Trial<'_>, report: &mut Report) -> Result<u64> {
    let clients: Vec<&Client> = trial.clients.iter().cycle().take(CONNECTIONS).collect();
    let one = async |client: &&Client, number| {
        let due_ms = in_an_hour_ms();
        let body = format!("{{\"queue\":\"{QUEUE}\",\"payload\":{{\"n\":{number}}},\"due_at\":{due_ms}}}");
        post(client, "/v1/tasks", body).await.map(drop)
    };
    let (before, calls, measured) = trial.call(&clients, one).await?;
    let per_second = calls.count as f64 / calls.seconds;
    report.judged(trial.part, "tasks", per_second, "/s", Target::AtLeast(SINGLES_PER_S));
    calls.took.tell(trial.part, "until the answer", None, report);
    measured.tell(trial.part, trial.options, report)?;
    Ok(before + calls.count)
}

async fn in_batches(trial: &Trial<'_>, report: &mut Report) -> Result<u64> {
    let feed = Feed::new(trial.clients.clone());
    let one = async |_: &(), _| {
        let accepted = feed.send_all(&[feed::Way::to(QUEUE)], &Batch::in_an_hour(BATCH)).await;
        ensure!(accepted.len() == BATCH, "no node takes tasks");
        Ok(())
    };
    let (before, calls, measured) = trial.call(&[(); BATCHES_IN_FLIGHT], one).await?;
    let per_second = (calls.count * BATCH as u64) as f64 / calls.seconds;
    report.judged(trial.part, "tasks", per_second, "/s", Target::AtLeast(BATCHES_PER_S));
    calls.took.tell(trial.part, "until the answer", None, report);
    feed.tell_refused(trial.part, report);
    measured.tell(trial.part, trial.options, report)?;
    Ok((before + calls.count) * BATCH as u64)
}

async fn over_amqp(trial: &Trial<'_>, report: &mut Report) -> Result<u64> {
    let broker = Broker::connect(&trial.cluster.amqp_url()).await?;
    let (room, end) = (Semaphore::new(BACKLOG), Instant::now() + WARM_UP + trial.options.time());
    let measuring = async {
        tokio::time::sleep(WARM_UP).await;
        let window = Window::open(trial.cluster).await?;
        tokio::time::sleep_until(end).await;
        window.close().await
    };
    let working = async { tokio::try_join!(broker.publish_while_room(&room, end, message), measuring) };
    let (published, measured) = tokio::select! {
        worked = working => worked.context("publishing")?,
        error = make_room(trial, &room) => bail!(error),
    };
    let per_second = Source::Amqp.tasks(&measured.nodes) / measured.seconds;
    report.judged(trial.part, "tasks", per_second, "/s", Target::AtLeast(AMQP_PER_S));
    measured.tell(trial.part, trial.options, report)?;
    trial.wait(Source::Amqp, published, report).await?;
    Ok(published)
}

/// Makes room for as many messages as have become tasks, until it fails.
async fn make_room(trial: &Trial<'_>, room: &Semaphore) -> anyhow::Error {
    let mut known = 0;
    loop {
        match trial.tasks(Source::Amqp).await {
            Ok(tasks) => {
                room.add_permits(tasks.saturating_sub(known) as usize);
                known = tasks;
            }
            Err(error) => return error.context("counting tasks"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn message(number: u64) -> Message {
    let mut headers = FieldTable::default();
    headers.insert("duetime-queue".into(), AMQPValue::LongString(QUEUE.into()));
    headers.insert("duetime-delay-ms".into(), AMQPValue::LongLongInt(HOUR_MS));
    let mut message = Message::to("duetime.submit", format!("{{\"n\":{number}}}"));
    message.properties = message.properties.with_content_type("application/json".into()).with_headers(headers);
    message
}

async fn in_sql(trial: &Trial<'_>, report: &mut Report) -> Result<u64> {
    let url = trial.cluster.database_url(0);
    let connections = try_join_all((0..SQL_CONNECTIONS).map(|_| PgConnection::connect(&url))).await?;
    let connections: Vec<Mutex<PgConnection>> = connections.into_iter().map(Mutex::new).collect();
    let one = async |connection: &Mutex<PgConnection>, number| {
        let submit = sqlx::query_scalar::<_, String>(SUBMIT).bind(QUEUE).bind(json!({ "n": number }));
        submit.fetch_one(&mut *connection.lock().await).await.map(drop).context("submitting")
    };
    let (before, calls, measured) = trial.call(&connections, one).await?;
    let per_second = Source::Sql.tasks(&measured.nodes) / measured.seconds;
    report.judged(trial.part, "tasks", per_second, "/s", Target::AtLeast(SQL_PER_S));
    report.figure(trial.part, "calls committed", calls.count as f64 / calls.seconds, "/s");
    calls.took.tell(trial.part, "until the commit", None, report);
    measured.tell(trial.part, trial.options, report)?;
    trial.wait(Source::Sql, before + calls.count, report).await?;
    Ok(before + calls.count)
}
