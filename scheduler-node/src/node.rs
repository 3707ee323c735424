//! The composition root, the only module that knows every room. It connects the rooms and stops them in order.

mod cluster;
mod dispatch;
mod end;
mod front;
mod shared;
mod submit;
mod upkeep;

use std::sync::Arc;

use anyhow::Context;
use common::ids::NodeId;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use self::{cluster::Joined, shared::Shared};
use crate::{
    broker::Broker,
    config::Config,
    coordination::{Coordination, Views},
    desk::{Desk, Parts},
    loops::{cluster::owner, nudger::Nudger},
    readiness::Readiness,
    store::migrate::Misfit,
    supervise::{Crew, LoopKind, Stop},
    working_set::owned_shards::OwnedShards,
};

/// Runs a node on `listener` until `shutdown` is cancelled, then hands over and stops. Fails if the node could not
/// go on.
pub async fn run(config: Config, listener: TcpListener, shutdown: CancellationToken) -> anyhow::Result<()> {
    let mut node = Node::build(config, listener).await?;
    let end = node.until_end(&shutdown).await;
    if end.is_ok() {
        owner::leave(&node.me, &node.stop.leaving, &node.coordination, node.views.clone(), &node.owned_shards).await;
    }
    node.stop().await;
    end
}

struct Node {
    me: NodeId,
    coordination: Coordination,
    views: Views,
    owned_shards: Vec<Arc<OwnedShards>>,
    broker: Broker,
    misfits: mpsc::Receiver<Misfit>,
    stop: Stop,
    intake: Crew,
    work: Crew,
    cluster: Crew,
}

impl Node {
    async fn build(config: Config, listener: TcpListener) -> anyhow::Result<Self> {
        let bound = listener.local_addr().context("cannot read the bound address")?;
        let (shared, exporter) = Shared::new(config)?;
        let crew = || Crew::new(&shared.pulse);
        let (mut intake, mut work, mut cluster) = (crew(), crew(), crew());
        if let Some(exporter) = exporter {
            // The exporter stops with the last loops, so that it sends the others' spans until their end.
            cluster.spawn(LoopKind::Exporter, exporter.run(shared.stop.cluster.clone()));
        }
        let url = shared.config.http.advertised(bound, shared.me.name.as_str());
        let Joined { coordination, views, session, mastership, frozen_until } = shared.join(&mut cluster, url).await?;
        let broker = shared.connect_broker(&mut cluster)?;
        let nudger = Nudger::new(shared.databases.clone(), shared.config.scheduler.horizon());
        let audit = shared.audit(&mut work)?;
        let keys = shared.receipts(&mut work);
        let reporter = shared.reporter(&nudger, &keys, &audit);
        let misfits = shared.watch(&mut work, &broker, nudger.clone());
        let claim_on_insert = shared.dispatch(&mut work, &broker, &reporter);
        work.spawn(LoopKind::Reporter, reporter.clone().run(broker.incoming(), shared.stop.work.clone()));
        let submitter = shared.take_in(&mut work, &claim_on_insert, &nudger);
        shared.fire(&mut intake, &submitter, mastership);
        let readiness = Readiness::new(
            shared.fitness.subscribe(),
            broker.state(),
            session,
            shared.stop.leaving.clone(),
            broker.exchange_troubles(),
            shared.set_aside.clone(),
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
        shared.take_in_beside_http(&mut intake, &desk, &broker, &nudger, audit);
        shared.serve(&mut intake, desk, keys, listener)?;
        tracing::info!(me = %shared.me, %bound, "listening");
        let owned_shards = shared.databases.all().iter().map(|database| Arc::clone(&database.owned_shards)).collect();
        Ok(Self {
            me: shared.me,
            coordination,
            views,
            owned_shards,
            broker,
            misfits,
            stop: shared.stop,
            intake,
            work,
            cluster,
        })
    }
}
