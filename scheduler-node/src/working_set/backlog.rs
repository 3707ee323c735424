//! Due messages that wait to be sent. While there are any, writes that no delivery waits for give way: they would take
//! processors and disks from the crowd that is due. While there are many, claims of overdue tasks give way too.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::clock;

/// The longest time for which other work gives way to one backlog. One that lasts longer is no crowd but the usual
/// load.
const LONGEST: Duration = Duration::from_secs(2);

/// So many messages keep the broker busy for longer than the next claims take.
const MANY: usize = 2_048;

#[derive(Debug, Default)]
pub struct Backlog(watch::Sender<Waiting>);

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
        self.0.send_if_modified(|waiting| {
            let changes = waiting.since.is_some() != are_due;
            if changes {
                waiting.since = are_due.then_some(now);
            }
            waiting.messages = messages;
            changes
        });
    }

    /// Whether so many messages wait, and some of them are due, that overdue tasks would only wait with them.
    pub fn delays_claims(&self, now: Instant) -> bool {
        let Waiting { since, messages } = *self.0.borrow();
        messages >= MANY && since.is_some_and(|since| now.saturating_duration_since(since) < LONGEST)
    }

    /// Returns when all due messages are sent, or when they have waited for so long that other work may go on.
    pub async fn give_way(&self) {
        let mut since = self.0.subscribe();
        let Some(began) = since.borrow_and_update().since else { return };
        let rest = (began + LONGEST).saturating_duration_since(clock::instant());
        // Either end of the wait is one of the two.
        let _ = tokio::time::timeout(rest, since.wait_for(|waiting| waiting.since.is_none())).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn other_work_gives_way_until_all_is_sent_and_not_for_ever() {
        let backlog = Backlog::default();
        assert!(backlog.give_way().now_or_never().is_some(), "nothing waits");
        let began = clock::instant();
        backlog.note(true, 1, began);
        {
            let mut way = std::pin::pin!(backlog.give_way());
            assert!(way.as_mut().now_or_never().is_none());
            backlog.note(false, 0, clock::instant());
            assert!(way.now_or_never().is_some(), "all is sent");
        }
        let began = clock::instant();
        backlog.note(true, 1, began);
        backlog.give_way().await;
        assert!(clock::instant() - began >= LONGEST);
        assert!(backlog.give_way().now_or_never().is_some(), "this backlog has had its time");
    }

    #[test]
    fn many_messages_delay_claims_while_some_are_due_and_not_for_ever() {
        let (backlog, now) = (Backlog::default(), clock::instant());
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
