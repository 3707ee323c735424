//! When not to trust that one member alone has lost its way to a database or to the broker.
//!
//! The members notice an outage one after another, and so they notice its end. In between, few of them or one alone
//! could own shards, and all shards would go there and come back.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    cluster::view::Member,
    ids::{NodeId, NodeName},
    time::UnixMicros,
};

/// How long the others may take to notice the same. Members look every 0.5 s, and a look that a server refuses or
/// answers is over at once; the rest is for a slow machine and for the way through etcd.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// The longest wait for an end of the changes. A member whose connection comes and goes must not stop all moves.
const LONGEST_WAIT: Duration = Duration::from_secs(6);

/// Records what the members reach, and since when that changes.
///
/// Every node should observe all the time, not only the master: a node that becomes master during an outage must know
/// what the members reached before.
#[derive(Clone, Debug, Default)]
pub struct ReachChanges {
    /// The members at the last observation.
    seen: BTreeMap<NodeId, Member>,
    /// The first change of those that are waited for, and the last.
    changing: Option<(UnixMicros, UnixMicros)>,
}

impl ReachChanges {
    /// Records the current members. Returns the moment until which the master waits for further changes; `None`: it
    /// does not wait. `now` is monotonic.
    pub fn observe(&mut self, members: &BTreeMap<NodeName, Member>, now: UnixMicros) -> Option<UnixMicros> {
        let is_changed =
            |member: &Member| self.seen.get(&member.node).is_some_and(|before| reaches_other(before, member));
        if members.values().any(is_changed) {
            let first = self.changing.map_or(now, |(first, _)| first);
            self.changing = Some((first, now));
        }
        self.seen = members.values().map(|member| (member.node.clone(), member.clone())).collect();
        let until = |(first, last): (UnixMicros, UnixMicros)| last.plus(NOTICED_WITHIN).min(first.plus(LONGEST_WAIT));
        self.changing = self.changing.filter(|changing| now < until(*changing));
        self.changing.map(until)
    }
}

/// Whether a member has lost something that it reached, or reaches again what it has used before. What it reaches for
/// the first time is no end of an outage.
fn reaches_other(before: &Member, now: &Member) -> bool {
    let was_used = |database| before.databases.as_ref().is_none_or(|used| used.contains(database));
    let has_lost = now.unfit.iter().any(|database| !before.unfit.contains(database) && was_used(database));
    let has_again = before.unfit.iter().any(|database| !now.unfit.contains(database) && was_used(database));
    has_lost || has_again || before.broker_unfit != now.broker_unfit
}

#[cfg(test)]
mod tests;
