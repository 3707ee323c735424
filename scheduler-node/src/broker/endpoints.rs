//! Chooses the broker to connect to next, among those that the URL names.

use std::time::{Duration, Instant};

use super::login::Login;

/// The age at which a connection is settled: a later failure starts again at the shortest wait.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(5);
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The brokers of one cluster, tried in turn. Each has a back-off of its own, so that a dead one delays no attempt
/// at its neighbours.
pub(super) struct Endpoints {
    each: Vec<Endpoint>,
    last: usize,
}

struct Endpoint {
    login: Login,
    not_before: Instant,
    wait: Duration,
    /// The last reported failure, which is logged once however often it repeats.
    complaint: Option<String>,
}

impl Endpoints {
    pub(super) fn new(login: &Login, now: Instant) -> Self {
        let endpoint = |login| Endpoint { login, not_before: now, wait: FIRST_WAIT, complaint: None };
        let each: Vec<_> = login.each().into_iter().map(endpoint).collect();
        // The first attempt goes to the first one.
        Self { last: each.len() - 1, each }
    }

    /// Turns to the next broker: the one that may be tried first, of equals the next in the list. Returns the time
    /// before which it is not tried.
    pub(super) fn turn(&mut self, now: Instant) -> Instant {
        let count = self.each.len();
        let next = (1..=count).map(|step| (self.last + step) % count);
        self.last = next.min_by_key(|index| self.each[*index].not_before.max(now)).unwrap_or(self.last);
        self.each[self.last].not_before
    }

    pub(super) fn login(&self) -> &Login {
        &self.each[self.last].login
    }

    /// Whether another broker may be tried at once.
    pub(super) fn has_another(&self, now: Instant) -> bool {
        self.each.iter().any(|endpoint| endpoint.not_before <= now)
    }

    /// The connection was lost, or did not open. `jitter` (0.5 to 1) keeps nodes from coming all at once.
    pub(super) fn failed(&mut self, now: Instant, jitter: f64) {
        let endpoint = &mut self.each[self.last];
        endpoint.not_before = now + endpoint.wait.mul_f64(jitter);
        endpoint.wait = (endpoint.wait * 2).min(LONGEST_WAIT);
    }

    /// The connection was good for long enough: a later failure starts again at the shortest wait.
    pub(super) fn settled(&mut self) {
        self.each[self.last].wait = FIRST_WAIT;
    }

    pub(super) fn connected(&mut self) {
        self.each[self.last].complaint = None;
    }

    /// Whether this failure of the broker is another than its last one.
    pub(super) fn is_news(&mut self, reason: &str) -> bool {
        let complaint = &mut self.each[self.last].complaint;
        let is_news = complaint.as_deref() != Some(reason);
        *complaint = Some(reason.to_owned());
        is_news
    }

    /// The reason with the name of the broker, if there are several.
    pub(super) fn named(&self, reason: String) -> String {
        if self.each.len() > 1 { format!("{}: {reason}", self.login().place()) } else { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(now: Instant) -> Endpoints {
        Endpoints::new(&Login::new("amqp://guest:guest@a:1,b:2,c:3/%2f".to_owned().into()), now)
    }

    #[test]
    fn brokers_are_tried_in_turn_and_a_dead_one_delays_only_itself() {
        let now = Instant::now();
        let mut endpoints = endpoints(now);
        for place in ["a:1", "b:2", "c:3"] {
            assert!(endpoints.has_another(now));
            assert!(endpoints.turn(now) <= now, "no broker waits for another");
            assert_eq!(endpoints.login().place(), place);
            endpoints.failed(now, 1.0);
        }
        assert!(!endpoints.has_another(now));
        assert_eq!(endpoints.turn(now), now + FIRST_WAIT);
        assert_eq!(endpoints.login().place(), "a:1");
        endpoints.failed(now, 1.0);
        assert_eq!(endpoints.turn(now), now + FIRST_WAIT, "the others have not waited longer");
        assert_eq!(endpoints.login().place(), "b:2");
        // The second failure of `a` made it wait longer than its neighbours.
        endpoints.settled();
        endpoints.failed(now, 1.0);
        endpoints.turn(now);
        endpoints.failed(now, 1.0);
        endpoints.turn(now);
        assert_eq!(endpoints.login().place(), "b:2");
    }

    #[test]
    fn the_wait_of_a_broker_doubles_up_to_its_limit() {
        let now = Instant::now();
        let mut endpoints = Endpoints::new(&Login::new("amqp://a/%2f".to_owned().into()), now);
        for wait_ms in [200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            endpoints.turn(now);
            endpoints.failed(now, 1.0);
            assert_eq!(endpoints.turn(now), now + Duration::from_millis(wait_ms));
        }
    }
}
