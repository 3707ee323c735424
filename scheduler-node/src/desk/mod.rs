//! Answers one client's request at a time with the help of the store. The desk knows the meaning of a request and the
//! queues that its caller may use. It knows neither the protocol of the answer nor anything that happens over time.
//!
//! Every write runs in a task of its own, so that a client that hangs up does not leave it half done. The desk
//! never guesses an outcome: where one is unknown, the answer says so.

mod audit;
mod bulk;
mod cluster;
mod collect;
mod databases;
mod export;
mod figures;
mod keys;
mod limits;
mod list;
mod loss;
mod meter;
mod overview;
mod placement;
mod queues;
mod reading;
mod receive;
pub(crate) mod refusal;
mod revival;
mod schedules;
mod scope;
mod seen;
mod shards;
mod submit;
mod tasks;
#[cfg(test)]
pub(crate) mod tests;
mod tokens;
mod trace;
mod view;

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    access::Scope,
    cluster::ClusterView,
    ids::{NodeId, TaskId},
    limit::{Limit, TokenLimits},
    time::{Present, UnixMicros},
    wire::{Limits, Problem},
};
use tokio::sync::watch;

use crate::{
    access::Access,
    audit::Audit,
    clock,
    coordination::Coordination,
    internal::{self, Origin},
    loops::{nudger::Nudger, outcome::reporter::Reporter, submit::submitter::Submitter, upkeep::queue_reader::Books},
    metrics::Metrics,
    readiness::{Readiness, Report},
    store::{self, Database, Patience, Store, change::Guarded, rows::TaskRecord},
    supervise::spawn_child,
    traces::Traces,
};

pub(crate) use bulk::{ANSWER_WITHIN, reason_left};
pub(crate) use collect::ROWS_WAIT;
pub(crate) use figures::NodeFigures;
pub(crate) use overview::{Bucket, DEAD_GROUPS, DEAD_LOOK, Outlook};
pub(crate) use queues::Census;
pub(crate) use receive::ReceiveOutcome;
pub(crate) use seen::{SEEN, Seen};

/// The parts of the node that the desk uses.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) me: NodeId,
    pub(crate) store: Store,
    pub(crate) submitter: Submitter,
    pub(crate) nudger: Nudger,
    pub(crate) reporter: Reporter,
    pub(crate) books: Books,
    pub(crate) access: Arc<Access>,
    pub(crate) audit: Audit,
    pub(crate) max_payload_bytes: usize,
    /// Whether a queue is created with the first task that names it.
    pub(crate) auto_create: bool,
    /// The most queues in the cluster, and of these the most that one caller's submissions create.
    pub(crate) queues_max: u32,
    pub(crate) queues_max_per_caller: u32,
    pub(crate) views: watch::Receiver<Arc<ClusterView>>,
    /// Until this moment nothing is reassigned, because too many nodes vanished together. A moment in the past
    /// has no effect.
    pub(crate) frozen_until: watch::Receiver<Option<UnixMicros>>,
    pub(crate) coordination: Coordination,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Traces,
    pub(crate) readiness: Readiness,
}

#[derive(Clone)]
pub struct Desk {
    inner: Arc<Inner>,
    /// The queues that the caller may see.
    scope: Scope,
    /// The caller's name, where it is known.
    caller: Arc<str>,
    /// Whether the caller may see payloads, headers, results and error texts.
    shows_data: bool,
    /// Limits of the caller's token.
    limits: TokenLimits,
}

struct Inner {
    parts: Parts,
    started: Instant,
    reading: reading::Reading,
    meters: meter::Meters,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("me", &self.inner.parts.me).finish_non_exhaustive()
    }
}

/// How often a request looks again for the partition of the archive that its task needs, and the pause between. The
/// archiver makes those of a longer retention within a second or two.
const PARTITION_WAITS: u32 = 25;
const PARTITION_PAUSE: Duration = Duration::from_millis(200);

/// The caller's name for submissions over AMQP and in SQL, where a node does not know the caller.
const NO_CALLER: &str = "no token";

