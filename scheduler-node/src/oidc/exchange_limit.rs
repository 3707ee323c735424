//! Limits on concurrent exchanges of codes, in all and for one address.
//!
//! A stranger can begin a sign-in and come back with an invented code, which costs a request to the provider.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::address::holder;

/// Exchanges of all addresses at one time: far more than people who sign in, and few for the provider.
pub(super) const AT_ONCE: usize = 64;

/// Exchanges of one address at one time. All people behind one proxy share them; an exchange takes a fraction of a
/// second.
pub(super) const OF_ADDRESS: usize = 8;

#[derive(Debug)]
pub(super) struct ExchangeLimit {
    /// The longest wait for a place.
    wait: Duration,
    all: Arc<Semaphore>,
    /// The shares of addresses that have an exchange or wait for a place. `None`: all unknown addresses together.
    by_address: Mutex<HashMap<Option<IpAddr>, Arc<Semaphore>>>,
}

/// A place for one exchange; freed on drop.
#[derive(Debug)]
pub(super) struct Place {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl ExchangeLimit {
    pub(super) fn new(wait: Duration) -> Self {
        Self { wait, all: Arc::new(Semaphore::new(AT_ONCE)), by_address: Mutex::default() }
    }

    /// Takes a place for an exchange; `None` when none was free for as long as a person waits. A caller waits for a
    /// place of its address first, so that one address's queue holds up no other.
    pub(super) async fn enter(&self, from: Option<IpAddr>) -> Option<Place> {
        let own = self.share(from.map(holder));
        let places = async {
            let own = own.acquire_owned().await.ok()?;
            Some(Place { _own: own, _of_all: Arc::clone(&self.all).acquire_owned().await.ok()? })
        };
        timeout(self.wait, places).await.ok()?
    }

    fn share(&self, of: Option<IpAddr>) -> Arc<Semaphore> {
        let mut by_address = self.by_address.lock();
        // Each place and each wait holds its share, so there are at most as many shares as requests.
        by_address.retain(|_, share| Arc::strong_count(share) > 1);
        Arc::clone(by_address.entry(of).or_insert_with(|| Arc::new(Semaphore::new(OF_ADDRESS))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::tests::eventually;

    const WAIT: Duration = Duration::from_secs(5);

    /// A place that is free without a wait.
    async fn at_once(limit: &ExchangeLimit, from: Option<IpAddr>) -> Option<Place> {
        // A fresh turn, so that the runtime's cooperative budget does not make this one wait.
        tokio::task::yield_now().await;
        timeout(Duration::ZERO, limit.enter(from)).await.ok()?
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[tokio::test]
    async fn one_address_takes_its_share_and_no_more() {
        let limit = ExchangeLimit::new(WAIT);
        for (from, same) in [("192.0.2.1", "::ffff:192.0.2.1"), ("2001:db8::1", "2001:db8::ffff:1")] {
            let mut places = Vec::new();
            for _ in 0..OF_ADDRESS {
                places.push(at_once(&limit, ip(from)).await.expect("a place"));
            }
            assert!(at_once(&limit, ip(same)).await.is_none(), "{same} has its share");
            drop(at_once(&limit, ip("198.51.100.7")).await.expect("others have places"));
            drop(at_once(&limit, None).await.expect("others have places"));
            places.pop();
            drop(at_once(&limit, ip(same)).await.expect("one was given back"));
        }
    }

    #[tokio::test]
    async fn the_queue_of_one_address_holds_up_no_other() {
        let limit = Arc::new(ExchangeLimit::new(WAIT));
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE * 2 {
            let limit = Arc::clone(&limit);
            waiting.spawn(async move {
                let _place = limit.enter(ip("192.0.2.1")).await;
                std::future::pending::<()>().await;
            });
        }
        let is_full = || limit.all.available_permits() <= AT_ONCE - OF_ADDRESS;
        eventually("the address has all of its places", is_full).await;
        at_once(&limit, ip("192.0.2.2")).await.expect("a place");
        assert_eq!(limit.all.available_permits(), AT_ONCE - OF_ADDRESS, "the others wait outside");
    }

    #[tokio::test]
    async fn all_addresses_together_have_a_bound_and_none_is_remembered() {
        let limit = ExchangeLimit::new(WAIT);
        let mut places = Vec::new();
        for at in 0..AT_ONCE {
            places.push(at_once(&limit, ip(&format!("192.0.2.{at}"))).await.expect("a place"));
        }
        assert!(at_once(&limit, ip("198.51.100.7")).await.is_none(), "all places are taken");
        places.clear();
        let _place = at_once(&limit, ip("198.51.100.7")).await.expect("a place");
        assert_eq!(limit.by_address.lock().len(), 1);
    }
}
