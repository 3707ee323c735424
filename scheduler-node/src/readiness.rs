//! Whether this node can do its work, and if not, why.
//!
//! A node becomes ready once it has reached everything it needs, so that an upgrade with a wrong URL stops at its first
//! node. If it loses something later, it names the loss, but stays ready while it can still accept tasks durably. A
//! broker or an etcd that all running nodes lose together must not take the API away with them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use common::ids::{ClusterId, DatabaseName};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{BrokerState, ExchangeTroubles},
    loops::{
        cluster::{
            realm_keeper::RealmStanding,
            session_keeper::{Session, SessionState},
        },
        upkeep::prober::{NodeFitness, Unfit},
    },
    supervise::Pulse,
    working_set::set_aside::SetAside,
};

/// How often a node that starts looks whether it has reached everything.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Readiness {
    sources: Sources,
    /// Whether everything was reachable at the same time, once.
    complete: Arc<AtomicBool>,
}

/// What the answer is derived from.
#[derive(Clone, Debug)]
pub struct Sources {
    pub fitness: watch::Receiver<NodeFitness>,
    pub broker: watch::Receiver<BrokerState>,
    pub session: watch::Receiver<Session>,
    /// The cluster of the databases, once one of them has answered.
    pub cluster: watch::Receiver<Option<ClusterId>>,
    pub realm: watch::Receiver<RealmStanding>,
    /// The cluster too, once a database serves this node's realm.
    pub admitted: watch::Receiver<Option<ClusterId>>,
    pub leaving: CancellationToken,
    pub exchanges: ExchangeTroubles,
    pub set_aside: SetAside,
    pub pulse: Pulse,
}

common::labelled! {
    /// What a node lacks, in a word that every caller may read: it names no host, no database and no queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Lack {
        Database = "database",
        /// The database answers, and its schema has yet to be migrated.
        Schema = "schema",
        /// The database answers, and may lack commits: an operator has to accept the loss.
        Commits = "commits",
        /// No standby confirms commits, so no task is accepted.
        Standby = "standby",
        Amqp = "amqp",
        Etcd = "etcd",
        /// It lacks nothing, and stops.
        Stopping = "stopping",
    }
}

/// The answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub ready: bool,
    pub missing: BTreeSet<Lack>,
    pub reasons: Vec<String>,
}

impl Readiness {
    pub fn new(sources: Sources) -> Self {
        Self { sources, complete: Arc::default() }
    }

