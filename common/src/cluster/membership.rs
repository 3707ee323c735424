//! When not to trust that nodes are gone.
//!
//! When etcd stalls, all leases run out at once, although every node is well. Reassigning would then move every shard
//! for no reason, at the worst moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{cluster::view::Member, ids::NodeName, time::UnixMicros};

/// After most are back, the others have this long: after a stall, a node tries again within a second, and its request
/// may take two for each of two endpoints.
const REST_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Whether the master may act on the current members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    Proceed,
    /// Too many members vanished together to be credible. The master proceeds at `until`, or earlier when they are
    /// back.
    Frozen {
        until: UnixMicros,
        missing: Vec<NodeName>,
    },
}

/// Records which members vanished, and when.
///
/// The assignment freezes when two or more members, and more than a third of them, vanish within one TTL. It stays
/// frozen for two TTLs, or until all are back. Once so many are back that the rest alone would not have frozen it, the
/// rest have five seconds, but no longer than the two TTLs. A member that announced its leaving does not count, nor
/// does one whose process is known to have ended, and one that vanishes alone never freezes the assignment.
///
/// Every node should observe all the time, not only the master. A stall may be the reason that a node becomes master,
/// and that node must know the members from before the stall.
#[derive(Clone, Debug, Default)]
pub struct Freeze {
    /// The members at the last observation that were not leaving.
    present: Vec<NodeName>,
    vanished: BTreeMap<NodeName, UnixMicros>,
    until: Option<UnixMicros>,
    /// When so many were back that the rest would not have frozen the assignment.
    most_back: Option<UnixMicros>,
}

impl Freeze {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the current members. `ended`: the names of those whose processes are known to have ended. `ttl` is that
    /// of the members' leases.
    pub fn observe(
        &mut self,
        members: &BTreeMap<NodeName, Member>,
        ended: &BTreeSet<NodeName>,
        now: UnixMicros,
        ttl: Duration,
    ) -> Pace {
        self.vanished.retain(|name, _| !members.contains_key(name) && !ended.contains(name));
        for name in self.present.drain(..) {
            if !members.contains_key(&name) && !ended.contains(&name) {
                self.vanished.insert(name, now);
            }
        }
        self.present.extend(members.values().filter(|member| !member.leaving).map(|member| member.node.name.clone()));
        if self.until.is_none_or(|until| until <= now) {
            self.until = None;
            // A member that vanished longer ago than the TTL is really gone.
            self.vanished.retain(|_, since| now.since(*since) <= ttl);
        }
        self.pace(now, ttl)
    }

    fn pace(&mut self, now: UnixMicros, ttl: Duration) -> Pace {
        let missing = self.vanished.len();
        let too_many = missing >= 2 && missing * 3 > missing + self.present.len();
        let until = if too_many {
            self.most_back = None;
            Some(*self.until.get_or_insert_with(|| now.plus(ttl * 2)))
        } else {
            let most_back = *self.most_back.get_or_insert(now);
            self.until
                .map(|until| until.min(most_back.plus(REST_BACK_WITHIN)))
                .filter(|until| missing > 0 && now < *until)
        };
        let Some(until) = until else {
            (self.until, self.most_back) = (None, None);
            return Pace::Proceed;
        };
        Pace::Frozen { until, missing: self.vanished.keys().cloned().collect() }
    }
}

#[cfg(test)]
mod tests;
