//! Due messages that wait to be sent. While there are any, writes of confirms give way: they would take processors and
//! disks from the crowd that is due. While there are many, claims of overdue tasks give way too.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The longest time for which other work gives way to one backlog. One that lasts longer is no crowd but the usual
/// load.
const LONGEST: Duration = Duration::from_secs(2);

/// So many messages keep the broker busy for longer than the next claims take.
const MANY: usize = 2_048;

#[derive(Debug, Default)]
pub struct Backlog(Mutex<Waiting>);

#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    /// Since when due messages have been waiting.
    since: Option<Instant>,
    /// How many messages wait, due or not.
    messages: usize,
}

impl Backlog {
    /// Notes whether due messages wait to be sent, and how many others with them.
    pub fn note(&self, are_due: bool, messages: usize, now: Instant) {
        let mut waiting = self.0.lock();
        let since = are_due.then(|| waiting.since.unwrap_or(now));
        *waiting = Waiting { since, messages };
    }

    /// Whether due messages wait, so that writes which can wait would only delay them.
    pub fn delays_writes(&self, now: Instant) -> bool {
        self.0.lock().since.is_some_and(|since| now.saturating_duration_since(since) < LONGEST)
    }

    /// Whether so many messages wait, and some of them are due, that overdue tasks would only wait with them.
    pub fn delays_claims(&self, now: Instant) -> bool {
        self.delays_writes(now) && self.0.lock().messages >= MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_messages_delay_writes_until_they_are_sent_and_not_for_ever() {
        let (backlog, now) = (Backlog::default(), Instant::now());
        assert!(!backlog.delays_writes(now), "nothing waits");
        backlog.note(true, 1, now);
        backlog.note(true, 2, now + LONGEST / 2);
        assert!(backlog.delays_writes(now + LONGEST / 2));
        assert!(!backlog.delays_writes(now + LONGEST), "this backlog has had its time");
        backlog.note(false, 2, now);
        assert!(!backlog.delays_writes(now), "those that wait are not due");
    }

    #[test]
    fn many_messages_delay_claims_while_some_are_due_and_not_for_ever() {
        let (backlog, now) = (Backlog::default(), Instant::now());
        assert!(!backlog.delays_claims(now));
        backlog.note(false, MANY, now);
        assert!(!backlog.delays_claims(now), "none is due");
        backlog.note(true, MANY - 1, now);
        assert!(!backlog.delays_claims(now));
        backlog.note(true, MANY, now);
        assert!(backlog.delays_claims(now));
        assert!(!backlog.delays_claims(now + LONGEST), "this is the usual load");
    }
}
