//! The composition root, the only file that knows every room. It connects the rooms and stops them in order.

mod end;

use std::{sync::Arc, time::Instant};

use anyhow::Context;
use common::{
    cluster::Member,
    delay::Lead,
    ids::{DatabaseName, Incarnation, NodeId},
    shard::ShardRange,
    time::UnixMicros,
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    access::Access,
    broker::{Broker, BrokerMetrics},
    clock,
    config::{Config, DelayExchange},
    console,
    coordination::{Coordination, CoordinationMetrics, Mirror, Views},
    desk::{Desk, Parts},
    http,
    intake::{amqp::Receiver, sql::Collector},
    loops::{
        cluster::{
            assigner::Assigner,
            elector::{Elector, Mastership},
            owner::{self, Holding, Owner},
            session_keeper::{self, Session, SessionKeeper},
        },
        dispatch::{
            claims::Gate,
            dispatcher::{Dispatcher, Pace},
            preloader::Preloader,
            publisher::Publisher,
            ready_starter::Picker,
        },
        outcome::{
            archiver::Archiver,
            releaser::Releaser,
            reporter::Reporter,
            settler::{Settlements, Settler},
        },
        submit::{
            claim_on_insert::AtOnce,
            keyed_submitter::Putter,
            nudger::{self, Nudger},
            submitter::{self, Submitter},
        },
        upkeep::{
            gauges::Gauger,
            prober::{self, Fitness, Prober},
            queue_reader::{Books, QueueReader},
            token_reader::TokenReader,
        },
    },
    metrics::{self, Metrics},
    oidc,
    readiness::Readiness,
    settings,
    store::{Database, Store, StoreMetrics, migrate::Misfit},
    supervise::{Crew, LoopKind, Pulse, Stop},
    traces::{Exporter, Traces},
    working_set::{
        database::{Site, Sites},
        lanes::Lanes,
        owned_shards::Held,
        set_aside::Asides,
    },
};

/// Claimed tasks between the dispatchers and the publisher.
const DISPATCHES: usize = 8_192;

/// Runs a node on `listener` until `shutdown` is cancelled, then hands over and stops. Fails if the node could not
/// go on.
pub async fn run(config: Config, listener: TcpListener, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut node = Node::build(config, listener).await?;
    let end = node.until_end(&shutdown).await;
    if end.is_ok() {
        owner::leave(&node.me, &node.stop.leaving, &node.coordination, node.views.clone(), &node.helds).await;
    }
    node.stop().await;
    end
}

struct Node {
    me: NodeId,
    coordination: Coordination,
    views: Views,
    helds: Vec<Arc<Held>>,
    broker: Broker,
    misfits: mpsc::Receiver<Misfit>,
    stop: Stop,
    intake: Crew,
    work: Crew,
    cluster: Crew,
}

/// The parts that the loops of all rooms share.
struct Shared {
    config: Config,
    registry: Registry,
    me: NodeId,
    store: Store,
    sites: Sites,
    books: Books,
    /// Wakes the queue reader: this node's copy of the queues is older than one of their policies.
    outdated: Arc<Notify>,
    access: Arc<Access>,
    lanes: Arc<Lanes>,
    fitness: Arc<watch::Sender<Fitness>>,
    metrics: Arc<Metrics>,
    asides: Asides,
    pulse: Pulse,
    traces: Traces,
    stop: Stop,
}

/// The node's view of its cluster.
struct Joined {
    coordination: Coordination,
    views: Views,
    session: watch::Receiver<Session>,
    mastership: watch::Receiver<Mastership>,
    frozen_until: watch::Receiver<Option<UnixMicros>>,
}

