//! Keeps this node registered: its lease, its own key, its place in the queue for master.
//!
//! It renews the lease every third of its time to live and puts the node's keys back whenever they are gone, always for the
//! same incarnation: a lost lease is etcd's trouble, not a restart of the node, and what is owned stays owned. If it stops,
//! the node counts as gone after one time to live.

mod session;

use std::time::Duration;

use common::{
    cluster::{ClusterView, Member},
    ids::{DatabaseName, NodeId},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    coordination::{Coordination, Error, LeaseId, Registered, Renewal, Views},
    supervise::at_work,
};
pub use session::{Fitness, Session, Standing};

/// Between attempts while etcd does not answer, or another holds the name.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A node that goes away waits this long for etcd to take note; after that its lease runs out by itself.
const DEPART_TIMEOUT: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug)]
pub struct SessionKeeper {
    coordination: Coordination,
    /// What the node says of itself, without fitness and leaving.
    member: Member,
    views: Views,
    fitness: watch::Receiver<Fitness>,
    leaving: CancellationToken,
    session: watch::Sender<Session>,
    /// The lease it has, registered or not.
    lease: Option<LeaseId>,
    registered: Option<RegisteredAs>,
    /// The last attempt failed: said once, not each time.
    failing: bool,
}

/// What was last written, and whether the mirror has shown it since.
#[derive(Debug)]
struct RegisteredAs {
    lease: LeaseId,
    member: Member,
    since: Instant,
    shown: bool,
}

impl SessionKeeper {
    /// `member`: the node, its URL, version and start; the rest is filled in. Cancelling `leaving` marks the node as leaving.
    pub fn new(
        coordination: Coordination,
        member: Member,
        views: Views,
        fitness: watch::Receiver<Fitness>,
        leaving: CancellationToken,
    ) -> (Self, watch::Receiver<Session>) {
        let begin = Session { standing: Standing::Joining, lease: None, candidacy: None, last_renewal: None };
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
            failing: false,
        };
        (keeper, sessions)
    }

    /// Ends by taking the node's keys back: whatever hangs on the lease must be handed over before `stop`.
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

    /// Renews the lease when that is due, grants a new one when there is none.
    async fn hold_lease(&mut self) -> Result<LeaseId, Error> {
        if let Some(lease) = self.lease {
            let missing = self.registered.as_ref().is_some_and(|as_| self.is_missing(as_));
            if !missing && Instant::now() < self.renewal_due() {
                return Ok(lease);
            }
            // Counted from the question: the answer may have been on its way for long.
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
        tracing::warn!(%lease, "the lease has run out; registering again, shards stay owned");
        self.lease = None;
        self.registered = None;
        self.session.send_modify(|session| {
            session.standing = Standing::Joining;
            session.lease = None;
            session.candidacy = None;
        });
    }

    async fn register(&mut self, lease: LeaseId, wanted: Member) -> Result<(), Error> {
        let registered = match self.coordination.member_put(&wanted, lease).await {
            // Renewed a moment ago, and gone all the same: the next activation asks for a new one.
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
        let joining = self.session.borrow().standing != Standing::Joined;
        if joining {
            tracing::info!(me = %wanted.node, %lease, %term, "joined the cluster");
        }
        if wanted.leaving {
            tracing::info!(me = %wanted.node, "told the cluster that this node is leaving");
        } else if !wanted.unfit.is_empty() || wanted.broker_unfit {
            let databases: Vec<&str> = wanted.unfit.iter().map(DatabaseName::as_str).collect();
            let broker = wanted.broker_unfit;
            tracing::warn!(me = %wanted.node, ?databases, broker, "told the cluster what this node cannot reach");
        }
        self.registered = Some(RegisteredAs { lease, member: wanted, since: Instant::now(), shown: false });
        self.session.send_modify(|session| {
            session.standing = Standing::Joined;
            session.lease = Some(lease);
            session.candidacy = Some(term);
        });
        Ok(())
    }

    fn name_taken(&mut self, by: Option<NodeId>) {
        let standing = Standing::NameTaken { by };
        if self.session.borrow().standing != standing {
            let Standing::NameTaken { by } = &standing else { return };
            let by = by.as_ref().map_or_else(|| "something unreadable".to_owned(), NodeId::to_string);
            tracing::warn!(me = %self.member.node, by, "the name is taken; waiting until its lease has run out");
        }
        self.registered = None;
        self.session.send_modify(|session| {
            session.standing = standing;
            session.lease = None;
            session.candidacy = None;
        });
    }

    fn wanted(&self) -> Member {
        let fitness = self.fitness.borrow();
        Member {
            leaving: self.leaving.is_cancelled(),
            unfit: fitness.unfit.clone(),
            broker_unfit: fitness.broker_unfit,
            ..self.member.clone()
        }
    }

    /// The mirror has shown the registration, and now it does not, or it never has: an answer to a renewal is not all
    /// there is to a lease.
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

    /// How long to rest after such a result, at most.
    fn report(&mut self, result: Result<(), Error>) -> Option<Duration> {
        let retry = LONGEST_PAUSE.min(self.coordination.lease_ttl() / 6);
        match result {
            Ok(()) => {
                self.failing = false;
                let joined = self.session.borrow().standing == Standing::Joined;
                (!joined).then_some(retry)
            }
            Err(error) => {
                let first = !std::mem::replace(&mut self.failing, true);
                if first && !matches!(error, Error::Unanswered { .. }) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot keep the registration with etcd");
                }
                Some(retry)
            }
        }
    }

    /// Rests until the lease is due, or `pause` is over, or something is to be written.
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

    /// Compares the newest picture with what is registered. `true`: there is something to do.
    fn look(&mut self) -> bool {
        let view = self.views.borrow_and_update().clone();
        match &mut self.registered {
            Some(registered) if is_shown(&view, &registered.member.node) => {
                registered.shown = true;
                false
            }
            Some(registered) => registered.shown,
            // Whoever had the name is gone.
            None => view.revision > 0 && !view.members.contains_key(&self.member.node.name),
        }
    }

    /// Takes everything back. What cannot be said now, the lease says when it runs out.
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
                    "could not leave the cluster; the lease runs out by itself"
                );
            }
            Err(_) => tracing::warn!("could not leave the cluster in time; the lease runs out by itself"),
        }
        self.session.send_modify(|session| {
            session.standing = Standing::Left;
            session.lease = None;
            session.candidacy = None;
        });
    }
}

/// Registered, and in the queue for master.
fn is_shown(view: &ClusterView, node: &NodeId) -> bool {
    view.member(node).is_some() && view.candidates.iter().any(|candidate| candidate.node == *node)
}
