//! Keeps the assignment of shards in line with the members while this node is the master.
//!
//! It watches the membership all the time, master or not. A node that becomes master during a stall of etcd must
//! know which members were there before. It gathers changes for a moment, so that nodes that start together lead to
//! one decision. If it stops, nothing moves any more: each shard stays with its owner.

use std::{collections::BTreeSet, time::Duration};

use common::{
    cluster::{AssignmentRecord, ClusterView, Freeze, Pace, ReachChanges},
    ids::{DatabaseName, NodeId, NodeName, Term},
    shard::{
        AssignmentDiff,
        assign::{Assignment, AssignmentProblem, solve},
    },
    time::UnixMicros,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{elector::Mastership, session_keeper::Session};
use crate::{
    by_database::ByDatabase,
    clock,
    coordination::{AssignmentWrite, Coordination, Views},
    store::Places,
    supervise::at_work,
};

/// Changes of the membership are gathered for this long.
const GATHER: Duration = Duration::from_millis(50);

/// The time to gather after a node vanished, unless its process is known to have ended. etcd deletes leases that ran
/// out in the same stall one after another.
const GATHER_LOST: Duration = Duration::from_millis(300);

/// The master decides after this long, however many changes of the membership still arrive.
const GATHER_LONGEST: Duration = Duration::from_secs(1);

/// The pause between attempts to write while etcd does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// The mirror should show a written assignment within this time; after that the assigner compares again.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Proposes which node owns which shard; the module says when.
#[derive(Debug)]
pub struct Assigner {
    coordination: Coordination,
    /// All databases that the node uses, also those that join later.
    databases: ByDatabase<DatabaseName>,
    places: Places,
    map_changes: watch::Receiver<u64>,
    views: Views,
    mastership: watch::Receiver<Mastership>,
    session: watch::Receiver<Session>,
    /// The starts of nodes whose processes are known to have ended.
    ended: watch::Receiver<BTreeSet<NodeId>>,
    freeze: Freeze,
    /// The start of the monotonic clock that times the freeze. A change of the wall clock does not affect it.
    started: Instant,
    /// The members at the last look, without those that were leaving.
    present: BTreeSet<NodeId>,
    /// A member vanished without leaving; until this moment others may follow.
    unsure_until: Option<Instant>,
    reach: ReachChanges,
    /// What members reach has changed; until this moment others may notice the same.
    reach_until: Option<Instant>,
    /// The moment since which there has been a decision to make.
    open_since: Option<Instant>,
    /// The last assignment that a view has shown. It outlives a loss of all of etcd.
    shown: Option<Assignment>,
    /// The last problem and its answer. The same problem has the same answer.
    settled: Option<(AssignmentProblem, Option<AssignmentRecord>)>,
    /// The assignment that was written and that the mirror does not show yet.
    written: Option<(AssignmentRecord, Instant)>,
    frozen: Vec<NodeName>,
    /// etcd refused the last attempts to write; only the first refusal is logged.
    refused: bool,
    /// The end of the freeze on the wall clock, for readers outside this loop.
    frozen_until: watch::Sender<Option<UnixMicros>>,
}

impl Assigner {
    /// `databases`: all that the node uses, also those that join later.
    pub fn new(
        coordination: Coordination,
        databases: ByDatabase<DatabaseName>,
        places: Places,
        views: Views,
        mastership: watch::Receiver<Mastership>,
        session: watch::Receiver<Session>,
        ended: watch::Receiver<BTreeSet<NodeId>>,
    ) -> Self {
        Self {
            coordination,
            databases,
            map_changes: places.changes(),
            places,
            views,
            mastership,
            session,
            ended,
            freeze: Freeze::new(),
            started: Instant::now(),
            present: BTreeSet::new(),
            unsure_until: None,
            reach: ReachChanges::default(),
            reach_until: None,
            open_since: None,
            shown: None,
            settled: None,
            written: None,
            frozen: Vec::new(),
            refused: false,
            frozen_until: watch::Sender::default(),
        }
    }

    /// The end of the freeze during which this node, as the master, would reassign nothing. It may lie in the past.
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
                Ok(()) = self.ended.changed() => {}
                Ok(()) = self.map_changes.changed() => {}
            }
            wake = match stop.run_until_cancelled(self.activate()).await {
                Some(wake) => wake,
                None => return,
            };
        }
    }

    /// Returns when to look again if no change arrives before.
    async fn activate(&mut self) -> Option<Instant> {
        let _work = at_work();
        let view = self.views.borrow_and_update().clone();
        if view.revision == 0 {
            return None;
        }
        let ended = self.ended.borrow_and_update().clone();
        let pace = self.pace(&view, &ended);
        self.observe(&view, &pace, &ended);
        let term = self.mastership.borrow_and_update().term;
        let Some(term) = term else {
            self.rest();
            return None;
        };
        self.map_changes.mark_unchanged();
        if !self.places.is_read() {
            return Some(Instant::now() + RETRY);
        }
        let map = self.places.load();
        let names: Vec<DatabaseName> = self.databases.iter().cloned().collect();
        let problem = view.problem(&map, &names, self.places.shard_count().unwrap_or(0));
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

    fn pace(&mut self, view: &ClusterView, ended: &BTreeSet<NodeId>) -> Pace {
        let ended = ended.iter().map(|node| node.name.clone()).collect();
        self.freeze.observe(&view.members, &ended, self.monotonic(), self.coordination.lease_ttl())
    }

    fn observe(&mut self, view: &ClusterView, pace: &Pace, ended: &BTreeSet<NodeId>) {
        self.frozen_until.send_replace(match pace {
            Pace::Proceed => None,
            Pace::Frozen { until, .. } => Some(clock::now().plus(until.since(self.monotonic()))),
        });
        let reach_until = self.reach.observe(&view.members, self.monotonic());
        self.reach_until = reach_until.map(|until| Instant::now() + until.since(self.monotonic()));
        if self.present.iter().any(|node| view.member(node).is_none() && !ended.contains(node)) {
            self.unsure_until = Some(Instant::now() + GATHER_LOST);
        }
        if let Some(record) = &view.assignment
            && self.shown.as_ref() != Some(&record.assignment)
        {
            self.shown = Some(record.assignment.clone());
        }
        let staying = view.members.values().filter(|member| !member.leaving);
        self.present = staying.map(|member| member.node.clone()).collect();
    }

    /// Resets the state of a master; a node that is not the master has nothing under way.
    fn rest(&mut self) {
        self.open_since = None;
        self.settled = None;
        self.written = None;
        self.frozen.clear();
    }

    /// Whether the problem has no answer yet.
    fn is_open(&mut self, problem: &AssignmentProblem, view: &ClusterView) -> bool {
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

    /// The moment at which enough changes have been gathered for a decision.
    fn gathered_at(&mut self) -> Instant {
        let since = *self.open_since.get_or_insert_with(Instant::now);
        let quiet = since + GATHER;
        let gathered = self.unsure_until.map_or(quiet, |until| until.max(quiet)).min(since + GATHER_LONGEST);
        self.reach_until.map_or(gathered, |until| until.max(gathered))
    }

    fn freeze_until(&mut self, until: UnixMicros, missing: Vec<NodeName>) -> Instant {
        let left = until.since(self.monotonic());
        if self.frozen.is_empty() {
            let nodes: Vec<&str> = missing.iter().map(NodeName::as_str).collect();
            tracing::warn!(
                ?nodes,
                longest_s = left.as_secs(),
                "assignment frozen: too many nodes vanished at the same time"
            );
        }
        self.frozen = missing;
        self.open_since = None;
        Instant::now() + left
    }

    fn thaw(&mut self) {
        if !self.frozen.is_empty() {
            tracing::info!("assignment no longer frozen: the nodes are back, or the freeze has ended");
            self.frozen.clear();
        }
    }

    async fn decide(&mut self, term: Term, problem: AssignmentProblem, view: &ClusterView) -> Option<Instant> {
        let previous = view.assignment.as_ref();
        let before = before(view, self.shown.as_ref());
        let next = solve(&problem, &before);
        let anybody = next.owners.iter().any(Option::is_some);
        let nothing_new = if previous.is_some() { next == before } else { !anybody };
        if nothing_new {
            self.settled = Some((problem, view.assignment.clone()));
            return None;
        }
        let diff = AssignmentDiff::between(&before, &next);
        let lease = self.session.borrow().lease()?;
        let next = AssignmentRecord { term, assignment: next };
        let written = self.coordination.assignment_write(previous, &next, lease).await;
        self.refused &= written.is_err();
        match written {
            Ok(AssignmentWrite::Done) => {
                tracing::info!(%term, moves = diff.len(), "wrote an assignment: {}", diff.to_string().replace('\n', "; "));
                self.settled = Some((problem, Some(next.clone())));
                self.written = Some((next, Instant::now()));
                Some(Instant::now() + SHOWN_WITHIN)
            }
            // The stored assignment is not the one this decision was based on. The mirror is about to show it.
            Ok(AssignmentWrite::Moved) => Some(Instant::now() + GATHER),
            Ok(AssignmentWrite::Deposed) => {
                tracing::info!(%term, "assignment refused: another node is the master now");
                Some(Instant::now() + RETRY)
            }
            Err(error) => {
                if error.is_news(&mut self.refused) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "could not write the assignment; retrying");
                }
                Some(Instant::now() + RETRY)
            }
        }
    }

    fn monotonic(&self) -> UnixMicros {
        UnixMicros::new(0).plus(self.started.elapsed())
    }
}

