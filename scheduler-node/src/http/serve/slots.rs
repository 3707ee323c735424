//! The limits on open connections, in all and from one address. Where they are reached, a new connection takes the
//! place of the one that has been idle the longest.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::super::metrics::{ConnectionMetrics, ReachedLimit};
use crate::address::holder;

#[derive(Debug)]
pub(super) struct ConnectionSlots {
    all: usize,
    per_address: usize,
    taken: Mutex<TakenSlots>,
    metrics: ConnectionMetrics,
}

#[derive(Debug, Default)]
struct TakenSlots {
    all: usize,
    by_address: HashMap<IpAddr, AddressSlots>,
    /// The idle connections, those that have been idle the longest first.
    idle: BTreeMap<IdleNumber, IdleConnection>,
    last: IdleNumber,
}

/// Counts how often connections became idle.
type IdleNumber = u64;

#[derive(Debug, Default)]
struct AddressSlots {
    taken: usize,
    idle: BTreeSet<IdleNumber>,
}

#[derive(Debug)]
struct IdleConnection {
    address: IpAddr,
    replaced: CancellationToken,
}

impl TakenSlots {
    fn of(&self, address: &IpAddr) -> usize {
        self.by_address.get(address).map_or(0, |slots| slots.taken)
    }

    fn take(&mut self, address: IpAddr) {
        self.all += 1;
        self.by_address.entry(address).or_default().taken += 1;
    }

    fn give_back(&mut self, address: IpAddr) {
        self.all -= 1;
        if let Some(slots) = self.by_address.get_mut(&address) {
            slots.taken -= 1;
            if slots.taken == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    fn begin_idle(&mut self, address: IpAddr, replaced: CancellationToken) -> IdleNumber {
        self.last += 1;
        self.idle.insert(self.last, IdleConnection { address, replaced });
        self.by_address.entry(address).or_default().idle.insert(self.last);
        self.last
    }

    fn end_idle(&mut self, number: IdleNumber) -> Option<IdleConnection> {
        let connection = self.idle.remove(&number)?;
        if let Some(slots) = self.by_address.get_mut(&connection.address) {
            slots.idle.remove(&number);
        }
        Some(connection)
    }

    /// Gives back the slot of the connection that has been idle the longest, of all or of `address`, and has it
    /// closed. False where none is idle.
    fn replace(&mut self, reached: ReachedLimit, address: &IpAddr) -> bool {
        let oldest = match reached {
            ReachedLimit::All => self.idle.keys().next(),
            ReachedLimit::Address => self.by_address.get(address).and_then(|slots| slots.idle.first()),
        };
        let Some(connection) = oldest.copied().and_then(|number| self.end_idle(number)) else { return false };
        self.give_back(connection.address);
        connection.replaced.cancel();
        true
    }
}

/// The slot of one connection; freed on drop, unless another connection has it already.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    address: IpAddr,
    /// `None` while the connection is at work.
    idle: Option<IdleNumber>,
    replaced: CancellationToken,
    /// Whether the connection counts although another one has its slot.
    counts_beside: bool,
}

impl ConnectionSlots {
    pub(super) fn new(all: usize, per_address: usize, metrics: ConnectionMetrics) -> Self {
        Self { all, per_address, taken: Mutex::default(), metrics }
    }

    /// Takes a slot for a connection from `address`: a free one, or that of an idle connection. The new connection
    /// counts as idle until its first request.
    pub(super) fn take(slots: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        let address = holder(address);
        let mut taken = slots.taken.lock();
        let reached = if taken.of(&address) >= slots.per_address {
            Some(ReachedLimit::Address)
        } else if taken.all >= slots.all {
            Some(ReachedLimit::All)
        } else {
            None
        };
        if let Some(reached) = reached {
            if !taken.replace(reached, &address) {
                drop(taken);
                slots.metrics.refused(reached);
                tracing::debug!(%address, reason = reached.text(), "connection refused");
                return None;
            }
            slots.metrics.replaced(reached);
        }
        let replaced = CancellationToken::new();
        taken.take(address);
        let idle = Some(taken.begin_idle(address, replaced.clone()));
        slots.metrics.open(taken.all);
        Some(ConnectionSlot { slots: Arc::clone(slots), address, idle, replaced, counts_beside: false })
    }
}

impl ConnectionSlot {
    /// Cancelled once another connection has taken this one's place.
    pub(super) fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }

    /// Notes whether the connection is idle. One that is at work keeps its place.
    pub(super) fn set_idle(&mut self, is_idle: bool) {
        if self.idle.is_some() == is_idle {
            return;
        }
        let mut taken = self.slots.taken.lock();
        self.idle = match self.idle {
            Some(number) => {
                if taken.end_idle(number).is_none() {
                    // A request came just as another connection took the slot. Both count until this one ends.
                    taken.take(self.address);
                    self.counts_beside = true;
                    self.slots.metrics.open(taken.all);
                }
                None
            }
            // Its place may have been taken while it was idle before.
            None if self.replaced.is_cancelled() => None,
            None => Some(taken.begin_idle(self.address, self.replaced.clone())),
        };
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        if self.replaced.is_cancelled() && !self.counts_beside {
            return;
        }
        if let Some(number) = self.idle {
            taken.end_idle(number);
        }
        taken.give_back(self.address);
        self.slots.metrics.open(taken.all);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn slots(all: usize, per_address: usize) -> Arc<ConnectionSlots> {
        let metrics = ConnectionMetrics::register(&Registry::new()).expect("registered once");
        Arc::new(ConnectionSlots::new(all, per_address, metrics))
    }

    fn idle(slots: &Arc<ConnectionSlots>, address: &str) -> Option<ConnectionSlot> {
        ConnectionSlots::take(slots, ip(address))
    }

    fn at_work(slots: &Arc<ConnectionSlots>, address: &str) -> Option<ConnectionSlot> {
        let mut slot = idle(slots, address)?;
        slot.set_idle(false);
        Some(slot)
    }

    #[test]
    fn one_address_cannot_take_the_places_of_the_others() {
        let slots = slots(5, 2);
        let first = at_work(&slots, "192.0.2.1").expect("a place");
        let _second = at_work(&slots, "::ffff:192.0.2.1").expect("a place");
        assert!(at_work(&slots, "192.0.2.1").is_none(), "both of its places are taken");
        let _third = at_work(&slots, "2001:db8::1").expect("a place");
        let _fourth = at_work(&slots, "2001:db8::ffff:1").expect("a place");
        assert!(at_work(&slots, "2001:db8::2").is_none(), "one network is one client");
        drop(first);
        let _fifth = at_work(&slots, "192.0.2.1").expect("it was given back");
        let _sixth = at_work(&slots, "192.0.2.2").expect("a place");
        assert!(at_work(&slots, "192.0.2.3").is_none(), "all places are taken");
    }

    #[test]
    fn the_connection_that_is_idle_the_longest_goes_first() {
        let slots = slots(3, 3);
        let mut first = idle(&slots, "192.0.2.1").expect("a place");
        let second = idle(&slots, "192.0.2.2").expect("a place");
        let third = at_work(&slots, "192.0.2.3").expect("a place");
        // A request later the first one is idle again, and the second one has been idle for longer.
        first.set_idle(false);
        first.set_idle(true);
        let mut fourth = idle(&slots, "192.0.2.4").expect("the place of the second");
        assert!(second.replaced.is_cancelled() && !first.replaced.is_cancelled());
        drop(second);
        fourth.set_idle(false);
        let mut fifth = idle(&slots, "192.0.2.4").expect("the place of the first");
        assert!(first.replaced.is_cancelled());
        // A request that came at that moment brings no place back, but it counts.
        first.set_idle(false);
        assert_eq!(slots.taken.lock().all, 4);
        first.set_idle(true);
        fifth.set_idle(false);
        assert!(idle(&slots, "192.0.2.5").is_none(), "all are at work");
        assert!(!third.replaced.is_cancelled() && !fourth.replaced.is_cancelled() && !fifth.replaced.is_cancelled());
        drop((first, third, fourth, fifth));
        let taken = slots.taken.lock();
        assert_eq!((taken.all, taken.by_address.len(), taken.idle.len()), (0, 0, 0));
    }

    #[test]
    fn an_address_at_its_limit_replaces_its_own_idle_connection_and_no_other() {
        let slots = slots(4, 2);
        let other = idle(&slots, "192.0.2.9").expect("a place");
        let _first = at_work(&slots, "192.0.2.1").expect("a place");
        let second = idle(&slots, "192.0.2.1").expect("a place");
        let _third = at_work(&slots, "192.0.2.1").expect("the place of the second");
        assert!(second.replaced.is_cancelled());
        assert!(at_work(&slots, "192.0.2.1").is_none(), "both of its connections are at work");
        assert!(!other.replaced.is_cancelled());
    }
}
