//! When not to trust that nodes are gone.
//!
//! All leases run out at once when etcd stalls, while every node is well. Reassigning then would move every shard for
//! nothing, at the worst moment.

use std::{collections::BTreeMap, time::Duration};

use crate::{cluster::view::Member, ids::NodeName, time::UnixMicros};

/// Whether the master may act on who is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    Proceed,
    /// Too many vanished together to believe it. Proceeds at `until`, or earlier when they are back.
    Frozen {
        until: UnixMicros,
        missing: Vec<NodeName>,
    },
}

impl Pace {
    pub fn is_frozen(&self) -> bool {
        matches!(self, Self::Frozen { .. })
    }
}

/// Remembers who vanished when.
///
/// Two or more members, and more than a third of them, that vanish within one TTL freeze the assignment for two TTLs, or
/// until so many are back that the rest would not have frozen it. A member that said it was leaving does not count, and
/// one that vanishes alone never freezes. Every node should observe all the time, not only the master: a master that
/// comes to office because of such a stall must know who was there before.
#[derive(Clone, Debug, Default)]
pub struct Freeze {
    /// Present at the last look and not leaving.
    present: Vec<NodeName>,
    vanished: BTreeMap<NodeName, UnixMicros>,
    until: Option<UnixMicros>,
}

impl Freeze {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of who is present now. `ttl` is that of the members' leases.
    pub fn observe(&mut self, members: &BTreeMap<NodeName, Member>, now: UnixMicros, ttl: Duration) -> Pace {
        self.vanished.retain(|name, _| !members.contains_key(name));
        for name in self.present.drain(..) {
            if !members.contains_key(&name) {
                self.vanished.insert(name, now);
            }
        }
        self.present.extend(members.values().filter(|member| !member.leaving).map(|member| member.node.name.clone()));
        if self.until.is_none_or(|until| until <= now) {
            self.until = None;
            // Gone for longer than that they are simply gone.
            self.vanished.retain(|_, since| now.since(*since) <= ttl);
        }
        self.pace(now, ttl)
    }

    fn pace(&mut self, now: UnixMicros, ttl: Duration) -> Pace {
        let missing = self.vanished.len();
        let too_many = missing >= 2 && missing * 3 > missing + self.present.len();
        if !too_many {
            self.until = None;
            return Pace::Proceed;
        }
        let until = *self.until.get_or_insert_with(|| now.plus(ttl * 2));
        Pace::Frozen { until, missing: self.vanished.keys().cloned().collect() }
    }
}

#[cfg(test)]
mod tests;