/// The assignment from which as little as possible moves.
///
/// After a loss of all of etcd the present owners count as assigned. The nodes put their owner keys back one after
/// another, and a shard without a key is owned all the same: for it, the last assignment that was `shown` counts.
fn before(view: &ClusterView, shown: Option<&Assignment>) -> Assignment {
    if let Some(record) = &view.assignment {
        return record.assignment.clone();
    }
    let mut before = as_owned(view);
    let last = shown.map_or(&[][..], |shown| &shown.owners);
    before.owners.resize(before.owners.len().max(last.len()), None);
    for (owner, last) in before.owners.iter_mut().zip(last) {
        *owner = owner.take().or_else(|| last.clone());
    }
    before
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

#[cfg(test)]
mod tests {
    use common::{cluster::OwnerRecord, ids::ShardId};

    use super::*;
    use crate::coordination::tests::node;

    #[test]
    fn after_a_loss_of_etcd_the_last_assignment_counts_although_owner_keys_are_still_missing() {
        let (one, two) = (node("one"), node("two"));
        let owner = OwnerRecord { node: one.clone(), epoch: None };
        let view = ClusterView { owners: [(ShardId::new(0), owner)].into(), ..ClusterView::default() };
        let shown = Assignment { owners: vec![Some(one.clone()), Some(two)] };
        assert_eq!(before(&view, Some(&shown)), shown);
        let moved = Assignment { owners: vec![shown.owners[1].clone(), shown.owners[1].clone()] };
        assert_eq!(before(&view, Some(&moved)), shown, "an owner that etcd shows is newer");
        assert_eq!(before(&view, None).owners, [Some(one.clone())]);
        let stored = Assignment { owners: vec![Some(one)] };
        let record = AssignmentRecord { term: Term::from_revision(1), assignment: stored.clone() };
        let view = ClusterView { assignment: Some(record), ..view };
        assert_eq!(before(&view, Some(&shown)), stored);
    }
}