impl Node {
    async fn build(config: Config, listener: TcpListener) -> anyhow::Result<Self> {
        let bound = listener.local_addr().context("cannot tell the address that was bound")?;
        let (shared, exporter) = Shared::new(config)?;
        let crew = || Crew::new(&shared.pulse);
        let (mut intake, mut work, mut cluster) = (crew(), crew(), crew());
        if let Some(exporter) = exporter {
            // The exporter stops with the last loops, so that it sends the others' spans until their end.
            cluster.spawn(LoopKind::Exporter, exporter.run(shared.stop.cluster.clone()));
        }
        let url = shared.config.http.advertised(bound, shared.me.name.as_str());
        let Joined { coordination, views, session, mastership, frozen_until } = shared.join(&mut cluster, url).await?;
        let broker_metrics = Arc::new(BrokerMetrics::register(&shared.registry)?);
        let (broker, keeper) =
            Broker::new(settings::amqp(&shared.config.amqp, Some(&shared.config.delay_exchanges)), broker_metrics);
        // Ends when it is closed, last of all.
        cluster.spawn(LoopKind::BrokerKeeper, keeper);
        let nudger = Nudger::new(shared.sites.clone(), shared.config.scheduler.horizon());
        let audit = shared.audit(&mut work)?;
        let keys = shared.receipts(&mut work);
        let reporter = Reporter {
            sites: shared.sites.clone(),
            books: Arc::clone(&shared.books),
            releaser: Releaser { nudger: nudger.clone() },
            metrics: Arc::clone(&shared.metrics),
            traces: shared.traces.clone(),
            receipts: keys.clone(),
            default_door: shared.config.amqp.default_door,
            audit: audit.clone(),
        };
        let misfits = shared.watch(&mut work, &broker, nudger.clone());
        let at_once = shared.dispatch(&mut work, &broker, &reporter);
        work.spawn(LoopKind::Reporter, reporter.clone().run(broker.incoming(), shared.stop.work.clone()));
        let submitter = shared.take_in(&mut work, &at_once, &nudger);
        shared.fire(&mut intake, &submitter, mastership);
        let readiness = Readiness::new(
            shared.fitness.subscribe(),
            broker.state(),
            session,
            shared.stop.leaving.clone(),
            broker.door_troubles(),
            shared.asides.clone(),
            shared.pulse.clone(),
        );
        let desk = Desk::new(Parts {
            me: shared.me.clone(),
            store: shared.store.clone(),
            submitter,
            nudger: nudger.clone(),
            reporter,
            books: Arc::clone(&shared.books),
            access: Arc::clone(&shared.access),
            audit: audit.clone(),
            max_payload_bytes: shared.config.queues.max_payload_bytes,
            auto_create: shared.config.queues.auto_create,
            queues_max: shared.config.queues.max,
            queues_max_per_caller: shared.config.queues.max_per_caller,
            views: views.clone(),
            frozen_until,
            coordination: coordination.clone(),
            metrics: Arc::clone(&shared.metrics),
            traces: shared.traces.clone(),
            readiness,
        });
        let receiver = Receiver {
            desk: desk.clone(),
            broker: broker.clone(),
            store: shared.store.clone(),
            ways: shared.config.delay_exchanges.iter().map(DelayExchange::way).collect(),
            default_door: shared.config.amqp.default_door,
            audit,
            metrics: Arc::clone(&shared.metrics),
            asides: shared.asides.clone(),
        };
        intake.spawn(LoopKind::Receiver, receiver.run(broker.received(), shared.stop.intake.clone()));
        shared.collect(&mut intake, &desk, &nudger);
        let limits = http::Limits::of_payload(
            shared.config.queues.max_payload_bytes,
            shared.config.http.max_requests_per_second,
        );
        let http_metrics = http::HttpMetrics::register(&shared.registry, console::ROUTES)?;
        let gate = Arc::new(http::Authenticator::new(Arc::clone(&shared.access)));
        let oidc = shared.config.auth.oidc.clone().map(oidc::Provider::new).transpose()?;
        let pages = console::router(desk.clone(), Arc::clone(&gate), oidc, keys, &shared.config.console);
        let router = http::router(desk, gate, limits, shared.registry.clone(), http_metrics, pages);
        let certificate = settings::certificate(&shared.config.http).context("cannot use http.cert_file")?;
        if let Some(certificate) = &certificate {
            intake.spawn(LoopKind::Http, Arc::clone(certificate).watch(shared.stop.intake.clone()));
        }
        let server = http::Server {
            listener,
            certificate,
            limits: http::ConnectionLimits::new(
                shared.config.http.max_connections,
                shared.config.http.max_connections_per_address,
            ),
            metrics: http::ConnectionMetrics::register(&shared.registry)?,
        };
        intake.spawn(LoopKind::Http, server.serve(router, shared.stop.intake.clone()));
        tracing::info!(me = %shared.me, %bound, "listening");
        let helds = shared.sites.all().iter().map(|site| Arc::clone(&site.held)).collect();
        Ok(Self {
            me: shared.me,
            coordination,
            views,
            helds,
            broker,
            misfits,
            stop: shared.stop,
            intake,
            work,
            cluster,
        })
    }
}

