//! The limits on open connections, in all and from one address.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

use super::super::metrics::{ConnectionMetrics, Full};
use crate::address::holder;

#[derive(Debug)]
pub(super) struct Places {
    all: usize,
    per_address: usize,
    taken: Mutex<Taken>,
    metrics: ConnectionMetrics,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The place of one connection; freed on drop.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Places {
    pub(super) fn new(all: usize, per_address: usize, metrics: ConnectionMetrics) -> Self {
        Self { all, per_address, taken: Mutex::default(), metrics }
    }

    /// Takes a place for a connection from `address`, if one is free.
    pub(super) fn take(places: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = holder(address);
        let mut taken = places.taken.lock();
        let full = if taken.all >= places.all {
            Some(Full::All)
        } else if taken.by_address.get(&address).is_some_and(|taken| *taken >= places.per_address) {
            Some(Full::Address)
        } else {
            None
        };
        if let Some(full) = full {
            drop(taken);
            places.metrics.refused(full);
            tracing::debug!(%address, reason = full.text(), "connection refused");
            return None;
        }
        taken.all += 1;
        *taken.by_address.entry(address).or_default() += 1;
        places.metrics.open(taken.all);
        Some(Place { places: Arc::clone(places), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        self.places.metrics.open(taken.all);
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
        let places = Arc::new(Places::new(5, 2, metrics));
        let first = Places::take(&places, ip("192.0.2.1")).expect("a place");
        let _second = Places::take(&places, ip("::ffff:192.0.2.1")).expect("a place");
        assert!(Places::take(&places, ip("192.0.2.1")).is_none(), "both of its places are taken");
        let _third = Places::take(&places, ip("2001:db8::1")).expect("a place");
        let _fourth = Places::take(&places, ip("2001:db8::ffff:1")).expect("a place");
        assert!(Places::take(&places, ip("2001:db8::2")).is_none(), "one network is one client");
        drop(first);
        let _fifth = Places::take(&places, ip("192.0.2.1")).expect("it was given back");
        let _sixth = Places::take(&places, ip("192.0.2.2")).expect("a place");
        assert!(Places::take(&places, ip("192.0.2.3")).is_none(), "all places are taken");
    }
}
