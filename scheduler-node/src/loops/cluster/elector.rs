//! Knows whether this node is the master.
//!
//! The queue for master is part of the mirror, so no request is needed: the oldest candidate leads. This knowledge
//! is only a hint. The assignment is written under the term, and a past term writes nothing. If it stops, this node
//! never becomes master, or never notices that it is no longer.

use std::sync::Arc;

use common::{
    cluster::Candidate,
    ids::{NodeId, Term},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::session_keeper::Session;
use crate::{
    coordination::{CoordinationMetrics, Views},
    supervise::at_work,
};

/// Whether this node is the master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mastership {
    /// The term, while this node is the master.
    pub term: Option<Term>,
}

/// Derives the mastership from the mirror and this node's session.
#[derive(Debug)]
pub struct Elector {
    me: NodeId,
    views: Views,
    session: watch::Receiver<Session>,
    mastership: watch::Sender<Mastership>,
    metrics: Arc<CoordinationMetrics>,
    /// The master that the log named last.
    named: Option<Candidate>,
}

impl Elector {
    pub fn new(
        me: NodeId,
        views: Views,
        session: watch::Receiver<Session>,
        metrics: Arc<CoordinationMetrics>,
    ) -> (Self, watch::Receiver<Mastership>) {
        let (mastership, office) = watch::channel(Mastership::default());
        (Self { me, views, session, mastership, metrics, named: None }, office)
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.activate();
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.views.changed() => {}
                Ok(()) = self.session.changed() => {}
            }
        }
        self.metrics.master.set(0);
    }

    fn activate(&mut self) {
        let _work = at_work();
        let master = self.views.borrow_and_update().master().cloned();
        // Compares the term, not the name: a key of this node on a lease that has run out is not its place in the
        // queue.
        let candidacy = self.session.borrow_and_update().candidacy();
        let term = master.as_ref().map(|master| master.term).filter(|term| candidacy == Some(*term));
        self.report(master, term);
        self.metrics.master.set(i64::from(term.is_some()));
        self.mastership.send_if_modified(|mastership| {
            let changed = mastership.term != term;
            mastership.term = term;
            changed
        });
    }

    fn report(&mut self, master: Option<Candidate>, term: Option<Term>) {
        let before = self.mastership.borrow().term;
        match (before, term) {
            (None, Some(term)) => tracing::info!(me = %self.me, %term, "this node is the master"),
            (Some(term), None) => tracing::info!(me = %self.me, %term, "this node is no longer the master"),
            (Some(before), Some(term)) if before != term => {
                tracing::info!(me = %self.me, %before, %term, "this node is the master for another term");
            }
            _ => {}
        }
        if master != self.named {
            if let Some(master) = master.as_ref().filter(|master| master.node != self.me) {
                tracing::info!(master = %master.node, term = %master.term, "another node is the master");
            }
            self.named = master;
        }
    }
}
