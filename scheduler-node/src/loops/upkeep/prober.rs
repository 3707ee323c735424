//! Finds out whether this node can reach what its shards need. Reports it to the cluster, so that only nodes that
//! can work own shards.
//!
//! A node that reaches etcd but not a database or the broker would own shards and publish nothing. After a bounded
//! time it declares itself unfit, and the master assigns its shards to fit nodes, if there are any. The prober also
//! checks a database's schema before this node acquires shards there.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::DatabaseName;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::BrokerState,
    loops::cluster::session_keeper,
    metrics::Metrics,
    store::{Error, migrate::Misfit},
    supervise::at_work,
    working_set::database::NodeDatabase,
};

const PROBE_EVERY: Duration = Duration::from_millis(500);

/// A database that has not answered for this long counts as unreachable.
const DATABASE_PATIENCE: Duration = Duration::from_secs(5);

/// The broker's patience is longer: it may take a while to restart, and all nodes lose it together.
const BROKER_PATIENCE: Duration = Duration::from_secs(15);

/// The stores that this node can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    /// Databases that the node cannot use, each with the reason.
    pub unfit: BTreeMap<DatabaseName, String>,
    /// The number of databases.
    pub databases: usize,
    /// The reason why the broker cannot be used.
    pub broker_unfit: Option<String>,
}

impl Fitness {
    /// Counts every database as unfit until it has answered once.
    pub fn unproven(databases: impl IntoIterator<Item = DatabaseName>) -> Self {
        let unfit: BTreeMap<_, _> =
            databases.into_iter().map(|database| (database, "not reached yet".to_owned())).collect();
        Self { databases: unfit.len(), unfit, broker_unfit: None }
    }

    pub fn is_fit(&self, database: &DatabaseName) -> bool {
        !self.unfit.contains_key(database)
    }

    pub fn any_fit(&self) -> bool {
        self.unfit.len() < self.databases
    }
}

#[derive(Debug)]
pub struct Prober {
    pub database: NodeDatabase,
    pub shard_count: u16,
    pub fitness: Arc<watch::Sender<Fitness>>,
    pub metrics: Arc<Metrics>,
    /// Receives the reason when this node can never work with this database and must stop.
    pub misfit: tokio::sync::mpsc::Sender<Misfit>,
}

impl Prober {
    pub async fn run(self, stop: CancellationToken) {
        let mut last_answer: Option<Instant> = None;
        let mut checked = false;
        loop {
            match self.probe(&mut checked).await {
                Ok(()) => {
                    last_answer = Some(Instant::now());
                    self.report(None);
                }
                Err(Failed::Misfit(misfit)) => {
                    // The receiver stops the node.
                    let _ = self.misfit.send(misfit).await;
                    return;
                }
                Err(Failed::Away(why)) => {
                    self.metrics.database_up.with_label_values(&[self.database.name().as_str()]).set(0);
                    if last_answer.is_none_or(|answer| answer.elapsed() > DATABASE_PATIENCE) {
                        self.report(Some(why));
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(PROBE_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn probe(&self, checked: &mut bool) -> Result<(), Failed> {
        let _work = at_work();
        if !*checked {
            self.database.sql.schema_check(self.shard_count).await.map_err(Failed::of_misfit)?;
            *checked = true;
        }
        self.database.sql.ping().await.map_err(|error| Failed::of_error(&error))
    }

    fn report(&self, unfit: Option<String>) {
        let name = self.database.name();
        self.metrics.database_up.with_label_values(&[name.as_str()]).set(i64::from(unfit.is_none()));
        self.fitness.send_if_modified(|fitness| match unfit {
            Some(why) if fitness.unfit.get(name) != Some(&why) => {
                tracing::warn!(database = %name, why, "the database cannot be used");
                fitness.unfit.insert(name.clone(), why);
                true
            }
            Some(_) => false,
            None if fitness.unfit.remove(name).is_some() => {
                tracing::info!(database = %name, "the database can be used");
                true
            }
            None => false,
        });
    }
}

enum Failed {
    Misfit(Misfit),
    Away(String),
}

impl Failed {
    fn of_misfit(misfit: Misfit) -> Self {
        if misfit.is_final() { Self::Misfit(misfit) } else { Self::Away(chain(&misfit)) }
    }

    fn of_error(error: &Error) -> Self {
        Self::Away(chain(error))
    }
}

/// Joins an error and all its causes in one line, for people.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Reports to the cluster what this node cannot reach.
pub async fn tell_cluster(
    mut fitness: watch::Receiver<Fitness>,
    cluster: watch::Sender<session_keeper::Fitness>,
    stop: CancellationToken,
) {
    loop {
        let found = fitness.borrow_and_update().clone();
        let told = session_keeper::Fitness {
            unfit: found.unfit.into_keys().collect(),
            broker_unfit: found.broker_unfit.is_some(),
        };
        cluster.send_if_modified(|known| {
            let changed = *known != told;
            *known = told;
            changed
        });
        tokio::select! {
            answer = fitness.changed() => if answer.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Watches the broker's state with its own patience.
pub async fn watch_broker(
    mut broker: watch::Receiver<BrokerState>,
    fitness: Arc<watch::Sender<Fitness>>,
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