impl Shared {
    fn new(config: Config) -> anyhow::Result<(Self, Option<Exporter>)> {
        let registry = Registry::new();
        metrics::register_process(&registry)?;
        let me = NodeId { name: config.node.name.clone(), incarnation: Incarnation::new(uuid::Uuid::new_v4()) };
        let names: Vec<&str> = config.databases.iter().map(|database| database.name.as_str()).collect();
        let metrics = Arc::new(Metrics::register(&registry, &names)?);
        let asides = Asides::register(&registry)?;
        let (traces, exporter) = Traces::new(&config.telemetry, &me, &registry)?;
        let families = StoreMetrics::families(&registry)?;
        let databases: Vec<Arc<Database>> = config
            .databases
            .iter()
            .map(|database| {
                let store_metrics = Arc::new(StoreMetrics::new(families.clone(), database.name.as_str()));
                let options = settings::database(database, &me.to_string());
                Arc::new(Database::new(database.name.clone(), database.shards, options, store_metrics))
            })
            .collect();
        let outdated: Arc<Notify> = Arc::default();
        let site = |database: &Arc<Database>| Site {
            database: Arc::clone(database),
            held: Arc::new(Held::new(database.name().clone(), config.scheduler.heap_entries)),
            waiting: Arc::default(),
            inbox: Arc::default(),
            outdated: Arc::clone(&outdated),
            asides: asides.clone(),
        };
        let sites = Sites::new(databases.iter().map(site).collect());
        let unproven = Fitness::unproven(config.databases.iter().map(|database| database.name.clone()));
        let shared = Self {
            registry,
            me,
            store: Store::new(databases),
            sites,
            books: Books::default(),
            outdated,
            access: Arc::new(Access::new(&config.auth)),
            lanes: Arc::default(),
            fitness: Arc::new(watch::channel(unproven).0),
            metrics,
            asides,
            pulse: Pulse::default(),
            traces,
            stop: Stop::default(),
            config,
        };
        Ok((shared, exporter))
    }

