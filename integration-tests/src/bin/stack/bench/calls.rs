//! How long look-ups, changes and cancels take, by id and by key, beside a stream of due tasks.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use chrono::DateTime;
use futures::stream::{self, StreamExt};
use integration_tests::{
    client::Client,
    clock::{now_ms, now_us},
    sandbox::Sandbox,
};
use rand::{RngExt, seq::SliceRandom};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Options, Settle,
    feed::MONTH_MS,
    instants::{self, Task, at_their_instants},
    lateness::{Stream, fill},
    report::{Report, Target, progress},
    times::Times,
    volume,
};

const PART: &str = "calls";
const QUEUE: &str = "called";
/// Calls under way at a time.
const CONNECTIONS: usize = 64;
/// The most tasks that are called. A cancel uses one up: in a minute at 1,000 calls a second, two kinds use 10,000
/// each.
const MOST_TASKS: usize = 200_000;
const BATCH: usize = 1_000;
/// Tasks due a second meanwhile.
const STREAM_PER_S: u32 = 2_000;
/// From the plan of a kind's calls until the first of them.
const AHEAD: Duration = Duration::from_millis(50);
const ANSWER_P99_MS: f64 = 10.0;
/// Of the answers that were not expected, so many are printed.
const PRINTED: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    LookUp,
    Change,
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Id,
    Key,
}

/// One kind of call after the other. The cancels come last, because each takes a task away.
const KINDS: [(&str, Act, By); 6] = [
    ("look-up by id", Act::LookUp, By::Id),
    ("look-up by key", Act::LookUp, By::Key),
    ("change by id", Act::Change, By::Id),
    ("change by key", Act::Change, By::Key),
    ("cancel by id", Act::Cancel, By::Id),
    ("cancel by key", Act::Cancel, By::Key),
];

pub(super) async fn measure(options: &Options, report: &mut Report) -> Result<()> {
    progress("calls: starting the cluster ...");
    let cluster = options.cluster().start().await?;
    fill(&cluster, options.pending, report).await?;
    let calls = (u64::from(options.calls_rate) * options.seconds / KINDS.len() as u64).max(1);
    let clients = cluster.clients();
    let tasks = submit(&clients, usize::try_from(2 * calls)?.min(MOST_TASKS)).await.context("submitting")?;
    let mut unexpected = warm_up(&clients, &tasks, options.calls_rate).await;
    super::flush(&cluster).await?;

    let stream = Stream {
        part: format!("calls, a stream of {STREAM_PER_S}/s"),
        queue: "beside-calls".to_owned(),
        settle: Settle::Confirm,
        per_second: STREAM_PER_S,
    };
    let (clients, tasks) = (&clients, &tasks);
    let calling = async {
        let mut all = Vec::new();
        for (name, act, by) in KINDS {
            progress(&format!("{PART}: {name} ..."));
            all.push((name, Kind { act, by }.call(clients, tasks, options.calls_rate, calls).await));
        }
        Ok(all)
    };
    let (_, all) = stream.measure(options, &cluster, calling, report).await?;
    for (name, called) in all {
        report.figure(PART, &format!("{name}: calls"), called.took.count() as f64, "");
        called.took.tell(PART, name, Some(ANSWER_P99_MS), report);
        unexpected += called.unexpected.into_inner();
    }
    report.judged(PART, "unexpected answers", unexpected as f64, "", Target::AtMost(0.0));
    tell_missing(&cluster, tasks.len() as u64, report).await?;
    super::end(cluster).await
}

/// A task to call.
#[derive(Debug)]
struct Callee {
    id: String,
    key: String,
}

/// Submits tasks due in a month or two, each with a key, and puts them out of their order.
async fn submit(clients: &[Client], count: usize) -> Result<Vec<Callee>> {
    let mut callees = Vec::with_capacity(count);
    let mut nodes = clients.iter().cycle();
    while callees.len() < count {
        let numbers = callees.len()..count.min(callees.len() + BATCH);
        let keys: Vec<String> = numbers.map(|number| format!("key-{number}")).collect();
        let due_ms = far_ms();
        let tasks: Vec<Value> =
            keys.iter().map(|key| json!({ "queue": QUEUE, "key": key, "due_at": due_ms, "payload": {} })).collect();
        let answers = nodes.next().context("there is a node")?.batch(&tasks).await?;
        ensure!(answers.len() == keys.len(), "{} answers to {} tasks", answers.len(), keys.len());
        for (key, answer) in keys.into_iter().zip(answers) {
            match answer {
                Ok(id) => callees.push(Callee { id, key }),
                Err(problem) => bail!("a task was refused: {problem}"),
            }
        }
    }
    callees.shuffle(&mut rand::rng());
    Ok(callees)
}

