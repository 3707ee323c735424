//! Makes sure that each written row is looked at in time, whichever node owns its shard.
//!
//! A row of one of this node's shards goes straight into the heap. The owner of another shard is nudged when the
//! row is due within the horizon; later rows it finds by itself. A nudge names the row and its moment, so that the
//! owner need not read. When there are too many rows, it names their shards.
//!
//! Nudges are coalesced. A lost one costs at most the wait for the owner's next repair read, or for the ready starter's
//! next look. If this loop stops, every such row waits that long.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    delay::heap::{Entry, WakeKind},
    ids::{Incarnation, QueueName, TaskId},
    time::UnixMicros,
};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    store::{
        Database, Statements,
        watch::{ListenerLost, Notification, Nudge},
    },
    supervise::at_work,
    working_set::database::{DatabaseIndex, NodeDatabase, NodeDatabases},
};

/// Nudges of one database are gathered for this long: at most some fifty small statements a second.
const GATHER: Duration = Duration::from_millis(20);

/// The most rows named in one gathering, some 50 KB. Beyond it, nudges name the shards.
const ROWS_NAMED: usize = 1_000;

/// A database that cannot be listened to for this long is in the log, and again after as long.
const DEAF_FOR: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub struct Nudger<S = Arc<Database>> {
    inner: Arc<Inner<S>>,
}

#[derive(Debug)]
struct Inner<S> {
    databases: NodeDatabases<S>,
    horizon: Duration,
    wanted: Notify,
}

impl<S: Statements> Nudger<S> {
    pub fn new(databases: NodeDatabases<S>, horizon: Duration) -> Self {
        Self { inner: Arc::new(Inner { databases, horizon, wanted: Notify::new() }) }
    }

    pub fn databases(&self) -> &NodeDatabases<S> {
        &self.inner.databases
    }

    /// Notes a written row that must be looked at by `wake_at`.
    pub fn written(&self, id: TaskId, wake_at: UnixMicros) {
        self.written_all([(id, wake_at)]);
    }

    /// Notes many written rows in one pass over the locks.
    pub fn written_all(&self, rows: impl IntoIterator<Item = (TaskId, UnixMicros)>) {
        let inner = &self.inner;
        // Of each database: the last moment that is near, and the rows until then. Most submissions are of later ones.
        let mut near: BTreeMap<DatabaseIndex, (UnixMicros, Vec<Entry>)> = BTreeMap::new();
        for (id, wake_at) in rows {
            let Some((index, database)) = inner.databases.of(id.shard()) else { continue };
            let (edge, entries) = near.entry(index).or_insert_with(|| (inner.edge(database), Vec::new()));
            if wake_at <= *edge {
                entries.push(Entry { wake_at, id, kind: WakeKind::Claim });
            }
        }
        for (index, (_, entries)) in near.into_iter().filter(|(_, (_, entries))| !entries.is_empty()) {
            let database = &inner.databases[index];
            let away: Vec<(TaskId, UnixMicros)> = entries
                .iter()
                .filter(|entry| !database.owned_shards.is_claimable(entry.id.shard()))
                .map(|entry| (entry.id, entry.wake_at))
                .collect();
            database.owned_shards.offer(entries);
            if away.is_empty() {
                continue;
            }
            let mut pending = database.nudge.lock();
            if pending.rows.len() + away.len() > ROWS_NAMED {
                pending.shards.extend(away.iter().map(|(id, _)| id.shard()));
            } else {
                pending.rows.extend(away);
            }
            drop(pending);
            inner.wanted.notify_one();
        }
    }