impl Desk {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            inner: Arc::new(Inner {
                parts,
                started: Instant::now(),
                reading: reading::Reading::default(),
                meters: meter::Meters::default(),
            }),
            scope: Scope::ALL,
            caller: NO_CALLER.into(),
            shows_data: true,
            limits: TokenLimits::NONE,
        }
    }

    /// Whether requests should come to this node, and if not, why. A caller of some queues reads no name of another's.
    pub(crate) fn readiness(&self) -> Report {
        let readiness = &self.parts().readiness;
        if self.scope.is_all() { readiness.report() } else { readiness.report_without_names() }
    }

    /// The counter of requests refused because `limit` is reached.
    pub(crate) fn limited(&self, limit: Limit) -> prometheus::IntCounter {
        self.parts().metrics.limited(limit)
    }

    /// Parses a task's id. A text that is no id gets the answer of a task that does not exist.
    pub(crate) fn id(&self, text: &str) -> Result<TaskId, Problem> {
        text.parse().map_err(|_| Problem::not_found(format!("`{text}` is not the id of a task")))
    }

    fn parts(&self) -> &Parts {
        &self.inner.parts
    }

    /// The number of shards, as soon as a database has told it.
    async fn shard_count(&self) -> Result<u16, Problem> {
        let unknown = || Problem::unavailable("no database has told the shards of the cluster yet; try again");
        self.parts().store.places().known().await.ok_or_else(unknown)
    }

    /// The database that has the task, if there is one.
    fn database(&self, id: TaskId) -> Result<Arc<Database>, Problem> {
        let (store, shard) = (&self.parts().store, id.shard().number());
        store.of(id.shard()).cloned().ok_or_else(|| match store.places().shard_count() {
            Some(count) if count <= shard => {
                Problem::not_found(format!("the id {id} names shard {shard}, but this cluster has only {count} shards"))
            }
            _ => Problem::unavailable(format!(
                "no database that was read since the start of this node has shard {shard}; try again"
            )),
        })
    }

    /// Runs a statement about a task in the database that has it. If the shard is in another one by now, runs it there,
    /// a bounded number of times. A task that `is_missing` is looked for again when the map turns out to be old. While
    /// its shard is closed there, it may be in a database that this node cannot read.
    async fn in_place<T, F>(
        &self,
        id: TaskId,
        statement: impl Fn(Arc<Database>) -> F,
        is_missing: impl Fn(&T) -> bool,
    ) -> Result<Result<T, store::Error>, Problem>
    where
        F: Future<Output = Result<T, store::Error>>,
    {
        let places = self.parts().store.places().clone();
        if !places.is_read() {
            self.shard_count().await?;
        }
        let (mut refusals, mut refused_at, mut waits) = (0, None, 0);
        loop {
            let place = places.of(id.shard());
            let answer = statement(self.database(id)?).await;
            let again = match &answer {
                Err(error) if error.lacks_partition() && waits < PARTITION_WAITS => {
                    waits += 1;
                    tokio::time::sleep(PARTITION_PAUSE).await;
                    continue;
                }
                Err(error) if error.is_moved() => {
                    let since = *refused_at.get_or_insert_with(clock::instant);
                    places.reread_after_move(refusals, since, Patience::Long).await
                }
                Ok(found) if is_missing(found) => {
                    let is_elsewhere = refusals == 0 && places.is_elsewhere(id.shard(), place).await;
                    if !is_elsewhere && places.of(id.shard()).is_some_and(|place| !place.status.is_open()) {
                        let shard = id.shard();
                        let detail = format!("shard {shard} is open in no database that this node can read; try again");
                        return Err(Problem::unavailable(detail));
                    }
                    is_elsewhere
                }
                _ => false,
            };
            if !again {
                return Ok(answer);
            }
            refusals += 1;
        }
    }

    /// Reads a task in the database that has it.
    async fn read_in_place(&self, id: TaskId) -> Result<Option<TaskRecord>, Problem> {
        let read = |database: Arc<Database>| async move { database.task_read(id).await };
        Ok(self.in_place(id, read, Option::is_none).await??)
    }

    /// Writes to one task in the database that has it.
    async fn write_in_place<T, F>(
        &self,
        id: TaskId,
        statement: impl Fn(Arc<Database>) -> F,
    ) -> Result<Result<Guarded<T>, store::Error>, Problem>
    where
        F: Future<Output = Result<Guarded<T>, store::Error>>,
    {
        self.in_place(id, statement, |guarded| matches!(guarded, Guarded::Missing)).await
    }

    /// The problem for a task that was not found: a task submitted in SQL may still be in an inbox.
    async fn missing_task(&self, id: TaskId) -> Problem {
        // A row of an inbox may be of any queue.
        let all = self.parts().store.databases().iter();
        let databases: Vec<&Arc<Database>> = all.filter(|_| self.scope.is_all()).collect();
        let found = futures::future::join_all(databases.iter().map(|database| database.inbox_find(id))).await;
        for (database, found) in databases.iter().zip(found) {
            // An inbox that cannot be read says nothing.
            if let Ok(Some(error)) = found {
                let name = database.name();
                return Problem::not_found(match error {
                    Some(_) if !self.shows_data => {
                        format!("{id} was submitted in SQL in database `{name}` and cannot be a task")
                    }
                    Some(why) => format!("{id} was submitted in SQL in database `{name}` and cannot be a task: {why}"),
                    None => {
                        format!("{id} was submitted in SQL in database `{name}` and is about to be a task; try again")
                    }
                });
            }
        }
        Problem::not_found(format!("there is no task {id}, or its retention has ended"))
    }

    fn limits(&self) -> Limits {
        Limits { max_payload_bytes: self.parts().max_payload_bytes }
    }

    /// The moment from which delays count. It is the first database's time, which decides what is due. Until that has
    /// told it, the latest time of another database counts. A node that no server has answered yet is not ready; until
    /// then its own clock has to do.
    pub(crate) fn now(&self) -> UnixMicros {
        self.present().latest
    }

    /// The bounds of the first database's time. A node whose first answer took long knows its clock only roughly for a
    /// moment; without any answer of the present server no due time has certainly passed.
    pub(super) fn present(&self) -> Present {
        let (store, now) = (&self.parts().store, Instant::now());
        let home = store.home().clock();
        let of_another = || store.databases().iter().filter_map(|database| database.clock().at_most(now)).max();
        Present {
            earliest: home.at(now).unwrap_or(UnixMicros::FIRST),
            latest: home.at_most(now).or_else(of_another).unwrap_or_else(clock::now),
        }
    }
}

/// The last of the records that were read for a page, if they fill it: more may come after it.
fn last_of_full<Record>(records: &[Record], limit: i64) -> Option<&Record> {
    records.last().filter(|_| i64::try_from(records.len()).is_ok_and(|count| count >= limit))
}

/// Runs to its end even when the client has gone.
async fn run_to_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match spawn_child(work).await {
        Ok(answer) => answer,
        Err(error) => {
            let detail = "the request failed halfway and may have taken effect; check before you send it again";
            Err(internal::problem(Origin::Request, Some(&error), detail))
        }
    }
}
