//! The loops of ownership.

use std::sync::Arc;

use anyhow::Context;
use common::{cluster::Member, ids::DatabaseName, shard::ShardRange, time::UnixMicros};
use tokio::sync::watch;

use super::Shared;
use crate::{
    clock,
    coordination::{Coordination, CoordinationMetrics, Mirror, Views},
    loops::{
        cluster::{
            assigner::Assigner,
            elector::{Elector, Mastership},
            owner::{Owner, OwnerDatabase},
            session_keeper::{self, Session, SessionKeeper},
        },
        upkeep::prober,
    },
    settings,
    supervise::{Crew, LoopKind},
};

/// The node's view of its cluster.
pub(super) struct Joined {
    pub(super) coordination: Coordination,
    pub(super) views: Views,
    pub(super) session: watch::Receiver<Session>,
    pub(super) mastership: watch::Receiver<Mastership>,
    pub(super) frozen_until: watch::Receiver<Option<UnixMicros>>,
}

impl Shared {
    /// Starts the loops of ownership.
    pub(super) async fn join(&self, crew: &mut Crew, url: String) -> anyhow::Result<Joined> {
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
        let (tell, fitness) = watch::channel(session_keeper::MemberFitness {
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
        let databases = self.databases.all().iter().map(|database| OwnerDatabase {
            name: database.name().clone(),
            shards: database.sql.shards(),
            owned_shards: Arc::clone(&database.owned_shards),
            fence: Arc::clone(&database.sql),
        });
        let owner = Owner::new(
            self.me.clone(),
            coordination.clone(),
            databases.collect(),
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
}
