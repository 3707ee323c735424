//! The loops of one database. They start here and nowhere else: with the node, and when the database joins it later.

use std::sync::Arc;

use common::{
    delay::{ClaimSize, Lead},
    ids::DatabaseName,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Crews, Shared};
use crate::{
    broker::Broker,
    by_database::ByDatabase,
    coordination::Coordination,
    desk::Desk,
    intake::sql::SqlIntake,
    loops::{
        cluster::owner::OwnerDatabase,
        dispatch::{
            claim_on_insert::ClaimOnInsert,
            claims::ClaimHandler,
            dispatcher::{Dispatcher, Pace},
            preloader::Preloader,
            publisher::{longest_hold, longest_lead},
            ready_starter::ReadyStarter,
        },
        nudger,
        outcome::{
            archiver::Archiver,
            reporter::Reporter,
            settler::{Settlements, Settler},
        },
        submit::{
            keyed_submitter::KeyedSubmitter,
            submitter::{self, SubmitJobs, Submitter},
        },
        upkeep::{looker, prober::Prober, seen_keeper::SeenKeeper},
    },
    store::{self, schema::Misfit},
    supervise::LoopKind,
    working_set::database::{DatabaseIndex, NodeDatabase},
};

/// What the loops of the databases share. It holds ways into loops that end with their last sender, so it must be gone
/// before the node waits for their ends.
pub(super) struct DatabaseLoops {
    pub(super) broker: Broker,
    pub(super) coordination: Coordination,
    pub(super) reporter: Reporter,
    pub(super) submitter: Submitter,
    pub(super) claim_on_insert: ClaimOnInsert,
    /// Where the publisher takes confirms.
    pub(super) settlements: ByDatabase<Settlements>,
    /// The databases as the assigner and the owner of shards see them.
    pub(super) names: ByDatabase<DatabaseName>,
    pub(super) owned: ByDatabase<OwnerDatabase<store::Database>>,
    pub(super) desk: Desk,
    pub(super) misfit: mpsc::Sender<Misfit>,
}

impl DatabaseLoops {
    /// Starts the loops of the database at `index`, the first whose loops do not run yet. Before that nothing may be
    /// routed to it.
    pub(super) fn start(&self, shared: &Shared, crews: &mut Crews, index: DatabaseIndex) {
        let database = &shared.databases[index];
        shared.metrics.begin_database(database.name().as_str());
        self.own(shared, crews, database);
        self.dispatch(shared, crews, index, database);
        self.take_in(shared, crews, index, database);
        self.watch(shared, crews, index, database);
    }

    fn own(&self, shared: &Shared, crews: &mut Crews, database: &NodeDatabase) {
        self.names.push(database.name().clone());
        self.owned.push(OwnerDatabase {
            name: database.name().clone(),
            owned_shards: Arc::clone(&database.owned_shards),
            hearing: Arc::clone(&database.hearing),
            fence: Arc::clone(&database.sql),
        });
        let keeper = SeenKeeper::new(Arc::clone(&database.sql), self.coordination.clone(), shared.cluster.subscribe());
        crews.cluster.spawn(LoopKind::SeenKeeper, keeper.run(shared.stop.cluster.clone()));
    }

