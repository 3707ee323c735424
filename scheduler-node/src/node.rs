//! The composition root, the only module that knows every room. It connects the rooms and stops them in order.

mod cluster;
mod database;
mod dispatch;
mod end;
mod front;
mod growth;
mod reload;
mod shared;
mod submit;
mod upkeep;

use std::sync::Arc;

use anyhow::Context;
use tokio::{net::TcpListener, signal::unix::Signal, sync::mpsc};
use tokio_util::sync::CancellationToken;

use self::{cluster::Joined, database::DatabaseLoops, growth::Newcomers, reload::Reloader, shared::Shared};
use crate::{
    config::Config,
    coordination::Views,
    desk::{Desk, Parts},
    loops::{
        cluster::owner,
        nudger::Nudger,
        upkeep::config_reader::{ReadConfig, Reading},
    },
    store::schema::Misfit,
    supervise::{Crew, LoopKind},
    telemetry::LogFilter,
    working_set::owned_shards::OwnedShards,
};

/// Where the configuration came from, and what follows it while the node runs.
pub struct ConfigSource {
    pub read: ReadConfig,
    /// Each asks to read it again.
    pub hangups: Signal,
    pub log: LogFilter,
}

impl std::fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigSource").finish_non_exhaustive()
    }
}

/// Runs a node on `listener` until `shutdown` is cancelled, then hands over and stops. Fails if the node could not
/// go on.
pub async fn run(
    config: Config,
    source: ConfigSource,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut node = Node::build(config, source, listener).await?;
    let end = node.until_end(&shutdown).await;
    if end.is_ok() {
        let (me, leaving) = (&node.shared.me, &node.shared.stop.leaving);
        let owned_shards: Vec<Arc<OwnedShards>> =
            node.shared.databases.all().iter().map(|database| Arc::clone(&database.owned_shards)).collect();
        owner::leave(me, leaving, &node.loops.coordination, node.views.clone(), &owned_shards).await;
    }
    node.stop(end.is_err()).await;
    end
}

struct Node {
    shared: Shared,
    loops: DatabaseLoops,
    newcomers: Newcomers,
    views: Views,
    misfits: mpsc::Receiver<Misfit>,
    readings: mpsc::Receiver<Reading>,
    reloader: Reloader,
    crews: Crews,
}

/// The loops, by when they end.
struct Crews {
    intake: Crew,
    work: Crew,
    cluster: Crew,
}

impl Node {
    async fn build(config: Config, source: ConfigSource, listener: TcpListener) -> anyhow::Result<Self> {
        let bound = listener.local_addr().context("cannot read the bound address")?;
        let (shared, exporter) = Shared::new(config)?;
        let crew = || Crew::new(&shared.pulse);
        let mut crews = Crews { intake: crew(), work: crew(), cluster: crew() };
        let Crews { work, cluster, .. } = &mut crews;
        if let Some(exporter) = exporter {
            // The exporter stops with the last loops, so that it sends the others' spans until their end.
            cluster.spawn(LoopKind::Exporter, exporter.run(shared.stop.cluster.clone()));
        }
        let url = shared.config.http.advertised(bound, shared.me.name.as_str());
        let keys = shared.receipts(work);
        let Joined { coordination, views, session, mastership, frozen_until, names, owned } =
            shared.join(cluster, url, keys.clone()).await?;
        let broker = shared.connect_broker(cluster)?;
        let nudger = Nudger::new(shared.databases.clone(), shared.config.scheduler.horizon());
        let audit = shared.audit(work)?;
        let reporter = shared.reporter(&nudger, &keys, &audit);
        let submitter = shared.submitter();
        let (claim_on_insert, settlements) = shared.publish(work, &broker, &reporter);
        shared.watch(work, &broker, &views, nudger.clone());
        let readiness = shared.readiness(work, &broker, session);
        let desk = Desk::new(Parts {
            me: shared.me.clone(),
            store: shared.store.clone(),
            submitter: submitter.clone(),
            nudger,
            reporter: reporter.clone(),
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
        let (misfit, misfits) = mpsc::channel(1);
        let loops = DatabaseLoops {
            broker,
            coordination,
            reporter,
            submitter,
            claim_on_insert,
            settlements,
            names,
            owned,
            desk,
            misfit,
        };
        // Whatever is routed to a database comes after its loops.
        for (index, _) in shared.databases.indexed() {
            loops.start(&shared, &mut crews, index);
        }
        shared.route(&mut crews, &loops, mastership, audit);
        shared.serve(&mut crews.intake, loops.desk.clone(), keys, listener)?;
        let readings = shared.follow_config(&mut crews.intake, source.read, source.hangups);
        let reloader = Reloader::new(&shared, &loops.broker, source.log);
        tracing::info!(me = %shared.me, %bound, "listening");
        Ok(Self { shared, loops, newcomers: Newcomers::default(), views, misfits, readings, reloader, crews })
    }
}
