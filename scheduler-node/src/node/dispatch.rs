//! The broker, and the loops of a task's life from the heap to its end.

use std::{sync::Arc, time::Instant};

use common::delay::Lead;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::Shared;
use crate::{
    audit::Audit,
    broker::{Broker, BrokerMetrics},
    loops::{
        dispatch::{
            claim_on_insert::ClaimOnInsert,
            claims::ClaimHandler,
            dispatcher::{Dispatcher, Pace},
            preloader::Preloader,
            publisher::{Dispatch, Publisher},
            ready_starter::ReadyStarter,
        },
        nudger::Nudger,
        outcome::{
            releaser::Releaser,
            reporter::Reporter,
            settler::{Settlements, Settler},
        },
    },
    receipt::Receipts,
    settings,
    supervise::{Crew, LoopKind},
    working_set::database::{DatabaseIndex, NodeDatabase},
};

/// Claimed tasks between the dispatchers and the publisher.
const DISPATCHES: usize = 8_192;

impl Shared {
    /// Connects to the broker. The connections end when they are closed, last of all.
    pub(super) fn connect_broker(&self, crew: &mut Crew) -> anyhow::Result<Broker> {
        let metrics = Arc::new(BrokerMetrics::register(&self.registry)?);
        let (broker, keeper) =
            Broker::new(settings::amqp(&self.config.amqp, Some(&self.config.delay_exchanges)), metrics);
        crew.spawn(LoopKind::BrokerKeeper, keeper);
        Ok(broker)
    }

    pub(super) fn reporter(&self, nudger: &Nudger, keys: &Receipts, audit: &Audit) -> Reporter {
        Reporter {
            databases: self.databases.clone(),
            books: Arc::clone(&self.books),
            releaser: Releaser { nudger: nudger.clone() },
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
            receipts: keys.clone(),
            default_exchange: self.config.amqp.default_exchange,
            audit: audit.clone(),
        }
    }

    /// Starts the loops of a task's life, from the heap to the archive. Returns the shortcut for tasks that are due
    /// at once.
    pub(super) fn dispatch(&self, crew: &mut Crew, broker: &Broker, reporter: &Reporter) -> ClaimOnInsert {
        let scheduler = &self.config.scheduler;
        let (publisher, dispatches) = mpsc::channel(DISPATCHES);
        let mut settlements = Vec::new();
        for (index, database) in self.databases.indexed() {
            settlements.push(self.dispatch_of(crew, index, database, &publisher, broker, reporter));
        }
        let claim_on_insert = ClaimOnInsert {
            databases: self.databases.clone(),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: broker.state(),
            publisher,
            window: scheduler.window,
            metrics: Arc::clone(&self.metrics),
        };
        let delayed = self.config.delay_exchanges.iter().map(|of| (of.way().queue, of.unroutable));
        let publisher = Publisher {
            databases: self.databases.clone(),
            broker: broker.clone(),
            books: Arc::clone(&self.books),
            lanes: Arc::clone(&self.lanes),
            settlements,
            reporter: reporter.clone(),
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
            receipts: reporter.receipts.clone(),
            delayed: Arc::new(delayed.collect()),
        };
        crew.spawn(LoopKind::Publisher, publisher.run(dispatches));
        claim_on_insert
    }

    /// Starts the loops of one database. Returns where its confirms go.
    fn dispatch_of(
        &self,
        crew: &mut Crew,
        index: DatabaseIndex,
        database: &NodeDatabase,
        publisher: &mpsc::Sender<Dispatch>,
        broker: &Broker,
        reporter: &Reporter,
    ) -> Settlements {
        let scheduler = &self.config.scheduler;
        let (sender, confirms) = Settlements::channel();
        let settler = Settler {
            database: database.clone(),
            releaser: reporter.releaser.clone(),
            metrics: Arc::clone(&self.metrics),
        };
        crew.spawn(LoopKind::Settler, settler.run(confirms, self.stop.patience.clone()));
        let preloader =
            Preloader::new(database.clone(), scheduler.horizon(), scheduler.heap_entries, Arc::clone(&self.metrics));
        crew.spawn(LoopKind::Preloader, preloader.run(self.stop.work.clone()));
        let pace = Pace { batch: scheduler.batch, window: scheduler.window };
        let claims = ClaimHandler {
            database: database.clone(),
            index,
            publisher: publisher.clone(),
            metrics: Arc::clone(&self.metrics),
        };
        let dispatcher = Dispatcher {
            claims: claims.clone(),
            pace,
            lead: Arc::new(Mutex::new(Lead::new(scheduler.claim_ahead(), Instant::now()))),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: broker.state(),
            reporter: reporter.clone(),
        };
        let ready_starter = ReadyStarter {
            claims,
            pace,
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: broker.state(),
            shard_count: self.store.shard_count(),
            turns: Arc::default(),
        };
        crew.spawn(LoopKind::Dispatcher, dispatcher.run(self.stop.work.clone()));
        crew.spawn(LoopKind::ReadyStarter, ready_starter.run(self.stop.work.clone()));
        sender
    }
}
