//! The limits on open connections, in all and from one address.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

use super::super::metrics::{ConnectionMetrics, ExceededLimit};
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
    by_address: HashMap<IpAddr, usize>,
}

/// The slot of one connection; freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    address: IpAddr,
}

impl ConnectionSlots {
    pub(super) fn new(all: usize, per_address: usize, metrics: ConnectionMetrics) -> Self {
        Self { all, per_address, taken: Mutex::default(), metrics }
    }

    /// Takes a slot for a connection from `address`, if one is free.
    pub(super) fn take(slots: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        let address = holder(address);
        let mut taken = slots.taken.lock();
        let full = if taken.all >= slots.all {
            Some(ExceededLimit::All)
        } else if taken.by_address.get(&address).is_some_and(|taken| *taken >= slots.per_address) {
            Some(ExceededLimit::Address)
        } else {
            None
        };
        if let Some(full) = full {
            drop(taken);
            slots.metrics.refused(full);
            tracing::debug!(%address, reason = full.text(), "connection refused");
            return None;
        }
        taken.all += 1;
        *taken.by_address.entry(address).or_default() += 1;
        slots.metrics.open(taken.all);
        Some(ConnectionSlot { slots: Arc::clone(slots), address })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        taken.all -= 1;
        self.slots.metrics.open(taken.all);
        if let Some(of) = taken.by_address.get_mut(&self.address) {
            *of -= 1;
            if *of == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_address_cannot_take_the_places_of_the_others() {
        let metrics = ConnectionMetrics::register(&Registry::new()).expect("registered once");
        let slots = Arc::new(ConnectionSlots::new(5, 2, metrics));
        let first = ConnectionSlots::take(&slots, ip("192.0.2.1")).expect("a place");
        let _second = ConnectionSlots::take(&slots, ip("::ffff:192.0.2.1")).expect("a place");
        assert!(ConnectionSlots::take(&slots, ip("192.0.2.1")).is_none(), "both of its places are taken");
        let _third = ConnectionSlots::take(&slots, ip("2001:db8::1")).expect("a place");
        let _fourth = ConnectionSlots::take(&slots, ip("2001:db8::ffff:1")).expect("a place");
        assert!(ConnectionSlots::take(&slots, ip("2001:db8::2")).is_none(), "one network is one client");
        drop(first);
        let _fifth = ConnectionSlots::take(&slots, ip("192.0.2.1")).expect("it was given back");
        let _sixth = ConnectionSlots::take(&slots, ip("192.0.2.2")).expect("a place");
        assert!(ConnectionSlots::take(&slots, ip("192.0.2.3")).is_none(), "all places are taken");
    }
}