    /// Tells the owners of these queues' shards to look: a task has an outcome, so there may be room for others.
    pub fn room_in<'a>(&self, tasks: impl IntoIterator<Item = (TaskId, &'a QueueName)>) {
        for (id, queue) in tasks {
            let Some((_, database)) = self.inner.databases.of(id.shard()) else { continue };
            if database.owned_shards.is_claimable(id.shard()) {
                database.ready_queues.room_in([queue], clock::instant());
            } else {
                database.nudge.lock().room.insert((id.shard(), queue.clone()));
                self.inner.wanted.notify_one();
            }
        }
    }

    /// Sends the gathered nudges until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let tell = |database: NodeDatabase<S>, nudge: Nudge| async move {
            if let Err(error) = database.sql.tell(&nudge).await {
                tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "nudge not sent; the owner's next pass finds the work");
            }
        };
        self.send(tell, stop).await;
    }

    /// Sends with `tell`, one nudge at a time for each database, so that a slow one delays those of no other.
    async fn send<F>(self, tell: impl Fn(NodeDatabase<S>, Nudge) -> F, stop: CancellationToken)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut sending: JoinSet<DatabaseIndex> = JoinSet::new();
        let mut busy = BTreeSet::new();
        loop {
            tokio::select! {
                Some(sent) = sending.join_next() => drop(busy.remove(&sent.expect("a nudge does not panic"))),
                () = self.inner.wanted.notified() => {}
                () = stop.cancelled() => return,
            }
            tokio::time::sleep(GATHER).await;
            for (index, database) in self.inner.databases.indexed() {
                if busy.contains(&index) || database.nudge.lock().is_empty() {
                    continue;
                }
                busy.insert(index);
                let nudge = std::mem::take(&mut *database.nudge.lock());
                let (sent, work) = (tell(database.clone(), nudge), at_work());
                sending.spawn(async move {
                    sent.await;
                    drop(work);
                    index
                });
            }
        }
    }
}

impl<S: Statements> Inner<S> {
    /// The last moment that is near. The database's time decides: this machine's clock may be wrong by hours.
    fn edge(&self, database: &NodeDatabase<S>) -> UnixMicros {
        let now = database.sql.clock().at_most(clock::instant()).unwrap_or_else(clock::now);
        now.plus(self.horizon)
    }
}

/// Listens to one database for the other nodes' nudges and for submissions in SQL. After a gap in the connection
/// the preloader reads everything again. The connection also holds the presence lock of `present`, if given.
pub async fn listen(
    databases: NodeDatabases,
    index: DatabaseIndex,
    present: Option<Incarnation>,
    stop: CancellationToken,
) {
    let database = &databases[index];
    let (pause, mut heard_or_told_at) = (Duration::from_secs(1), clock::instant());
    loop {
        let mut is_heard = false;
        let heard = async {
            let work = at_work();
            let mut nudges = database.sql.nudges(present).await?;
            drop(work);
            is_heard = true;
            database.owned_shards.nudge(database.owned_shards.owned().into_keys());
            database.inbox.notify_one();
            loop {
                match nudges.next().await? {
                    Notification::Inbox => database.inbox.notify_one(),
                    Notification::Room(queues) => {
                        let ours = queues
                            .iter()
                            .filter(|(shard, _)| database.owned_shards.is_claimable(*shard))
                            .map(|(_, queue)| queue);
                        database.ready_queues.room_in(ours, clock::instant());
                    }
                    Notification::Rows(rows) => {
                        database.owned_shards.offer(rows.into_iter().map(|(id, wake_at)| Entry {
                            wake_at,
                            id,
                            kind: WakeKind::Claim,
                        }));
                    }
                    Notification::Shards(shards) => database.owned_shards.nudge(shards),
                    Notification::Gap => {
                        database.owned_shards.nudge(database.owned_shards.owned().into_keys());
                        database.inbox.notify_one();
                        database.ready_queues.room_in_all(clock::instant());
                    }
                }
            }
        };
        let ended: Result<std::convert::Infallible, ListenerLost> = tokio::select! {
            lost = heard => lost,
            () = stop.cancelled() => return,
        };
        let Err(lost) = ended;
        let now = clock::instant();
        let is_long = !is_heard && now.saturating_duration_since(heard_or_told_at) >= DEAF_FOR;
        if is_heard || is_long {
            heard_or_told_at = now;
        }
        log_lost(&database.sql, &lost, is_long);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// `is_long`: no try has connected for [`DEAF_FOR`].
fn log_lost(database: &Database, lost: &ListenerLost, is_long: bool) {
    let (database, error) = (database.name(), lost as &dyn std::error::Error);
    if is_long {
        tracing::warn!(%database, error, "could not listen to the database for ten minutes; repair reads find the work, maybe late");
    } else {
        tracing::debug!(%database, error, "cannot receive nudges; repair reads find the work");
    }
}