    /// Starts what leads its tasks from the heap to their ends.
    fn dispatch(&self, shared: &Shared, crews: &mut Crews, index: DatabaseIndex, database: &NodeDatabase) {
        let (scheduler, stop, work) = (&shared.config.scheduler, &shared.stop.work, &mut crews.work);
        let (sender, confirms) = Settlements::channel(scheduler.window);
        self.settlements.push(sender);
        let settler = Settler {
            databases: shared.databases.clone(),
            index,
            releaser: self.reporter.releaser.clone(),
            window: scheduler.window,
            lanes: Arc::clone(&shared.lanes),
            metrics: Arc::clone(&shared.metrics),
        };
        work.spawn(LoopKind::Settler, settler.run(confirms, shared.stop.patience.clone()));
        work.spawn(LoopKind::Reporter, self.reporter.add_line(stop.clone()));
        let metrics = Arc::clone(&shared.metrics);
        let preloader = Preloader::new(database.clone(), scheduler.horizon(), scheduler.heap_entries, metrics);
        work.spawn(LoopKind::Preloader, preloader.run(stop.clone()));
        let pace = Pace { batch: scheduler.batch, window: scheduler.window };
        let longest_lead = longest_lead(scheduler.claim_ahead(), shared.config.etcd.lease_ttl());
        let claims = ClaimHandler {
            database: database.clone(),
            index,
            publisher: self.claim_on_insert.publisher.clone(),
            metrics: Arc::clone(&shared.metrics),
            longest_hold: longest_hold(shared.config.etcd.lease_ttl()),
        };
        let dispatcher = Dispatcher {
            claims: claims.clone(),
            pace,
            lead: Arc::new(Mutex::new(Lead::new(longest_lead, std::time::Instant::now()))),
            size: Arc::new(Mutex::new(ClaimSize::new(pace.batch))),
            lanes: Arc::clone(&shared.lanes),
            books: Arc::clone(&shared.books),
            broker: self.broker.state(),
            sounded: Some(self.broker.clone()),
            reporter: self.reporter.clone(),
        };
        let ready_starter = ReadyStarter {
            claims,
            pace,
            lanes: Arc::clone(&shared.lanes),
            books: Arc::clone(&shared.books),
            broker: self.broker.state(),
            places: shared.store.places().clone(),
            progress: Arc::default(),
        };
        work.spawn(LoopKind::Dispatcher, dispatcher.run(stop.clone()));
        work.spawn(LoopKind::ReadyStarter, ready_starter.run(stop.clone()));
    }

    /// Starts what writes submissions into it, and what collects its inbox.
    fn take_in(&self, shared: &Shared, crews: &mut Crews, index: DatabaseIndex, database: &NodeDatabase) {
        let (releaser, stop) = (&self.reporter.releaser, &shared.stop.work);
        let SubmitJobs { jobs, puts } = self.submitter.add_line();
        let run = submitter::run(index, jobs, self.claim_on_insert.clone(), releaser.nudger.clone(), stop.clone());
        crews.work.spawn(LoopKind::Submitter, run);
        let keyed_submitter = KeyedSubmitter {
            database: database.clone(),
            books: Arc::clone(&shared.books),
            releaser: releaser.clone(),
            metrics: Arc::clone(&shared.metrics),
        };
        crews.work.spawn(LoopKind::KeyedSubmitter, keyed_submitter.run(puts, stop.clone()));
        let sql_intake = SqlIntake {
            index,
            databases: shared.databases.clone(),
            desk: self.desk.clone(),
            books: Arc::clone(&shared.books),
            fitness: shared.fitness.subscribe(),
            releaser: releaser.clone(),
            metrics: Arc::clone(&shared.metrics),
        };
        crews.intake.spawn(LoopKind::SqlIntake, sql_intake.run(shared.stop.intake.clone()));
    }

    /// Starts what watches it, and what hears from the other nodes through it.
    fn watch(&self, shared: &Shared, crews: &mut Crews, index: DatabaseIndex, database: &NodeDatabase) {
        let (stop, work) = (&shared.stop.work, &mut crews.work);
        let prober = Prober {
            database: database.clone(),
            is_home: index == DatabaseIndex::HOME,
            places: shared.store.places().clone(),
            stated_shards: shared.config.stated_shard_count(),
            cluster: shared.cluster.clone(),
            realm: shared.realm.subscribe(),
            admitted: shared.admitted.clone(),
            fitness: Arc::clone(&shared.fitness),
            metrics: Arc::clone(&shared.metrics),
            misfit: self.misfit.clone(),
        };
        let archiver = Archiver {
            database: database.clone(),
            books: Arc::clone(&shared.books),
            metrics: Arc::clone(&shared.metrics),
            audit: (index == DatabaseIndex::HOME).then_some(shared.config.audit),
        };
        work.spawn(LoopKind::Looker, looker::run(Arc::clone(&database.sql), stop.clone()));
        work.spawn(LoopKind::Prober, prober.run(stop.clone()));
        work.spawn(LoopKind::Archiver, archiver.run(stop.clone()));
        let present = (index == DatabaseIndex::HOME).then_some(shared.me.incarnation);
        let listener = nudger::listen(shared.databases.clone(), index, present, stop.clone());
        work.spawn(LoopKind::NudgeListener, listener);
    }
}
