//! Keeps this node registered: its lease, its own key, and its place in the queue for master.
//!
//! It renews the lease every third of its time to live, and writes the node's keys again whenever they are gone,
//! always for the same incarnation. A lost lease is a fault of etcd, not a restart of the node, so each shard stays
//! with its owner. If it stops, the node counts as gone after one time to live.

mod former;
mod session;
#[cfg(test)]
mod tests;

use std::time::Duration;

use common::{
    cluster::{ClusterView, Member},
    ids::{DatabaseName, NodeId},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    causes::explained,
    coordination::{Coordination, Error, LeaseId, Registered, Renewal, Views},
    supervise::at_work,
};
pub use former::FormerStart;
pub use session::{MemberFitness, Session, SessionState};

/// The longest pause between attempts while etcd does not answer, or another node has the name.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A leaving node waits this long for etcd; after that its lease runs out by itself.
const DEPART_TIMEOUT: Duration = Duration::from_secs(3);

/// Registers this node with etcd; the module says how.
#[derive(Debug)]
pub struct SessionKeeper {
    coordination: Coordination,
    /// The node's own record, without fitness and leaving.
    member: Member,
    views: Views,
    fitness: watch::Receiver<MemberFitness>,
    leaving: CancellationToken,
    session: watch::Sender<Session>,
    /// The node's lease, registered or not.
    lease: Option<LeaseId>,
    registered: Option<RegisteredAs>,
    /// Present until the node has joined for the first time.
    former: Option<FormerStart>,
    /// etcd refused the last attempts; only the first refusal is logged.
    refused: bool,
}

/// The registration that was last written, and whether the mirror has shown it since.
#[derive(Debug)]
struct RegisteredAs {
    lease: LeaseId,
    member: Member,
    since: Instant,
    shown: bool,
}

impl SessionKeeper {
    /// `member`: the node, its URL, version and start; the keeper fills in the rest. Cancelling `leaving` marks the
    /// node as leaving.
    pub fn new(
        coordination: Coordination,
        member: Member,
        views: Views,
        fitness: watch::Receiver<MemberFitness>,
        leaving: CancellationToken,
    ) -> (Self, watch::Receiver<Session>) {
        let begin = Session { standing: SessionState::Joining, last_renewal: None, refusal: None };
        let (session, sessions) = watch::channel(begin);
        let keeper = Self {
            coordination,
            member,
            views,
            fitness,
            leaving,
            session,
            lease: None,
            registered: None,
            former: None,
            refused: false,
        };
        (keeper, sessions)
    }

    /// Lets the keeper revoke the lease of a former start of this node that has ended. Without it that lease runs out
    /// by itself.
    pub fn replacing(mut self, former: FormerStart) -> Self {
        self.former = Some(former);
        self
    }

