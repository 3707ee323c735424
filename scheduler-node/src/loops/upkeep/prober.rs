//! Finds out whether this node can reach what its shards need. Reports it to the cluster, so that only nodes that
//! can work own shards.
//!
//! A node that reaches etcd but not a database or the broker would own shards and publish nothing. After a bounded
//! time it declares itself unfit, and the master assigns its shards to fit nodes, if there are any. A node that starts
//! while the first database is away knows no queue and no key of receipts, and could dispatch no task of the others
//! either. So it declares that it uses no database, until it has read both.
//!
//! The prober also compares a database's schema with the one that this node needs. Until it fits, and until the
//! database serves the realm of this node (`guard`), it lets no other statement of this node through. A schema that
//! `duetime migrate` can bring up to date is awaited; a schema that does not belong to this configuration ends the
//! node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::{ClusterId, DatabaseId, DatabaseName};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::BrokerState,
    causes::explained,
    loops::{
        cluster::{realm_keeper::RealmStanding, session_keeper},
        upkeep::{
            guard::Guard,
            queue_reader::{Books, until_read},
        },
    },
    metrics::Metrics,
    receipt::Receipts,
    store::{
        Error, Places,
        schema::{Misfit, refuse_too_many},
    },
    supervise::at_work,
    working_set::database::NodeDatabase,
};

const PROBE_EVERY: Duration = Duration::from_millis(500);

/// The interval between two looks at a schema that has yet to be migrated. It is longer, because each look opens a
/// connection of its own, and many nodes may wait while a migration runs.
const SCHEMA_LOOK_EVERY: Duration = Duration::from_secs(2);

/// The interval between two lines in the log about a schema that has yet to be migrated.
const SCHEMA_WARN_EVERY: Duration = Duration::from_secs(300);

/// The interval of the looks at all servers of a database. Each costs every server one connection.
const LOOK_OUT_EVERY: Duration = Duration::from_secs(2);

/// The interval with one host in the URL. It may lead to another server after a failover, and open connections do not
/// show that.
const LONE_LOOK_OUT_EVERY: Duration = Duration::from_secs(10);

/// The longest wait for what the other nodes have seen, before this node uses a database for the first time. etcd
/// answers within milliseconds.
const LEARN_WITHIN: Duration = Duration::from_secs(2);

/// A database that has not answered for this long counts as unreachable.
const DATABASE_PATIENCE: Duration = Duration::from_secs(5);

/// The broker's patience is longer: it may take a while to restart, and all nodes lose it together.
const BROKER_PATIENCE: Duration = Duration::from_secs(15);

/// The most reasons that the log has of one time in which a database cannot be used. Their texts may differ each time.
const REASONS_LOGGED: usize = 10;

/// The stores that this node can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFitness {
    /// Databases that the node cannot use, each with the reason.
    pub unfit: BTreeMap<DatabaseName, Unfit>,
    /// The number of databases.
    pub databases: usize,
    /// Databases that have answered since the node started.
    pub used: BTreeSet<DatabaseName>,
    /// The reason why the broker cannot be used.
    pub broker_unfit: Option<String>,
    /// Databases that accept no task because commits are not replicated, each with the reason.
    pub unreplicated: BTreeMap<DatabaseName, Arc<str>>,
    /// Databases that left messages or submitted tasks unwritten lately. Those of them that are fit answer, and take no
    /// writes.
    pub unwritable: BTreeSet<DatabaseName>,
}

/// The reason why a database cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub why: String,
    /// Whether it answers, and only its schema has yet to be migrated.
    pub awaits_migration: bool,
    /// Whether it answers, and is not used because it may lack commits.
    pub is_behind: bool,
}

impl Unfit {
    pub fn away(why: String) -> Self {
        Self { why, awaits_migration: false, is_behind: false }
    }
}

impl NodeFitness {
    /// Counts every database as unfit until it has answered once.
    pub fn unproven(databases: impl IntoIterator<Item = DatabaseName>) -> Self {
        let unreached = || Unfit::away("not reached yet".to_owned());
        let unfit: BTreeMap<_, _> = databases.into_iter().map(|database| (database, unreached())).collect();
        Self { databases: unfit.len(), unfit, ..Self::default() }
    }

    pub fn is_fit(&self, database: &DatabaseName) -> bool {
        !self.unfit.contains_key(database)
    }

    pub fn any_fit(&self) -> bool {
        self.unfit.len() < self.databases
    }

