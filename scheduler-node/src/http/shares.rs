//! What all callers share of a node, over the API and in the console.

use std::{sync::Arc, time::Instant};

use axum::{body::Body, http::HeaderMap};
use common::{access::Caller, limit::Limit, wire::Problem};
use prometheus::IntCounter;

use super::{Limits, body::UnreadBody, memory::BodyMemory, rate::CallerRates};

/// `Retry-After` of a request beyond a rate, in seconds: a bucket is full again after one.
const RATE_AGAIN_AFTER_S: u32 = 1;

/// The limits of requests, and what is taken of them at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    pub(super) limits: Limits,
    bodies: Arc<BodyMemory>,
    rates: Arc<CallerRates>,
    /// Requests refused because of their token's rate.
    beyond_rate: IntCounter,
}

impl Shares {
    pub(crate) fn new(limits: Limits, beyond_rate: IntCounter) -> Self {
        let bodies = Arc::new(BodyMemory::new(limits.bodies_bytes));
        Self { limits, bodies, rates: Arc::new(CallerRates::new(limits.requests_per_second)), beyond_rate }
    }

    /// Refuses a request beyond its caller's rate.
    pub(crate) fn check_rate(&self, caller: &Caller, now: Instant) -> Result<(), Problem> {
        if self.rates.has_room(caller, now) {
            return Ok(());
        }
        let problem = match caller.limits.requests_per_second {
            Some(most) => {
                self.beyond_rate.inc();
                let detail = format!(
                    "the token `{}` may send {most} requests a second to each node, but sent more",
                    caller.name
                );
                Problem::limited(detail).of_limit(Limit::TokenRequests, most.into(), None)
            }
            None => {
                let detail = "this caller sends more requests a second than `http.max_requests_per_second` allows";
                Problem::too_many(detail)
            }
        };
        Err(problem.retry_after(RATE_AGAIN_AFTER_S))
    }

    /// The body of a request from `caller`, which takes its memory from the caller's share.
    pub(crate) fn body(&self, headers: HeaderMap, body: Body, caller: Arc<str>) -> UnreadBody {
        UnreadBody { headers, body, memory: Arc::clone(&self.bodies), caller }
    }

    /// The bytes that all bodies have reserved.
    #[cfg(test)]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.bodies.reserved_bytes()
    }
}
