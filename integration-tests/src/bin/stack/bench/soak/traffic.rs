//! The load of a soak: an even stream over four queues, with cancels, moves and failures.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use futures::future::join_all;
use integration_tests::{
    client::{Client, Failure},
    sandbox::Sandbox,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::{
    super::{
        drain::{Drain, Eye, Reporter, Seen},
        feed::{Accepted, Batch, Feed, LEAD_MS, MAX_LENGTH, Way},
    },
    book::Book,
};

/// All queues of a soak begin so.
pub(super) const QUEUES: &str = "soak-";

/// A queue of a soak.
struct Kind {
    name: &'static str,
    settle: &'static str,
    keyed: bool,
    timeout_ms: u64,
}

/// The kinds, by the remainder of a task's serial number. Tasks of `reject` stay unfinished until their timeout: with
/// the default of half an hour the table would grow until then. A report that is lost has its next attempt after a
/// minute.
const KINDS: [Kind; 4] = [
    Kind { name: "confirm", settle: "confirm", keyed: false, timeout_ms: 60_000 },
    Kind { name: "reject", settle: "reject", keyed: false, timeout_ms: 10_000 },
    Kind { name: "result", settle: "result", keyed: false, timeout_ms: 60_000 },
    Kind { name: "keyed", settle: "confirm", keyed: true, timeout_ms: 60_000 },
];

/// How often a task fails that is to fail.
const FAILURES: u32 = 2;
const RETRY_IN_MS: u64 = 2_000;
/// Long before the first task of a batch is due.
const CHANGED_AFTER: Duration = Duration::from_millis(500);
const MOVED_BY_MS: i64 = 3_000;

const TICK: Duration = Duration::from_millis(25);
/// Batches that wait for an answer or for their changes: a second of them at an even pace. What nodes cannot take at
/// once waits in this tool, so that their answers come in time.
const BATCHES_MOST: usize = 40;
/// Tasks that were accepted and have not come: at an even pace some six seconds of them. With more, the cluster is
/// behind, and the stream waits for it.
const OPEN_MOST_S: f64 = 15.0;
/// A stream that fell behind goes at most this much faster, so that catching up is no burst.
const CATCH_UP: f64 = 2.0;
/// A stream that is further behind than this leaves tasks out.
const BEHIND_MOST_S: f64 = 10.0;

/// What becomes of a task, by its serial number. In each queue, 2 % are cancelled and 2 % moved; 1 % of all fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Plain,
    Cancelled,
    Moved,
    /// Only in the queue whose consumer reports.
    Failing,
}

impl Fate {
    const fn of(serial: u64) -> Self {
        match serial % 200 {
            20 | 41 | 62 | 83 => Self::Cancelled,
            120 | 141 | 162 | 183 => Self::Moved,
            2 | 102 => Self::Failing,
            _ => Self::Plain,
        }
    }

    /// How many attempts a task has.
    pub(super) const fn attempts(serial: u64) -> u32 {
        match Self::of(serial) {
            Self::Failing => FAILURES + 1,
            Self::Plain | Self::Cancelled | Self::Moved => 1,
        }
    }

    /// Whether the consumer reports a failure of this attempt.
    pub(super) fn fails(seen: Seen) -> bool {
        Self::of(seen.serial) == Self::Failing && seen.attempt <= FAILURES
    }
}

/// The source of the load.
#[derive(Debug)]
pub(super) struct Traffic {
    pub feed: Arc<Feed>,
    clients: Vec<Client>,
    ways: Vec<Way>,
    book: Arc<Book>,
    per_second: u32,
    /// Tasks that were left out, because the stream was too far behind.
    pub left_out: AtomicU64,
    _drains: Vec<Drain>,
}

impl Traffic {
    /// Sets the policies, and waits until each queue has its consumer.
    pub(super) async fn open(cluster: &Sandbox, per_second: u32, book: &Arc<Book>) -> Result<Arc<Self>> {
        let (feed, seen) = (Feed::new(cluster.clients()), Arc::<AtomicU64>::default());
        let (mut ways, mut drains) = (Vec::new(), Vec::new());
        for Kind { name, settle, keyed, timeout_ms } in KINDS {
            let way = Way { keyed, ..Way::to(&format!("{QUEUES}{name}")) };
            drains.push(drain(&cluster.amqp_url(), &way.queue, settle, book, &seen));
            // Nothing is kept longer than the archive's partitions make it: see the module of the days.
            let policy = json!({
                "settle": settle, "max_length": MAX_LENGTH, "timeout_ms": timeout_ms,
                "keep_succeeded_ms": 0, "keep_dead_ms": 0,
            });
            feed.open_by(&way.queue, &policy, &seen).await?;
            ways.push(way);
        }
        let (clients, book, left_out) = (cluster.clients(), Arc::clone(book), AtomicU64::new(0));
        Ok(Arc::new(Self { feed, clients, ways, book, per_second, left_out, _drains: drains }))
    }