    /// Ends by removing the node's keys: the owner must hand over everything that depends on the lease before
    /// `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(result) = stop.run_until_cancelled(self.activate()).await {
            let pause = self.report(result);
            if stop.run_until_cancelled(self.rest(pause)).await.is_none() {
                break;
            }
        }
        self.depart().await;
    }

    async fn activate(&mut self) -> Result<(), Error> {
        let _work = at_work();
        let lease = self.hold_lease().await?;
        let wanted = self.wanted();
        let is_current = |as_: &RegisteredAs| as_.lease == lease && as_.member == wanted && !self.is_missing(as_);
        if !self.registered.as_ref().is_some_and(is_current) {
            self.register(lease, wanted).await?;
        }
        Ok(())
    }

    /// Renews the lease when that is due, or grants a new one when there is none.
    async fn hold_lease(&mut self) -> Result<LeaseId, Error> {
        if let Some(lease) = self.lease {
            let missing = self.registered.as_ref().is_some_and(|as_| self.is_missing(as_));
            if !missing && Instant::now() < self.renewal_due() {
                return Ok(lease);
            }
            // Counts from the request, because the answer may have been on its way for long.
            let asked_at = Instant::now();
            match self.coordination.lease_renew(lease).await? {
                Renewal::Alive => {
                    self.renewed(asked_at);
                    return Ok(lease);
                }
                Renewal::Gone => self.lost(lease),
            }
        }
        let asked_at = Instant::now();
        let lease = self.coordination.lease_grant().await?;
        self.lease = Some(lease);
        self.renewed(asked_at);
        Ok(lease)
    }

    fn lost(&mut self, lease: LeaseId) {
        tracing::warn!(%lease, "the lease has expired; registering again, shards stay owned");
        self.lease = None;
        self.registered = None;
        self.session.send_modify(|session| session.standing = SessionState::Joining);
    }

    async fn register(&mut self, lease: LeaseId, wanted: Member) -> Result<(), Error> {
        let registered = match self.put_member(&wanted, lease).await {
            // The lease was renewed a moment ago and is gone all the same; the next activation grants a new one.
            Err(Error::LeaseGone { .. }) => {
                self.lost(lease);
                return Ok(());
            }
            other => other?,
        };
        if let Registered::NameTaken { by } = registered {
            self.name_taken(by);
            return Ok(());
        }
        let term = self.coordination.candidate_put(&wanted.node, lease).await?;
        let joining = self.session.borrow().joined().is_none();
        if joining {
            tracing::info!(me = %wanted.node, %lease, %term, "joined the cluster");
        }
        if wanted.leaving {
            tracing::info!(me = %wanted.node, "announced that this node is leaving");
        } else if !wanted.unfit.is_empty() || wanted.broker_unfit {
            let databases: Vec<&str> = wanted.unfit.iter().map(DatabaseName::as_str).collect();
            let broker = wanted.broker_unfit;
            tracing::warn!(me = %wanted.node, ?databases, broker, "announced what this node cannot reach");
        }
        self.former = None;
        self.registered = Some(RegisteredAs { lease, member: wanted, since: Instant::now(), shown: false });
        self.session.send_modify(|session| session.standing = SessionState::Joined { lease, term });
        Ok(())
    }

    fn wanted(&self) -> Member {
        let fitness = self.fitness.borrow();
        Member {
            leaving: self.leaving.is_cancelled(),
            unfit: fitness.unfit.clone(),
            broker_unfit: fitness.broker_unfit,
            databases: Some(fitness.used.clone()),
            ..self.member.clone()
        }
    }

    /// Whether the registration is missing: the mirror showed it and no longer does, or never did within the time
    /// to live. A renewed lease alone does not prove that the keys exist.
    fn is_missing(&self, registered: &RegisteredAs) -> bool {
        let expected = registered.shown || registered.since.elapsed() > self.coordination.lease_ttl();
        expected && !is_shown(&self.views.borrow(), &registered.member.node)
    }

    fn renewed(&mut self, asked_at: Instant) {
        self.coordination.metrics().renewed(asked_at.into_std());
        self.session.send_modify(|session| session.last_renewal = Some(asked_at));
    }

    fn renewal_due(&self) -> Instant {
        let last = self.session.borrow().last_renewal;
        last.map_or_else(Instant::now, |last| last + self.coordination.lease_ttl() / 3)
    }

    /// The longest rest after such a result.
    fn report(&mut self, result: Result<(), Error>) -> Option<Duration> {
        let retry = LONGEST_PAUSE.min(self.coordination.lease_ttl() / 6);
        match result {
            Ok(()) => {
                self.refused = false;
                self.note_refusal(None);
                let joined = self.session.borrow().joined().is_some();
                (!joined).then(|| self.former.as_ref().map_or(retry, |former| former.pause(retry)))
            }
            Err(error) => {
                if error.is_news(&mut self.refused) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot keep the registration in etcd");
                }
                self.note_refusal(error.refuses_writes().then(|| explained(&error)));
                Some(retry)
            }
        }
    }

    /// Notes why etcd refuses the registration, as without room or the right to write.
    fn note_refusal(&self, refusal: Option<String>) {
        self.session.send_if_modified(|session| {
            let is_new = session.refusal != refusal;
            session.refusal = refusal;
            is_new
        });
    }

    /// Rests until the lease is due, or `pause` is over, or there is something to write.
    async fn rest(&mut self, pause: Option<Duration>) {
        let until = pause.map_or_else(|| self.renewal_due(), |pause| Instant::now() + pause);
        let leaving = self.registered.as_ref().is_some_and(|registered| registered.member.leaving);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = self.leaving.cancelled(), if !leaving && pause.is_none() => return,
                Ok(()) = self.fitness.changed() => return,
                Ok(()) = self.views.changed() => {}
            }
            if self.look() {
                return;
            }
        }
    }

    /// Compares the newest view with the registration. Returns `true` if there is something to do.
    fn look(&mut self) -> bool {
        let view = self.views.borrow_and_update().clone();
        match &mut self.registered {
            Some(registered) if is_shown(&view, &registered.member.node) => {
                registered.shown = true;
                false
            }
            Some(registered) => registered.shown,
            // The node that had the name is gone.
            None => view.revision > 0 && !view.members.contains_key(&self.member.node.name),
        }
    }

    /// Removes the node's keys. If etcd does not answer, the lease runs out by itself.
    async fn depart(self) {
        let Some(lease) = self.lease else { return };
        let farewell = async {
            self.coordination.candidate_remove(lease).await?;
            self.coordination.member_remove(&self.member.node).await?;
            self.coordination.lease_revoke(lease).await
        };
        match tokio::time::timeout(DEPART_TIMEOUT, farewell).await {
            Ok(Ok(())) => tracing::info!(me = %self.member.node, "left the cluster"),
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not leave the cluster; the lease expires by itself"
                );
            }
            Err(_) => tracing::warn!("could not leave the cluster in time; the lease expires by itself"),
        }
        self.session.send_modify(|session| session.standing = SessionState::Left);
    }
}

/// Whether the node is registered and in the queue for master.
fn is_shown(view: &ClusterView, node: &NodeId) -> bool {
    view.member(node).is_some() && view.candidates.iter().any(|candidate| candidate.node == *node)
}