    /// Starts the loops of ownership.
    async fn join(&self, crew: &mut Crew, url: String) -> anyhow::Result<Joined> {
        let metrics = CoordinationMetrics::register(&self.registry)?;
        let etcd = settings::etcd(&self.config.etcd).context("cannot read etcd's certificates")?;
        let coordination = Coordination::new(etcd, Arc::clone(&metrics)).await?;
        let (mirror, views) = Mirror::new(coordination.clone());
        let member = Member {
            node: self.me.clone(),
            url: Some(url),
            leaving: false,
            unfit: Default::default(),
            broker_unfit: false,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: clock::now(),
        };
        let (tell, fitness) = watch::channel(session_keeper::Fitness {
            unfit: self.config.databases.iter().map(|database| database.name.clone()).collect(),
            broker_unfit: false,
        });
        crew.spawn(LoopKind::Prober, prober::tell_cluster(self.fitness.subscribe(), tell, self.stop.cluster.clone()));
        let leaving = self.stop.leaving.clone();
        let (keeper, session) =
            SessionKeeper::new(coordination.clone(), member, views.clone(), fitness.clone(), leaving.clone());
        let (elector, mastership) = Elector::new(self.me.clone(), views.clone(), session.clone(), metrics);
        let databases: Vec<(DatabaseName, ShardRange)> =
            self.config.databases.iter().map(|database| (database.name.clone(), database.shards)).collect();
        let assigner =
            Assigner::new(coordination.clone(), databases, views.clone(), mastership.clone(), session.clone());
        let frozen_until = assigner.frozen_until();
        let holdings = self.sites.all().iter().map(|site| Holding {
            database: site.name().clone(),
            shards: site.database.shards(),
            held: Arc::clone(&site.held),
            fence: Arc::clone(&site.database),
        });
        let owner = Owner::new(
            self.me.clone(),
            coordination.clone(),
            holdings.collect(),
            views.clone(),
            session.clone(),
            fitness,
            leaving,
        );
        let stop = &self.stop.cluster;
        crew.spawn(LoopKind::Mirror, mirror.run(stop.clone()));
        crew.spawn(LoopKind::SessionKeeper, keeper.run(stop.clone()));
        crew.spawn(LoopKind::Elector, elector.run(stop.clone()));
        crew.spawn(LoopKind::Assigner, assigner.run(stop.clone()));
        crew.spawn(LoopKind::Owner, owner.run(stop.clone()));
        Ok(Joined { coordination, views, session, mastership, frozen_until })
    }

    /// Starts the loops that watch the stores and that tell nodes of one another's rows.
    fn watch(&self, crew: &mut Crew, broker: &Broker, nudger: Nudger) -> mpsc::Receiver<Misfit> {
        let stop = &self.stop.work;
        let (misfit, misfits) = mpsc::channel(1);
        for (index, site) in self.sites.all().iter().enumerate() {
            let prober = Prober {
                site: site.clone(),
                shard_count: self.config.shard_count(),
                fitness: Arc::clone(&self.fitness),
                metrics: Arc::clone(&self.metrics),
                misfit: misfit.clone(),
            };
            let archiver = Archiver {
                site: site.clone(),
                books: Arc::clone(&self.books),
                metrics: Arc::clone(&self.metrics),
                audit: (index == 0).then_some(self.config.audit),
            };
            crew.spawn(LoopKind::Prober, prober.run(stop.clone()));
            crew.spawn(LoopKind::Archiver, archiver.run(stop.clone()));
            crew.spawn(LoopKind::NudgeListener, nudger::listen(self.sites.clone(), index, stop.clone()));
        }
        let reader = QueueReader::new(self.store.clone(), Arc::clone(&self.books), Arc::clone(&self.outdated));
        let gauger = Gauger {
            sites: self.sites.clone(),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            metrics: Arc::clone(&self.metrics),
            pulse: self.pulse.clone(),
        };
        crew.spawn(LoopKind::QueueReader, reader.run(stop.clone()));
        let reader = TokenReader { store: self.store.clone(), access: Arc::clone(&self.access) };
        crew.spawn(LoopKind::TokenReader, reader.run(stop.clone()));
        crew.spawn(LoopKind::Gauger, gauger.run(stop.clone()));
        crew.spawn(LoopKind::Nudger, nudger.run(stop.clone()));
        let watching = prober::watch_broker(broker.state(), Arc::clone(&self.fitness), stop.clone());
        crew.spawn(LoopKind::Prober, watching);
        misfits
    }

