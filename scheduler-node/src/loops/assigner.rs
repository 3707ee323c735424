//! While this node is the master: keeps the assignment right for who is there.
//!
//! It watches the membership all the time, master or not, because a node that becomes master through a stall of etcd must
//! know who was there before. Changes are gathered for a moment, so that nodes that start together are one decision. If it
//! stops, nothing moves any more: what is owned stays owned.

use std::{collections::BTreeSet, time::Duration};

use common::{
    cluster::{AssignmentRecord, ClusterView, Freeze, Pace},
    ids::{DatabaseName, NodeId, NodeName, Term},
    shard::{
        AssignmentDiff, ShardRange,
        assign::{Assignment, Problem, solve},
    },
    time::UnixMicros,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{elector::Mastership, session_keeper::Session};
use crate::{
    clock,
    coordination::{Coordination, Error, Views, Written},
    supervise::at_work,
};

/// Changes of the membership are gathered this long.
const GATHER: Duration = Duration::from_millis(50);

/// When a node has vanished without a word: leases that ran out in the same stall are deleted one after another.
const GATHER_LOST: Duration = Duration::from_millis(300);

/// However much is going on, the master decides after this long.
const GATHER_LONGEST: Duration = Duration::from_secs(1);

/// Between attempts to write while etcd does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Until the mirror shows what was written; after that it is looked at again.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct Assigner {
    coordination: Coordination,
    databases: Vec<(DatabaseName, ShardRange)>,
    views: Views,
    mastership: watch::Receiver<Mastership>,
    session: watch::Receiver<Session>,
    freeze: Freeze,
    /// The freeze is timed by a clock that nobody sets.
    started: Instant,
    /// Who was there at the last look, without those that were leaving.
    present: BTreeSet<NodeId>,
    /// Someone vanished without a word: until then others may follow.
    unsure_until: Option<Instant>,
    /// Since when there has been something to decide.
    open_since: Option<Instant>,
    /// What was asked and answered last: asked again, the answer is the same.
    settled: Option<(Problem, Option<AssignmentRecord>)>,
    /// Written, not yet shown by the mirror.
    written: Option<(AssignmentRecord, Instant)>,
    frozen: Vec<NodeName>,
    /// For those who ask, on the clock that people read.
    frozen_until: watch::Sender<Option<UnixMicros>>,
}

impl Assigner {
    /// `databases`: which holds which shards, as every node of the cluster is configured.
    pub fn new(
        coordination: Coordination,
        databases: Vec<(DatabaseName, ShardRange)>,
        views: Views,
        mastership: watch::Receiver<Mastership>,
        session: watch::Receiver<Session>,
    ) -> Self {
        Self {
            coordination,
            databases,
            views,
            mastership,
            session,
            freeze: Freeze::new(),
            started: Instant::now(),
            present: BTreeSet::new(),
            unsure_until: None,
            open_since: None,
            settled: None,
            written: None,
            frozen: Vec::new(),
            frozen_until: watch::Sender::default(),
        }
    }

