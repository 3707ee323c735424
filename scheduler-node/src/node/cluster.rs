//! The loops of ownership.

use std::sync::Arc;

use anyhow::Context;
use common::{cluster::Member, ids::DatabaseName, time::UnixMicros};
use tokio::sync::watch;

use super::Shared;
use crate::{
    by_database::ByDatabase,
    clock,
    coordination::{Coordination, CoordinationMetrics, Mirror, Views},
    loops::{
        cluster::{
            assigner::Assigner,
            elector::{Elector, Mastership},
            mover::Mover,
            owner::{Owner, OwnerDatabase},
            realm_keeper::RealmKeeper,
            session_keeper::{self, FormerStart, Session, SessionKeeper},
            watcher::Watcher,
        },
        upkeep::prober,
    },
    receipt::Receipts,
    settings,
    store::Database,
    supervise::{Crew, LoopKind},
};

/// The node's view of its cluster.
pub(super) struct Joined {
    pub(super) coordination: Coordination,
    pub(super) views: Views,
    pub(super) session: watch::Receiver<Session>,
    pub(super) mastership: watch::Receiver<Mastership>,
    pub(super) frozen_until: watch::Receiver<Option<UnixMicros>>,
    /// The databases as the assigner and the owner of shards see them, none yet.
    pub(super) names: ByDatabase<DatabaseName>,
    pub(super) owned: ByDatabase<OwnerDatabase<Database>>,
}

impl Shared {
    /// Starts the loops of ownership. `receipts`: the node owns nothing before it has the keys.
    pub(super) async fn join(&self, crew: &mut Crew, url: String, receipts: Receipts) -> anyhow::Result<Joined> {
        let metrics = CoordinationMetrics::register(&self.registry)?;
        let etcd = settings::etcd(&self.config.etcd).context("cannot read etcd's certificates")?;
        let coordination = Coordination::new(etcd, Arc::clone(&metrics)).await?;
        let (mirror, views) = Mirror::new(coordination.clone());
        let member = Member {
            node: self.me.clone(),
            url: Some(url),
            leaving: false,
            unfit: Default::default(),
            databases: None,
            broker_unfit: false,
            presence: true,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: clock::now(),
        };
        let (tell, fitness) = watch::channel(session_keeper::MemberFitness {
            unfit: self.config.databases.iter().map(|database| database.name.clone()).collect(),
            ..session_keeper::MemberFitness::default()
        });
        let can_dispatch = prober::until_home_is_read(Arc::clone(&self.books), receipts);
        let telling = prober::tell_cluster(self.fitness.subscribe(), can_dispatch, tell, self.stop.cluster.clone());
        crew.spawn(LoopKind::Prober, telling);
        let leaving = self.stop.leaving.clone();
        let (keeper, session) =
            SessionKeeper::new(coordination.clone(), member, views.clone(), fitness.clone(), leaving.clone());
        let keeper = keeper.replacing(FormerStart::new(Arc::clone(self.store.home())));
        let watcher = Watcher::new(
            self.me.clone(),
            coordination.clone(),
            Arc::clone(self.store.home()),
            views.clone(),
            session.clone(),
        );
        let (elector, mastership) = Elector::new(self.me.clone(), views.clone(), session.clone(), metrics);
        let (names, owned) = <(ByDatabase<DatabaseName>, ByDatabase<OwnerDatabase<Database>>)>::default();
        let assigner = Assigner::new(
            coordination.clone(),
            names.clone(),
            self.store.places().clone(),
            views.clone(),
            mastership.clone(),
            session.clone(),
            watcher.ended(),
        );
        let frozen_until = assigner.frozen_until();
        let owner = Owner::new(
            self.me.clone(),
            coordination.clone(),
            owned.clone(),
            self.store.places().clone(),
            views.clone(),
            session.clone(),
            fitness,
            leaving,
        );
        let mover = Mover::new(
            self.me.clone(),
            self.databases.clone(),
            coordination.clone(),
            views.clone(),
            session.clone(),
            Arc::clone(&self.metrics),
        );
        let stop = &self.stop.cluster;
        let realm_keeper = RealmKeeper {
            coordination: coordination.clone(),
            prefix: self.config.etcd.prefix.clone(),
            cluster: self.cluster.subscribe(),
            standing: self.realm.clone(),
        };
        crew.spawn(LoopKind::RealmKeeper, realm_keeper.run(stop.clone()));
        crew.spawn(LoopKind::Mover, mover.run(self.stop.leaving.clone()));
        crew.spawn(LoopKind::Mirror, mirror.run(stop.clone()));
        let (mut realm, ending) = (self.realm.subscribe(), stop.clone());
        crew.spawn(LoopKind::SessionKeeper, async move {
            // Before that, the keys under the prefix may be those of another cluster.
            let known = realm.wait_for(|standing| standing.realms.current().is_some());
            let _ = ending.run_until_cancelled(known).await;
            Box::pin(keeper.run(ending)).await;
        });
        crew.spawn(LoopKind::Elector, elector.run(stop.clone()));
        crew.spawn(LoopKind::Watcher, watcher.run(stop.clone()));
        crew.spawn(LoopKind::Assigner, assigner.run(stop.clone()));
        crew.spawn(LoopKind::Owner, owner.run(stop.clone()));
        Ok(Joined { coordination, views, session, mastership, frozen_until, names, owned })
    }
}
