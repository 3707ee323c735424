//! The places of bodies that wait for memory while they arrive.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// How many bodies of one connection may wait for memory at one time, in each request's extensions. In HTTP/2 one that
/// waits leaves bytes unread, which take their part of the window in which all bodies of the connection arrive. By
/// default there is no bound: a connection of HTTP/1.1 has one body at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitPlaces(Option<Arc<Semaphore>>);

/// The place of one body, free again on drop.
#[derive(Debug)]
pub(super) struct Place<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

impl WaitPlaces {
    pub(super) fn of_connection(places: usize) -> Self {
        Self(Some(Arc::new(Semaphore::new(places))))
    }

    /// Takes a place, if one is free.
    pub(super) fn take(&self) -> Option<Place<'_>> {
        match &self.0 {
            Some(places) => places.try_acquire().ok().map(|permit| Place { _permit: Some(permit) }),
            None => Some(Place { _permit: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_http2_has_so_many_places_and_one_of_http1_any_number() {
        let places = WaitPlaces::of_connection(2);
        let of_request = places.clone();
        let (first, second) = (places.take(), of_request.take());
        assert!(first.is_some() && second.is_some() && places.take().is_none());
        drop(first);
        assert!(of_request.take().is_some());
        let unbounded = WaitPlaces::default();
        let taken: Vec<_> = (0..100).map(|_| unbounded.take()).collect();
        assert!(taken.iter().all(Option::is_some));
    }
}
