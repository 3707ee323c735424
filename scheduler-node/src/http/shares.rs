//! What all callers share of a node, over the API and in the console.

use std::{net::IpAddr, sync::Arc, time::Instant};

use axum::{
    body::Body,
    http::{HeaderMap, request::Parts},
    response::Response,
};
use common::{access::Caller, limit::Limit, wire::Problem};
use prometheus::IntCounter;

use super::{
    Limits, answers,
    body::UnreadBody,
    memory::{BodyMemory, Reservation},
    places::WaitPlaces,
    rate::CallerRates,
};
use crate::address;

/// `Retry-After` of a request beyond a rate, in seconds: a bucket is full again after one.
const RATE_AGAIN_AFTER_S: u32 = 1;

/// The limits of requests, and what is taken of them at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    pub(super) limits: Limits,
    bodies: Arc<BodyMemory>,
    /// The forms of sign-ins, whose senders are strangers.
    sign_ins: Arc<BodyMemory>,
    answers: Arc<BodyMemory>,
    rates: Arc<CallerRates>,
    /// Requests refused because of their token's rate.
    beyond_rate: IntCounter,
}

impl Shares {
    pub(crate) fn new(limits: Limits, beyond_rate: IntCounter) -> Self {
        let bodies = Arc::new(BodyMemory::new(limits.bodies_bytes));
        let sign_ins = Arc::new(BodyMemory::of_sign_ins());
        let answers = Arc::new(BodyMemory::new(limits.answers_bytes));
        let rates = Arc::new(CallerRates::new(limits.requests_per_second));
        Self { limits, bodies, sign_ins, answers, rates, beyond_rate }
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
    pub(crate) fn body(&self, request: Parts, body: Body, caller: Arc<str>) -> UnreadBody {
        let (memory, answers) = (Arc::clone(&self.bodies), Some(Arc::clone(&self.answers)));
        let places = request.extensions.get::<WaitPlaces>().cloned().unwrap_or_default();
        UnreadBody { headers: request.headers, body, memory, answers, caller, places }
    }

    /// Refuses a request while the caller has not taken the answers to others.
    pub(crate) fn check_answers(&self, caller: &Caller) -> Result<(), Problem> {
        answers::check(&self.answers, &caller.name)
    }

    /// Reserves memory from the caller's share for the answer, until it has gone out.
    pub(super) fn reserve_answer(&self, caller: &Caller, may_refuse: bool, answer: Response) -> Response {
        answers::reserve_answer(&self.answers, caller, may_refuse, answer)
    }

    /// Reserves the memory of an export, which its answer keeps until it has gone out, or refuses the export.
    pub(crate) fn reserve_export(&self, caller: &Caller) -> Result<Reservation, Problem> {
        answers::reserve_export(&self.answers, caller)
    }

    /// The form of a stranger who signs in, which takes its memory from the share of the address.
    pub(crate) fn sign_in(&self, headers: HeaderMap, body: Body, from: Option<IpAddr>) -> UnreadBody {
        let caller = from.map_or_else(|| Caller::ANONYMOUS.into(), |from| address::holder(from).to_string().into());
        let (memory, places) = (Arc::clone(&self.sign_ins), WaitPlaces::default());
        UnreadBody { headers, body, memory, answers: None, caller, places }
    }

    /// Shares whose bodies wait for memory as long as it takes.
    #[cfg(test)]
    pub(super) fn patient(limits: Limits, beyond_rate: IntCounter) -> Self {
        Self { bodies: Arc::new(BodyMemory::patient(limits.bodies_bytes)), ..Self::new(limits, beyond_rate) }
    }

    /// Reserves memory of the bodies without a wait, as if the caller had sent one.
    #[cfg(test)]
    pub(super) fn reserve_body(&self, caller: &str, bytes: usize) -> Reservation {
        Reservation::at_once(&self.bodies, caller.into(), bytes, true).expect("room")
    }

    /// The bytes that all bodies have reserved.
    #[cfg(test)]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.bodies.reserved_bytes() + self.sign_ins.reserved_bytes()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};
    use futures::{FutureExt, StreamExt, stream};

    use super::*;

    /// As the console allows it.
    const FORM_BYTES: usize = 8 << 10;
    /// What the share of one address holds of them.
    const HELD_FORMS: usize = 512;

    #[tokio::test]
    async fn one_address_leaves_memory_for_the_sign_ins_of_others() {
        let refused = IntCounter::new("beyond_rate", "none").expect("a counter");
        let shares = Shares::new(Limits::of_payload(1_000, 0), refused);
        let from = |address: &str| Some(address.parse().expect("an address"));
        let announced = HeaderMap::from_iter([(header::CONTENT_LENGTH, HeaderValue::from(FORM_BYTES))]);
        let body = |nth: usize| {
            let first = stream::iter([Ok::<_, std::convert::Infallible>("t")]);
            // What is left of a refused form is read, so those end.
            if nth < HELD_FORMS { Body::from_stream(first.chain(stream::pending())) } else { Body::from_stream(first) }
        };
        let mut waiting: Vec<_> = (0..2_000)
            .map(|nth| {
                let from = from(&format!("2001:db8::{nth:x}"));
                Box::pin(shares.sign_in(announced.clone(), body(nth), from).form(FORM_BYTES))
            })
            .collect();
        let refused = waiting.iter_mut().filter_map(FutureExt::now_or_never);
        let statuses: Vec<u16> = refused.map(|form| form.expect_err("refused").status).collect();
        // The next ones do not wait for room.
        assert_eq!(statuses, [429; 2_000 - HELD_FORMS]);
        let other = shares.sign_in(HeaderMap::new(), Body::from("token=x"), from("2001:db8:0:1::1"));
        let form = other.form(FORM_BYTES).now_or_never().expect("at once").expect("read");
        assert_eq!(form.as_str(), "token=x");
        assert_eq!(shares.bodies.reserved_bytes(), 0, "forms of strangers take nothing from the bodies");
    }
}
