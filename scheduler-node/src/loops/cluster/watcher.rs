//! Watches the processes of the other members, and revokes the lease of one that has ended.
//!
//! One statement a look asks the home database which members have a session there. Only for a member without one does
//! this node try its port. `common::cluster::suspicion` decides what that means. A revoked lease takes the member's
//! keys with it; from there everything is as if it had run out. If this loop stops, an ended node's shards wait for
//! its lease, as they do when its host loses power.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    cluster::{
        ClusterView,
        suspicion::{CONFIRM_AFTER, Evidence, Sign, Standing, Suspicion, may_revoke},
    },
    ids::{Incarnation, NodeId, Term},
    time::UnixMicros,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::session_keeper::Session;
use crate::{
    coordination::{Coordination, LeaseId, Revocation, Views},
    peer::Port,
    store::Database,
    supervise::at_work,
};

/// The pause between two looks of the master and of the candidate behind it. It is most of the time that passes
/// unnoticed after the end of a process, and each look is one short statement.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The pause of all other candidates, which act only when those two have ended. It bounds the statements of a large
/// cluster: one a second for each node.
const REAR_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between attempts to reach a port for the first time. It doubles up to `REACH_LONGEST`: the port of a
/// member may be out of reach for good, and then its lease decides.
const REACH_AGAIN: Duration = Duration::from_secs(1);
const REACH_LONGEST: Duration = Duration::from_secs(60);

/// The most members that a node watches: far more than a cluster has, and few enough for one statement.
const MEMBERS_MOST: usize = 256;

/// Watches the other members; the module says how.
#[derive(Debug)]
pub struct Watcher {
    me: NodeId,
    coordination: Coordination,
    home: Arc<Database>,
    views: Views,
    session: watch::Receiver<Session>,
    watched: BTreeMap<NodeId, Watched>,
    /// The start of the monotonic clock of the looks.
    started: Instant,
    ended: watch::Sender<BTreeSet<NodeId>>,
    /// etcd refused the last attempts to revoke; only the first refusal is logged.
    refused: bool,
}

/// One start of another node.
#[derive(Debug)]
struct Watched {
    port: Port,
    suspicion: Suspicion,
    standing: Standing,
    reach_at: Instant,
    reach_pause: Duration,
    /// When the view no longer showed it.
    left_at: Option<Instant>,
    /// This node has revoked its lease, and each look since has called it ended. If it registers again, it runs all the
    /// same, and the witnesses are wrong: its new lease decides.
    is_revoked: bool,
}

impl Watched {
    fn new(url: Option<&str>) -> Self {
        Self {
            port: Port::of(url),
            suspicion: Suspicion::default(),
            standing: Standing::Unproven,
            reach_at: Instant::now(),
            reach_pause: REACH_AGAIN,
            left_at: None,
            is_revoked: false,
        }
    }

    async fn look(&mut self, session: Sign) -> Evidence {
        Evidence { session, port: self.knock(session).await }
    }

    /// Tries the port when the session is gone, and until it has taken a connection once.
    async fn knock(&mut self, session: Sign) -> Sign {
        if self.suspicion.has_seen_port() {
            return if session == Sign::Ended { self.port.knock().await } else { Sign::Unknown };
        }
        if Instant::now() < self.reach_at {
            return Sign::Unknown;
        }
        let sign = self.port.knock().await;
        self.reach_at = Instant::now() + self.reach_pause;
        self.reach_pause = (self.reach_pause * 2).min(REACH_LONGEST);
        sign
    }
}

impl Watcher {
    /// `home`: the database whose sessions show which processes run.
    pub fn new(
        me: NodeId,
        coordination: Coordination,
        home: Arc<Database>,
        views: Views,
        session: watch::Receiver<Session>,
    ) -> Self {
        Self {
            me,
            coordination,
            home,
            views,
            session,
            watched: BTreeMap::new(),
            started: Instant::now(),
            ended: watch::Sender::default(),
            refused: false,
        }
    }