/// Makes calls for a second each, so that connections are open and the statements of look-ups and changes are planned.
/// Returns the number of unexpected answers.
async fn warm_up(clients: &[Client], callees: &[Callee], per_second: u32) -> u64 {
    let mut unexpected = 0;
    for act in [Act::LookUp, Act::Change] {
        let called = Kind { act, by: By::Key }.call(clients, callees, per_second, per_second.into()).await;
        unexpected += called.unexpected.into_inner();
    }
    unexpected
}

/// A time in a month or two.
fn far_ms() -> i64 {
    now_ms() + rand::rng().random_range(MONTH_MS..2 * MONTH_MS)
}

/// The calls of one kind.
#[derive(Debug)]
struct Called {
    /// From the instant at which each call was to begin until its answer.
    took: Times,
    unexpected: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    act: Act,
    by: By,
}

impl Kind {
    /// Makes calls at even distances, as many at a time as there are connections. A slow answer delays no instant.
    async fn call(self, clients: &[Client], callees: &[Callee], per_second: u32, count: u64) -> Called {
        let callees = self.share(callees);
        let count = if self.act == Act::Cancel { count.min(callees.len() as u64) } else { count };
        let called = Called { took: Times::new(), unexpected: AtomicU64::new(0) };
        let coming = at_their_instants(instants::evenly(AHEAD, per_second.into(), count), Duration::ZERO);
        let calls = stream::unfold(coming, async |mut coming| Some((stream::iter(coming.recv().await?), coming)));
        let one = async |Task { number, due_us }| {
            let number = number as usize;
            let (client, callee) = (&clients[number % clients.len()], &callees[number % callees.len()]);
            if let Err(unexpected) = self.call_one(client, callee, due_us, &called.took).await
                && called.unexpected.fetch_add(1, Ordering::Relaxed) < PRINTED
            {
                progress(&format!("{PART}: {:?} by {:?}: {unexpected:#}", self.act, self.by));
            }
        };
        calls.flatten().for_each_concurrent(CONNECTIONS, one).await;
        called
    }

    /// Each of the two cancels has half of the tasks, the other kinds have all of them.
    fn share(self, callees: &[Callee]) -> &[Callee] {
        let (first, second) = callees.split_at(callees.len() / 2);
        match (self.act, self.by) {
            (Act::Cancel, By::Id) => first,
            (Act::Cancel, By::Key) => second,
            (Act::LookUp | Act::Change, _) => callees,
        }
    }

    async fn call_one(self, client: &Client, callee: &Callee, begin_us: i64, took: &Times) -> Result<()> {
        let path = match self.by {
            By::Id => format!("/v1/tasks/{}", callee.id),
            By::Key => format!("/v1/queues/{QUEUE}/keys/{}", callee.key),
        };
        let due_ms = far_ms();
        let (method, body) = match self.act {
            Act::LookUp => (Method::GET, None),
            Act::Change => (Method::PATCH, Some(format!("{{\"due_at\":{due_ms}}}").into_bytes())),
            Act::Cancel => (Method::DELETE, None),
        };
        let answer = client.send(method, &path, body).await?;
        let status = answer.status();
        let text = answer.text().await?;
        took.note_us((now_us() - begin_us).unsigned_abs());
        ensure!(status.is_success(), "{path}: {status} {text}");
        let answer: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        ensure!(answer["id"] == callee.id && self.is_expected(&answer, due_ms), "{path}: {text}");
        Ok(())
    }

    fn is_expected(self, answer: &Value, due_ms: i64) -> bool {
        let due_at = || DateTime::parse_from_rfc3339(answer["due_at"].as_str().unwrap_or_default()).ok();
        match self.act {
            Act::LookUp => answer["state"] == "scheduled",
            Act::Change => due_at().is_some_and(|due_at| due_at.timestamp_millis() == due_ms),
            Act::Cancel => answer["outcome"] == "cancelled",
        }
    }
}

/// Judges whether each task that was called is still there, cancelled or not.
async fn tell_missing(cluster: &Sandbox, submitted: u64, report: &mut Report) -> Result<()> {
    let rows = volume::rows(cluster, QUEUE).await?;
    report.finding(PART, "tasks missing", submitted.abs_diff(rows));
    Ok(())
}