    /// Starts the loops of a task's life, from the heap to the archive. Returns the shortcut for tasks that are due
    /// at once.
    fn dispatch(&self, crew: &mut Crew, broker: &Broker, reporter: &Reporter) -> AtOnce {
        let scheduler = &self.config.scheduler;
        let (publisher, dispatches) = mpsc::channel(DISPATCHES);
        let mut settlements = Vec::new();
        for (index, site) in self.sites.all().iter().enumerate() {
            let (sender, confirms) = Settlements::channel();
            settlements.push(sender);
            let settler =
                Settler { site: site.clone(), releaser: reporter.releaser.clone(), metrics: Arc::clone(&self.metrics) };
            crew.spawn(LoopKind::Settler, settler.run(confirms, self.stop.patience.clone()));
            let preloader =
                Preloader::new(site.clone(), scheduler.horizon(), scheduler.heap_entries, Arc::clone(&self.metrics));
            crew.spawn(LoopKind::Preloader, preloader.run(self.stop.work.clone()));
            let pace = Pace { batch: scheduler.batch, window: scheduler.window };
            let gate =
                Gate { site: site.clone(), index, publisher: publisher.clone(), metrics: Arc::clone(&self.metrics) };
            let dispatcher = Dispatcher {
                gate: gate.clone(),
                pace,
                lead: Arc::new(Mutex::new(Lead::new(scheduler.claim_ahead(), Instant::now()))),
                lanes: Arc::clone(&self.lanes),
                books: Arc::clone(&self.books),
                broker: broker.state(),
                reporter: reporter.clone(),
            };
            let picker = Picker {
                gate,
                pace,
                lanes: Arc::clone(&self.lanes),
                books: Arc::clone(&self.books),
                broker: broker.state(),
                shard_count: self.store.shard_count(),
                turns: Arc::default(),
            };
            crew.spawn(LoopKind::Dispatcher, dispatcher.run(self.stop.work.clone()));
            crew.spawn(LoopKind::Picker, picker.run(self.stop.work.clone()));
        }
        let at_once = AtOnce {
            sites: self.sites.clone(),
            lanes: Arc::clone(&self.lanes),
            books: Arc::clone(&self.books),
            broker: broker.state(),
            publisher,
            window: scheduler.window,
            metrics: Arc::clone(&self.metrics),
        };
        let delayed = self.config.delay_exchanges.iter().map(|of| (of.way().queue, of.unroutable));
        let publisher = Publisher {
            sites: self.sites.clone(),
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
        at_once
    }

    /// Starts a collector of SQL submissions for every database.
    fn collect(&self, crew: &mut Crew, desk: &Desk, nudger: &Nudger) {
        for index in 0..self.sites.all().len() {
            let collector = Collector {
                index,
                sites: self.sites.clone(),
                desk: desk.clone(),
                books: Arc::clone(&self.books),
                fitness: self.fitness.subscribe(),
                releaser: Releaser { nudger: nudger.clone() },
                metrics: Arc::clone(&self.metrics),
            };
            crew.spawn(LoopKind::Collector, collector.run(self.stop.intake.clone()));
        }
    }

    fn take_in(&self, crew: &mut Crew, at_once: &AtOnce, nudger: &Nudger) -> Submitter {
        let (submitter, waiting) = Submitter::new(
            self.sites.clone(),
            Arc::clone(&self.books),
            self.fitness.subscribe(),
            self.store.shard_count(),
            self.config.scheduler.horizon(),
        );
        for (index, jobs) in waiting.jobs.into_iter().enumerate() {
            let run = submitter::run(index, jobs, at_once.clone(), nudger.clone(), self.stop.work.clone());
            crew.spawn(LoopKind::Submitter, run);
        }
        for (site, puts) in self.sites.all().iter().zip(waiting.puts) {
            let putter = Putter {
                site: site.clone(),
                books: Arc::clone(&self.books),
                releaser: Releaser { nudger: nudger.clone() },
                metrics: Arc::clone(&self.metrics),
            };
            crew.spawn(LoopKind::Putter, putter.run(puts, self.stop.work.clone()));
        }
        submitter
    }
}
mod beside;