    /// The starts of nodes whose processes have ended, for as long as their absence from the view matters.
    pub fn ended(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.ended.subscribe()
    }

    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(pause) = stop.run_until_cancelled(self.activate()).await {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// Returns the pause until the next look.
    async fn activate(&mut self) -> Duration {
        let _work = at_work();
        let view = self.views.borrow_and_update().clone();
        self.follow(&view);
        self.look(&view).await;
        let joined = self.session.borrow().joined();
        if let Some((lease, term)) = joined {
            self.revoke(&view, term, lease).await;
        }
        if self.watched.values().any(|watched| watched.standing == Standing::Suspected) {
            return CONFIRM_AFTER;
        }
        let is_front = |(_, term)| view.candidates.iter().take(2).any(|candidate| candidate.term == term);
        if joined.is_some_and(is_front) { LOOK_INTERVAL } else { REAR_LOOK_INTERVAL }
    }

    /// Brings the watched starts in line with the view. One that has left it is watched while its absence may be taken
    /// for a stall of etcd, unless the node has started again: another node may have revoked its lease before this one
    /// saw its end.
    fn follow(&mut self, view: &ClusterView) {
        let keep_for = self.coordination.lease_ttl() * 3;
        self.watched.retain(|node, watched| {
            if let Some(member) = view.member(node) {
                watched.left_at = None;
                return !member.leaving;
            }
            let left_at = *watched.left_at.get_or_insert_with(Instant::now);
            let is_replaced = view.members.contains_key(&node.name);
            watched.standing != Standing::Unproven && !is_replaced && left_at.elapsed() < keep_for
        });
        // A member that leaves ends its sessions and closes its port in order; it needs no watching.
        for member in view.members.values().filter(|member| member.node != self.me && member.presence) {
            if self.watched.len() < MEMBERS_MOST && !member.leaving && !self.watched.contains_key(&member.node) {
                self.watched.insert(member.node.clone(), Watched::new(member.url.as_deref()));
            }
        }
    }

    /// Looks once at each watched start, and publishes those that have ended.
    async fn look(&mut self, view: &ClusterView) {
        let watched: Vec<Incarnation> = self.watched.keys().map(|node| node.incarnation).collect();
        if !watched.is_empty() {
            // An error is no answer; the home database's prober reports it.
            let present = self.home.present(self.me.incarnation, &watched).await.ok().flatten();
            let looks = self.watched.iter_mut().map(|(node, watched)| {
                let session = match &present {
                    None => Sign::Unknown,
                    Some(present) if present.contains(&node.incarnation) => Sign::Alive,
                    Some(_) => Sign::Ended,
                };
                async move {
                    let evidence = watched.look(session).await;
                    (node, watched, evidence)
                }
            });
            let looks = futures::future::join_all(looks).await;
            let now = UnixMicros::new(0).plus(self.started.elapsed());
            for (node, watched, evidence) in looks {
                let standing = watched.suspicion.observe(evidence, now);
                let before = std::mem::replace(&mut watched.standing, standing);
                watched.is_revoked &= standing != Standing::Alive;
                // The end of one that has left the view is no news.
                if view.member(node).is_some() {
                    note(&self.coordination, node, before, standing);
                }
            }
        }
        let ended = self.watched.iter().filter(|(_, watched)| watched.standing == Standing::Ended);
        let ended: BTreeSet<NodeId> = ended.map(|(node, _)| node.clone()).collect();
        self.ended.send_if_modified(|before| std::mem::replace(before, ended) != *before);
    }

    async fn revoke(&mut self, view: &ClusterView, term: Term, lease: LeaseId) {
        let is_due = |(node, watched): &(&NodeId, &Watched)| {
            let is_ended = watched.standing == Standing::Ended && !watched.is_revoked;
            is_ended && view.member(node).is_some() && may_revoke(view, term, node)
        };
        let ended: Vec<NodeId> = self.watched.iter().filter(is_due).map(|(node, _)| node.clone()).collect();
        for node in ended {
            let revoked = self.coordination.member_revoke(&node, term, lease).await;
            self.refused &= revoked.is_err();
            match revoked {
                Ok(Revocation::Done) => {
                    if let Some(watched) = self.watched.get_mut(&node) {
                        watched.is_revoked = true;
                    }
                    self.coordination.metrics().revocations.inc();
                    tracing::warn!(member = %node, %term, "revoked the lease of a node whose process has ended");
                }
                // The mirror is about to show it.
                Ok(Revocation::Absent | Revocation::Deposed) => {}
                Err(error) => {
                    if error.is_news(&mut self.refused) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(member = %node, error, "could not revoke the lease of a node whose process has ended");
                    }
                }
            }
        }
    }
}

fn note(coordination: &Coordination, node: &NodeId, before: Standing, standing: Standing) {
    match (before, standing) {
        (Standing::Alive, Standing::Suspected | Standing::Ended) => {
            coordination.metrics().suspicions.inc();
            tracing::info!(member = %node, "its session is gone from the database and its port is refused; looking again");
        }
        (Standing::Suspected | Standing::Ended, Standing::Alive) => {
            tracing::info!(member = %node, "its process runs after all");
        }
        _ => {}
    }
}