    /// Looks until everything has been reachable at the same time. A node may be asked for the first time in an outage,
    /// long after its start, and has to know then that it was complete before.
    pub async fn follow(self, stop: CancellationToken) {
        while !self.was_complete(self.lacks(&self.fitness()).is_empty()) {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
        // A loop that ends before the stop would end the node.
        stop.cancelled().await;
    }

    pub fn report(&self) -> Report {
        let exchanges = self.sources.exchanges.reasons().into_iter().map(|why| format!("amqp: {why}"));
        self.report_with(exchanges.collect(), self.sources.set_aside.reasons())
    }

    /// The report for callers of some queues only: it names no exchange, and nothing that was set aside.
    pub fn report_without_names(&self) -> Report {
        let exchanges = match self.sources.exchanges.reasons().len() {
            0 => Vec::new(),
            count => vec![format!("amqp: {count} delay exchanges cannot be used as configured")],
        };
        self.report_with(exchanges, self.sources.set_aside.reasons_without_names())
    }

    fn report_with(&self, exchanges: Vec<String>, set_aside: Vec<String>) -> Report {
        let fitness = self.fitness();
        let (mut missing, mut reasons): (BTreeSet<Lack>, Vec<String>) = self.lacks(&fitness).into_iter().unzip();
        let was_complete = self.was_complete(reasons.is_empty());
        // A broker that is short of memory is reached; it takes messages again by itself.
        let is_admitted = self.sources.admitted.borrow().is_some();
        if is_admitted && matches!(&*self.sources.broker.borrow(), BrokerState::Up { blocked: true }) {
            missing.insert(Lack::Amqp);
            reasons.push("amqp: the broker has blocked the connection".to_owned());
        }
        // Trouble with one exchange is named, and does not keep the node from being ready.
        reasons.extend(exchanges);
        // Without a standby the rest goes on: lookups, changes, and all that was accepted.
        for (database, why) in &fitness.unreplicated {
            missing.insert(Lack::Standby);
            reasons.push(format!("database {database}: no task is accepted while commits are not replicated: {why}"));
        }
        // Rows that a database refuses are named too, and the rest goes on.
        reasons.extend(set_aside);
        // A stalled loop needs a person; the API of this node still takes tasks.
        reasons.extend(self.sources.pulse.reasons(Instant::now()));
        let leaving = self.sources.leaving.is_cancelled();
        if leaving {
            missing.insert(Lack::Stopping);
            reasons.push("this node is stopping".to_owned());
        }
        let any_database = fitness.any_fit();
        Report { ready: was_complete && any_database && !leaving, missing, reasons }
    }

    fn fitness(&self) -> NodeFitness {
        self.sources.fitness.borrow().clone()
    }

    /// Whether this node has lacked nothing at the same time, once: now or before.
    fn was_complete(&self, lacks_nothing: bool) -> bool {
        self.complete.fetch_or(lacks_nothing, Ordering::Relaxed) || lacks_nothing
    }

    /// The stores that this node cannot reach or use now, each with the reason.
    fn lacks(&self, fitness: &NodeFitness) -> Vec<(Lack, String)> {
        let of_database = |(database, unfit): (&DatabaseName, &Unfit)| {
            let lack = match unfit {
                Unfit { awaits_migration: true, .. } => Lack::Schema,
                Unfit { is_behind: true, .. } => Lack::Commits,
                Unfit { .. } => Lack::Database,
            };
            (lack, format!("database {database}: {}", unfit.why))
        };
        let mut lacks: Vec<(Lack, String)> = fitness.unfit.iter().map(of_database).collect();
        // The node turns to etcd once a database has said which cluster it belongs to, and to RabbitMQ once it may use
        // one. Before that it has not tried.
        match &*self.sources.broker.borrow() {
            _ if self.sources.admitted.borrow().is_none() => {}
            BrokerState::Down { reason, .. } => lacks.push((Lack::Amqp, format!("amqp: {reason}"))),
            BrokerState::Up { .. } => {}
        }
        let session = self.sources.session.borrow().clone();
        let of_etcd = match (&session.standing, &self.sources.realm.borrow().refusal) {
            (_, Some(refusal)) => Some(refusal.clone()),
            (SessionState::Joined { .. }, None) => None,
            (SessionState::Joining, None) => {
                Some(session.refusal.unwrap_or_else(|| "not registered, no answer yet".to_owned()))
            }
            (SessionState::NameTaken { .. }, None) => {
                Some("another node has this name; waiting until its lease expires".to_owned())
            }
            (SessionState::Left, None) => Some("this node has left".to_owned()),
        };
        let has_tried = self.sources.cluster.borrow().is_some();
        lacks.extend(of_etcd.filter(|_| has_tried).map(|why| (Lack::Etcd, format!("etcd: {why}"))));
        lacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        supervise::{LoopKind, at_work},
        working_set::set_aside::Kind,
    };

    /// A node with `fitness` that lacks nothing else.
    fn readiness(fitness: watch::Receiver<NodeFitness>, leaving: &CancellationToken, pulse: &Pulse) -> Readiness {
        Readiness::new(Sources {
            fitness,
            broker: watch::channel(BrokerState::Up { blocked: false }).1,
            session: watch::channel(Session::of_test()).1,
            cluster: watch::channel(Some(ClusterId::new(uuid::Uuid::from_u128(1)))).1,
            realm: watch::channel(RealmStanding::default()).1,
            admitted: watch::channel(Some(ClusterId::new(uuid::Uuid::from_u128(1)))).1,
            leaving: leaving.clone(),
            exchanges: ExchangeTroubles::default(),
            set_aside: SetAside::default(),
            pulse: pulse.clone(),
        })
    }

    fn content() -> Report {
        Report { ready: true, missing: BTreeSet::new(), reasons: Vec::new() }
    }

    #[tokio::test]
    async fn a_stalled_loop_is_named_and_the_node_stays_ready() {
        let fitness = watch::channel(NodeFitness { databases: 1, ..NodeFitness::default() }).1;
        let pulse = Pulse::with_bound(|_| Duration::ZERO);
        let readiness = readiness(fitness, &CancellationToken::new(), &pulse);
        assert_eq!(readiness.report(), content());
        let work = pulse.run(LoopKind::Settler, async { at_work() }).await;
        let report = readiness.report();
        assert!(report.ready && report.reasons.len() == 1 && report.reasons[0].contains("settler"), "{report:?}");
        assert!(report.missing.is_empty(), "{report:?}");
        drop(work);
        assert_eq!(readiness.report(), content());
    }

    #[tokio::test]
    async fn a_node_that_starts_while_the_broker_is_short_of_memory_takes_tasks() {
        let fitness = watch::channel(NodeFitness { databases: 1, ..NodeFitness::default() }).1;
        let (leaving, pulse) = (CancellationToken::new(), Pulse::default());
        let mut readiness = readiness(fitness, &leaving, &pulse);
        readiness.sources.broker = watch::channel(BrokerState::Up { blocked: true }).1;
        let report = readiness.report();
        assert_eq!((report.ready, report.missing), (true, [Lack::Amqp].into()));
        assert_eq!(report.reasons, ["amqp: the broker has blocked the connection"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_first_asked_in_an_outage_of_the_broker_is_ready() {
        let down = || BrokerState::Down { reason: "not connected".to_owned(), since: Instant::now() };
        let fitness = watch::channel(NodeFitness { databases: 1, ..NodeFitness::default() }).1;
        let (leaving, pulse, stop) = (CancellationToken::new(), Pulse::default(), CancellationToken::new());
        let mut readiness = readiness(fitness, &leaving, &pulse);
        let (broker, seen) = watch::channel(down());
        readiness.sources.broker = seen;
        let unasked = async {
            tokio::time::sleep(2 * LOOK_EVERY).await;
            assert!(!readiness.report().ready, "it has never reached the broker");
            broker.send_replace(BrokerState::Up { blocked: false });
            tokio::time::sleep(2 * LOOK_EVERY).await;
            broker.send_replace(down());
            let report = readiness.report();
            assert_eq!((report.ready, report.missing), (true, [Lack::Amqp].into()));
            stop.cancel();
        };
        tokio::join!(readiness.clone().follow(stop.clone()), unasked);
    }

    #[tokio::test]
    async fn callers_of_some_queues_read_what_is_wrong_without_names() {
        let fitness = watch::channel(NodeFitness { databases: 1, ..NodeFitness::default() }).1;
        let readiness = readiness(fitness, &CancellationToken::new(), &Pulse::default());
        readiness.sources.set_aside.note(Kind::Schedule, "payroll", "no such queue");
        let named = readiness.report();
        assert_eq!(named.reasons, ["1 set aside (schedule), most recently payroll: no such queue"]);
        assert_eq!(
            readiness.report_without_names(),
            Report { reasons: vec!["1 set aside (schedule)".to_owned()], ..named }
        );
    }

    #[tokio::test]
    async fn a_node_that_awaits_its_schema_lacks_nothing_that_it_has_not_tried_yet() {
        let unfit = Unfit { awaits_migration: true, ..Unfit::away("no schema".to_owned()) };
        let fitness = NodeFitness { unfit: [(DatabaseName::new("main"), unfit)].into(), ..NodeFitness::default() };
        let (leaving, pulse) = (CancellationToken::new(), Pulse::default());
        let mut readiness = readiness(watch::channel(fitness).1, &leaving, &pulse);
        let refusal = Some("no space".to_owned());
        let session = Session { standing: SessionState::Joining, last_renewal: None, refusal };
        readiness.sources.session = watch::channel(session).1;
        let down = BrokerState::Down { reason: "not connected yet".to_owned(), since: Instant::now() };
        readiness.sources.broker = watch::channel(down).1;
        assert_eq!(readiness.report().missing, [Lack::Schema, Lack::Amqp, Lack::Etcd].into());
        readiness.sources.admitted = watch::channel(None).1;
        assert_eq!(readiness.report().missing, [Lack::Schema, Lack::Etcd].into());
        assert_eq!(readiness.report().reasons.last().map(String::as_str), Some("etcd: no space"));
        readiness.sources.cluster = watch::channel(None).1;
        assert_eq!(readiness.report().missing, [Lack::Schema].into());
    }

    #[tokio::test]
    async fn a_prefix_of_another_cluster_is_named() {
        let fitness = watch::channel(NodeFitness { databases: 1, ..NodeFitness::default() }).1;
        let (leaving, pulse) = (CancellationToken::new(), Pulse::default());
        let mut readiness = readiness(fitness, &leaving, &pulse);
        let standing = RealmStanding { refusal: Some("of another cluster".to_owned()), ..RealmStanding::default() };
        readiness.sources.realm = watch::channel(standing).1;
        let report = readiness.report();
        assert_eq!(
            (report.missing, report.reasons),
            ([Lack::Etcd].into(), vec!["etcd: of another cluster".to_owned()])
        );
    }

    #[tokio::test]
    async fn a_word_tells_a_schema_that_is_awaited_from_a_database_that_is_away() {
        let (fitness, seen) = watch::channel(NodeFitness::unproven([DatabaseName::new("main")]));
        let leaving = CancellationToken::new();
        let readiness = readiness(seen, &leaving, &Pulse::default());
        let expect = |ready: bool, lacks: &[Lack]| {
            let report = readiness.report();
            assert_eq!((report.ready, report.missing), (ready, lacks.iter().copied().collect()));
        };
        expect(false, &[Lack::Database]);
        let unfit = |awaits_migration, is_behind| Unfit {
            why: "host 10.0.0.1 has no schema".to_owned(),
            awaits_migration,
            is_behind,
        };
        let set = |unfit: Unfit| fitness.send_modify(|all| _ = all.unfit.insert(DatabaseName::new("main"), unfit));
        set(unfit(true, false));
        expect(false, &[Lack::Schema]);
        set(unfit(false, true));
        expect(false, &[Lack::Commits]);
        fitness.send_modify(|fitness| fitness.unfit.clear());
        expect(true, &[]);
        let why = "no synchronous standby is connected".into();
        fitness.send_modify(|fitness| _ = fitness.unreplicated.insert(DatabaseName::new("main"), why));
        expect(true, &[Lack::Standby]);
        fitness.send_modify(|fitness| fitness.unreplicated.clear());
        leaving.cancel();
        expect(false, &[Lack::Stopping]);
    }
}