    /// Counts one more database, whose prober is about to start. The node does without it until it answers.
    pub fn add(&mut self) {
        self.databases += 1;
    }
}

#[derive(Debug)]
pub struct Prober {
    pub database: NodeDatabase,
    /// Whether it is the first one, without which there is no cluster yet.
    pub is_home: bool,
    pub places: Places,
    /// The number of shards that the configuration states. It counts at the first migration only.
    pub stated_shards: Option<u16>,
    /// The cluster of the databases, once one of them has answered.
    pub cluster: watch::Sender<Option<ClusterId>>,
    pub realm: watch::Receiver<RealmStanding>,
    /// The cluster too, once a database serves this node's realm. Before that the node reads no message: it could not
    /// write what a report says.
    pub admitted: watch::Sender<Option<ClusterId>>,
    pub fitness: Arc<watch::Sender<NodeFitness>>,
    pub metrics: Arc<Metrics>,
    /// Receives the reason when this node can never work with this database and must stop.
    pub misfit: tokio::sync::mpsc::Sender<Misfit>,
}

impl Prober {
    pub async fn run(self, stop: CancellationToken) {
        let mut last_answer: Option<Instant> = None;
        let mut last_warning: Option<Instant> = None;
        let (mut checked, mut is_warm) = (false, false);
        let mut logged = LoggedReasons::default();
        let mut guard = Guard::new(self.realm.clone());
        let look_out_every = if self.database.sql.has_several_servers() { LOOK_OUT_EVERY } else { LONE_LOOK_OUT_EVERY };
        let mut look_out_at = Instant::now() + look_out_every;
        loop {
            let mut pause = PROBE_EVERY;
            let look_out = async {
                if Instant::now() >= look_out_at {
                    self.database.sql.look_out().await;
                    look_out_at = Instant::now() + look_out_every;
                }
            };
            let (probed, ()) = tokio::join!(self.probe(&mut checked, &mut is_warm, &mut guard), look_out);
            match probed {
                Ok(answered) => {
                    last_answer = Some(answered);
                    self.report(None, &mut logged);
                }
                Err(ProbeFailure::Misfit(misfit)) => {
                    // The receiver stops the node. The end of this loop would stop it too, with another reason.
                    let _ = self.misfit.send(misfit).await;
                    return stop.cancelled().await;
                }
                Err(ProbeFailure::Unmigrated(why)) => {
                    pause = SCHEMA_LOOK_EVERY;
                    if last_warning.is_none_or(|at| at.elapsed() >= SCHEMA_WARN_EVERY) {
                        last_warning = Some(Instant::now());
                        tracing::warn!(database = %self.database.name(), why, "this node waits for the migration");
                    }
                    self.report(Some(Unfit { awaits_migration: true, ..Unfit::away(why) }), &mut logged);
                }
                Err(ProbeFailure::Shut(why)) => self.report(Some(Unfit::away(why)), &mut logged),
                Err(ProbeFailure::Away(why)) => {
                    self.metrics.database_up.with_label_values(&[self.database.name().as_str()]).set(0);
                    if let Some(loss) = self.database.sql.loss() {
                        let unfit = Unfit { is_behind: true, ..Unfit::away(loss.refusal.to_string()) };
                        self.report(Some(unfit), &mut logged);
                    } else if last_answer.is_none_or(|answer| answer.elapsed() > DATABASE_PATIENCE) {
                        self.report(Some(Unfit::away(why)), &mut logged);
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Returns when the database is known to have answered.
    async fn probe(&self, checked: &mut bool, is_warm: &mut bool, guard: &mut Guard) -> Result<Instant, ProbeFailure> {
        let _work = at_work();
        if !*checked {
            self.database.sql.await_learned(LEARN_WITHIN).await;
            let fit = self.database.sql.schema_check().await.map_err(|misfit| self.failure_of(misfit))?;
            if self.is_home {
                fit.require_first(self.database.name()).map_err(ProbeFailure::of_misfit)?;
            }
            self.require_cluster(fit.cluster).map_err(ProbeFailure::of_misfit)?;
            self.require_shard_count(fit.shard_count).map_err(ProbeFailure::of_misfit)?;
            self.require_new(fit.id).map_err(ProbeFailure::of_misfit)?;
            *checked = true;
        }
        guard.look(&self.database.sql).await.map_err(ProbeFailure::Shut)?;
        if !std::mem::replace(is_warm, true) {
            self.warm_up().await;
        }
        let cluster = *self.cluster.borrow();
        self.admitted
            .send_if_modified(|admitted| admitted.is_none() && std::mem::replace(admitted, cluster) != cluster);
        let answered = self.answered().await.map_err(|error| ProbeFailure::of_error(&error))?;
        self.database.sql.look_for_standby().await.map_err(|error| ProbeFailure::of_error(&error))?;
        self.report_replication();
        self.report_writes();
        Ok(answered)
    }

    /// Before the node counts the database as usable, and so before it owns shards there or says that it is ready.
    async fn warm_up(&self) {
        // After a long stop of the cluster, the first tasks that end would find no partition.
        if let Err(error) = self.database.sql.partitions_make_first().await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(database = %self.database.name(), error, "could not make the archive's partitions ahead; the archiver makes them");
        }
        let began = Instant::now();
        if let Err(error) = self.database.sql.warm_up().await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(database = %self.database.name(), error, "could not open all connections ahead");
        }
        tracing::debug!(database = %self.database.name(), took_ms = began.elapsed().as_millis() as u64, "connections opened");
    }

    /// A fresh glance is an answer. Without one the prober asks for itself, by a statement that waits for no lock on a
    /// table.
    async fn answered(&self) -> Result<Instant, Error> {
        if let Some(glance) = self.database.sql.glance() {
            return Ok(glance.asked);
        }
        self.database.sql.ping().await?;
        Ok(Instant::now())
    }

    fn report_replication(&self) {
        let (name, why) = (self.database.name(), self.database.sql.unreplicated());
        self.fitness.send_if_modified(|fitness| {
            let before = match &why {
                Some(why) => fitness.unreplicated.insert(name.clone(), Arc::clone(why)),
                None => fitness.unreplicated.remove(name),
            };
            before != why
        });
    }

    /// Called when the database has answered, before it counts as fit.
    fn report_writes(&self) {
        let name = self.database.name();
        if !self.fitness.borrow().is_fit(name) {
            // It was away, which explains all that it left unwritten.
            *self.database.unwritten.lock() = None;
        }
        let leaves_messages = self.database.leaves_messages();
        self.fitness.send_if_modified(|fitness| {
            if leaves_messages { fitness.unwritable.insert(name.clone()) } else { fitness.unwritable.remove(name) }
        });
    }

    /// Refuses a database of another cluster than the one that answered first.
    fn require_cluster(&self, found: ClusterId) -> Result<(), Misfit> {
        self.cluster.send_if_modified(|cluster| cluster.replace(cluster.unwrap_or(found)).is_none());
        let expected = self.cluster.borrow().unwrap_or(found);
        let database = self.database.name().clone();
        if found == expected { Ok(()) } else { Err(Misfit::Cluster { database, found, expected }) }
    }

    /// Refuses a database that this node uses already, under another name.
    fn require_new(&self, id: DatabaseId) -> Result<(), Misfit> {
        let database = self.database.name();
        self.places.learn_id(id, database).map_err(|other| Misfit::Same { database: database.clone(), other })
    }

    /// No migration makes a new cluster with too many shards, so a node does not wait for it.
    fn failure_of(&self, misfit: Misfit) -> ProbeFailure {
        let asked = self.stated_shards.filter(|_| self.is_home && matches!(misfit, Misfit::Empty { .. }));
        let refused = asked.and_then(|asked| refuse_too_many(self.database.name(), asked).err());
        ProbeFailure::of_misfit(refused.unwrap_or(misfit))
    }

    /// Refuses a database that was migrated for another number of shards than the one that answered first.
    fn require_shard_count(&self, found: u16) -> Result<(), Misfit> {
        let (expected, is_first) = self.places.learn_shard_count(found);
        if let Some(stated) = self.stated_shards.filter(|stated| is_first && *stated != found) {
            tracing::warn!(
                stated,
                shards = found,
                "the configuration states another number of shards than the cluster has; the cluster keeps its own, which \
                 was fixed by the first migration"
            );
        }
        let database = self.database.name().clone();
        if found == expected { Ok(()) } else { Err(Misfit::Shards { database, found, expected }) }
    }

    /// The node's fitness has the newest reason, and the log has each reason once.
    fn report(&self, unfit: Option<Unfit>, logged: &mut LoggedReasons) {
        let name = self.database.name();
        self.metrics.database_up.with_label_values(&[name.as_str()]).set(i64::from(unfit.is_none()));
        let mut hearing = self.database.hearing.lock();
        if unfit.is_none() {
            hearing.begin(Instant::now())
        } else {
            hearing.end()
        }
        drop(hearing);
        self.fitness.send_if_modified(|fitness| match unfit {
            Some(unfit) if fitness.unfit.get(name) != Some(&unfit) => {
                // The loop logs by itself that it waits for a migration.
                if !unfit.awaits_migration && logged.is_news(&unfit.why) {
                    tracing::warn!(database = %name, why = unfit.why, "the database cannot be used");
                } else {
                    tracing::debug!(database = %name, why = unfit.why, "another reason why it cannot be used");
                }
                fitness.unfit.insert(name.clone(), unfit);
                true
            }
            Some(_) => false,
            None => {
                logged.clear();
                let was_unfit = fitness.unfit.remove(name).is_some();
                if was_unfit {
                    tracing::info!(database = %name, "the database can be used");
                }
                fitness.used.insert(name.clone()) || was_unfit
            }
        });
    }
}

/// The reasons that the log has since a database could be used the last time. While it is away, its errors may
/// alternate with each probe.
#[derive(Debug, Default)]
struct LoggedReasons(BTreeSet<String>);

impl LoggedReasons {
    /// Whether the log needs a line for this reason.
    fn is_news(&mut self, why: &str) -> bool {
        self.0.len() < REASONS_LOGGED && self.0.insert(why.to_owned())
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

enum ProbeFailure {
    Misfit(Misfit),
    Unmigrated(String),
    /// It answers, and does not serve this node's realm.
    Shut(String),
    Away(String),
}

impl ProbeFailure {
    fn of_misfit(misfit: Misfit) -> Self {
        if misfit.awaits_migration() {
            Self::Unmigrated(explained(&misfit))
        } else if misfit.is_final() {
            Self::Misfit(misfit)
        } else {
            Self::Away(explained(&misfit))
        }
    }

    fn of_error(error: &Error) -> Self {
        Self::Away(explained(error))
    }
}

/// Waits until this node knows the queues and the keys of receipts.
pub async fn until_home_is_read(books: Books, mut receipts: Receipts) {
    let are_known = receipts.wait_for(Option::is_some).await.is_ok();
    if !are_known {
        // The node stops.
        std::future::pending::<()>().await;
    }
    until_read(&books).await;
}

/// Reports to the cluster what this node uses and what it cannot reach. Before `can_dispatch` ends it uses nothing, so
/// that it owns no shard whose tasks another node could dispatch.
pub async fn tell_cluster(
    mut fitness: watch::Receiver<NodeFitness>,
    can_dispatch: impl Future<Output = ()>,
    cluster: watch::Sender<session_keeper::MemberFitness>,
    stop: CancellationToken,
) {
    let mut can_dispatch = std::pin::pin!(can_dispatch);
    let mut has_begun = false;
    loop {
        let found = fitness.borrow_and_update().clone();
        let reported = session_keeper::MemberFitness {
            unfit: found.unfit.into_keys().collect(),
            broker_unfit: found.broker_unfit.is_some(),
            used: if has_begun { found.used } else { BTreeSet::new() },
        };
        cluster.send_if_modified(|known| {
            let changed = *known != reported;
            *known = reported;
            changed
        });
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // Before the next, so that a database that has just answered is reported as used at once.
            () = &mut can_dispatch, if !has_begun => has_begun = true,
            answer = fitness.changed() => if answer.is_err() { return },
        }
    }
}

/// Watches the broker's state with its own patience.
pub async fn watch_broker(
    mut broker: watch::Receiver<BrokerState>,
    fitness: Arc<watch::Sender<NodeFitness>>,
    stop: CancellationToken,
) {
    let started = Instant::now();
    loop {
        let (unfit, look_again) = match &*broker.borrow_and_update() {
            BrokerState::Up { .. } => (None, None),
            BrokerState::Down { reason, since } => {
                let patience_ends = (*since).max(started) + BROKER_PATIENCE;
                if Instant::now() >= patience_ends { (Some(reason.clone()), None) } else { (None, Some(patience_ends)) }
            }
        };
        fitness.send_if_modified(|fitness| {
            let changed = fitness.broker_unfit.is_some() != unfit.is_some();
            fitness.broker_unfit = unfit;
            changed
        });
        let patience = async {
            match look_again {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = broker.changed() => if answer.is_err() { return },
            () = patience => {}
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests;