    /// Until when this node, were it the master, would reassign nothing. It may lie in the past.
    pub fn frozen_until(&self) -> watch::Receiver<Option<UnixMicros>> {
        self.frozen_until.subscribe()
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let mut wake = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(wake) => {}
                Ok(()) = self.views.changed() => {}
                Ok(()) = self.mastership.changed() => {}
            }
            wake = match stop.run_until_cancelled(self.activate()).await {
                Some(wake) => wake,
                None => return,
            };
        }
    }

    /// Returns when to look again, if nothing happens before.
    async fn activate(&mut self) -> Option<Instant> {
        let _work = at_work();
        let view = self.views.borrow_and_update().clone();
        if view.revision == 0 {
            return None;
        }
        let pace = self.freeze.observe(&view.members, self.monotonic(), self.coordination.lease_ttl());
        self.observe(&view, &pace);
        let term = self.mastership.borrow_and_update().term;
        let Some(term) = term else {
            self.rest();
            return None;
        };
        let problem = view.problem(&self.databases);
        if !self.is_open(&problem, &view) {
            self.open_since = None;
            return self.written.as_ref().map(|(_, since)| *since + SHOWN_WITHIN);
        }
        if let Pace::Frozen { until, missing } = pace {
            return Some(self.freeze_until(until, missing));
        }
        self.thaw();
        let due = self.gathered_at();
        if Instant::now() < due {
            return Some(due);
        }
        self.open_since = None;
        self.decide(term, problem, &view).await
    }

    fn observe(&mut self, view: &ClusterView, pace: &Pace) {
        self.frozen_until.send_replace(match pace {
            Pace::Proceed => None,
            Pace::Frozen { until, .. } => Some(clock::now().plus(until.since(self.monotonic()))),
        });
        if self.present.iter().any(|node| view.member(node).is_none()) {
            self.unsure_until = Some(Instant::now() + GATHER_LOST);
        }
        let staying = view.members.values().filter(|member| !member.leaving);
        self.present = staying.map(|member| member.node.clone()).collect();
    }

    /// Not the master: nothing is under way.
    fn rest(&mut self) {
        self.open_since = None;
        self.settled = None;
        self.written = None;
        self.frozen.clear();
    }

    /// Whether there is a question that has not been answered.
    fn is_open(&mut self, problem: &Problem, view: &ClusterView) -> bool {
        if let Some((written, since)) = &self.written {
            let shown = view.assignment.as_ref() == Some(written);
            if !shown
                && since.elapsed() < SHOWN_WITHIN
                && self.settled.as_ref().is_some_and(|(asked, _)| asked == problem)
            {
                return false;
            }
            self.written = None;
        }
        self.settled.as_ref().is_none_or(|(asked, answer)| asked != problem || *answer != view.assignment)
    }

    /// When enough has been gathered for a decision.
    fn gathered_at(&mut self) -> Instant {
        let since = *self.open_since.get_or_insert_with(Instant::now);
        let quiet = since + GATHER;
        self.unsure_until.map_or(quiet, |until| until.max(quiet)).min(since + GATHER_LONGEST)
    }

    fn freeze_until(&mut self, until: UnixMicros, missing: Vec<NodeName>) -> Instant {
        let left = until.since(self.monotonic());
        if self.frozen.is_empty() {
            let nodes: Vec<&str> = missing.iter().map(NodeName::as_str).collect();
            tracing::warn!(
                ?nodes,
                longest_s = left.as_secs(),
                "frozen: too many nodes vanished together to believe it"
            );
        }
        self.frozen = missing;
        self.open_since = None;
        Instant::now() + left
    }

    fn thaw(&mut self) {
        if !self.frozen.is_empty() {
            tracing::info!("no longer frozen: the nodes are back, or have been gone for long enough");
            self.frozen.clear();
        }
    }

    async fn decide(&mut self, term: Term, problem: Problem, view: &ClusterView) -> Option<Instant> {
        let previous = view.assignment.as_ref();
        // Without one, as after etcd was lost as a whole, what is owned is what was decided.
        let before = previous.map_or_else(|| as_owned(view), |record| record.assignment.clone());
        let next = solve(&problem, &before);
        let anybody = next.owners.iter().any(Option::is_some);
        let nothing_new = if previous.is_some() { next == before } else { !anybody };
        if nothing_new {
            self.settled = Some((problem, view.assignment.clone()));
            return None;
        }
        let diff = AssignmentDiff::between(&before, &next);
        let lease = self.session.borrow().lease?;
        let next = AssignmentRecord { term, assignment: next };
        match self.coordination.assignment_write(previous, &next, lease).await {
            Ok(Written::Done) => {
                tracing::info!(%term, moves = diff.len(), "wrote an assignment: {}", diff.to_string().replace('\n', "; "));
                self.settled = Some((problem, Some(next.clone())));
                self.written = Some((next, Instant::now()));
                Some(Instant::now() + SHOWN_WITHIN)
            }
            // The mirror is about to show why.
            Ok(Written::Moved) => Some(Instant::now() + GATHER),
            Ok(Written::Deposed) => {
                tracing::info!(%term, "an assignment was refused: another node is the master by now");
                Some(Instant::now() + RETRY)
            }
            Err(error) => {
                if !matches!(error, Error::Unanswered { .. }) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "could not write the assignment");
                }
                Some(Instant::now() + RETRY)
            }
        }
    }

    fn monotonic(&self) -> UnixMicros {
        UnixMicros::new(0).plus(self.started.elapsed())
    }
}

fn as_owned(view: &ClusterView) -> Assignment {
    let count = view.owners.keys().map(|shard| usize::from(shard.number()) + 1).max().unwrap_or(0);
    let mut owners = vec![None; count];
    for (shard, owner) in &view.owners {
        owners[usize::from(shard.number())] = Some(owner.node.clone());
    }
    Assignment { owners }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