    /// Submits until `until`. Where the cluster does less than the rate, what waits is bounded, and the rest left out.
    pub(super) async fn run(self: &Arc<Self>, until: Instant) {
        let (began, per_second) = (Instant::now(), f64::from(self.per_second));
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let largest = ((CATCH_UP * per_second * TICK.as_secs_f64()) as u64).max(1);
        let (behind_most, open_most) = ((BEHIND_MOST_S * per_second) as u64, (OPEN_MOST_S * per_second) as usize);
        let (mut batches, mut taken) = (JoinSet::new(), 0);
        while Instant::now() < until {
            ticks.tick().await;
            while batches.try_join_next().is_some() {}
            let wanted = (began.elapsed().as_secs_f64() * per_second) as u64;
            let too_many = (wanted - taken).saturating_sub(behind_most);
            self.left_out.fetch_add(too_many, Ordering::Relaxed);
            taken += too_many;
            let len = largest.min(wanted - taken);
            if len > 0 && batches.len() < BATCHES_MOST && self.book.open() < open_most {
                let traffic = Arc::clone(self);
                batches.spawn(async move { traffic.batch(len as usize).await });
                taken += len;
            }
        }
        while batches.join_next().await.is_some() {}
    }

    async fn batch(&self, len: usize) {
        let (tasks, answer) = self.feed.send_for_answer(&self.ways, &Batch::within(LEAD_MS, len)).await;
        self.book.accepted(&tasks);
        let ids = ids(&answer);
        tokio::time::sleep(CHANGED_AFTER).await;
        join_all(tasks.iter().zip(&ids).map(|(task, id)| self.change(*task, id))).await;
    }

    async fn change(&self, task: Accepted, id: &str) {
        let client = &self.clients[task.serial as usize % self.clients.len()];
        match Fate::of(task.serial) {
            Fate::Plain | Fate::Failing => {}
            Fate::Cancelled => match client.cancel(id).await {
                Ok(outcome) if outcome == "cancelled" => self.book.cancelled(task.serial),
                // What has no further attempts is on its way, and comes.
                Ok(_) | Err(Failure::Refused { .. } | Failure::NotSent(_)) => self.book.unchanged(),
                Err(Failure::Unknown(_)) => self.book.in_doubt(task.serial),
            },
            Fate::Moved => {
                let to_ms = task.due_us / 1_000 + MOVED_BY_MS;
                // The due time comes first, as in what the feed writes. A task whose move has an unknown outcome comes
                // at either time, and its payload says at which.
                let change = json!({ "due_at": to_ms, "payload": [to_ms * 1_000, task.serial] });
                match client.change(id, &change).await {
                    Ok(_) => self.book.moved(task.serial, to_ms * 1_000),
                    Err(_) => self.book.unchanged(),
                }
            }
        }
    }
}

fn drain(url: &str, queue: &str, settle: &str, book: &Arc<Book>, seen: &Arc<AtomicU64>) -> Drain {
    let (book, seen) = (Arc::clone(book), Arc::clone(seen));
    let eye: Eye = Arc::new(move |message: Seen| {
        seen.fetch_add(1, Ordering::Relaxed);
        // The first message of a queue has no number: it only shows that the way is open.
        if message.serial > 0 {
            book.arrived(message);
        }
    });
    if settle == "result" {
        Drain::reporting(url, queue, eye, &Reporter::choosing(report_on))
    } else {
        Drain::start(url, queue, eye)
    }
}

fn report_on(message: Seen) -> Value {
    match Fate::fails(message) {
        true => json!({ "status": "failed", "retry_in_ms": RETRY_IN_MS }),
        false => json!({ "status": "succeeded" }),
    }
}

/// The ids in the answer to a batch, in the order of its tasks.
fn ids(answer: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Body {
        results: Vec<Value>,
    }
    let results = serde_json::from_str(answer).map_or_else(|_| Vec::new(), |body: Body| body.results);
    results.into_iter().map(|result| result["id"].as_str().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_share_of_changes_and_the_reporting_one_has_the_failures() {
        for (number, kind) in (0_u64..).zip(KINDS) {
            let count = |fate| (0..1_000).filter(|n| n % 4 == number && Fate::of(*n) == fate).count();
            assert_eq!((count(Fate::Cancelled), count(Fate::Moved)), (5, 5));
            assert_eq!(count(Fate::Failing), if kind.settle == "result" { 10 } else { 0 });
        }
    }
}
