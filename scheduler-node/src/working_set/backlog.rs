//! Due messages that wait to be sent. While there are any, writes that no delivery waits for give way: they would take
//! processors and disks from the crowd that is due.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::clock;

/// The longest time for which other work gives way to one backlog. One that lasts longer is no crowd but the usual
/// load.
const LONGEST: Duration = Duration::from_secs(2);

/// Since when due messages have been waiting.
#[derive(Debug)]
pub struct Backlog(watch::Sender<Option<Instant>>);

impl Default for Backlog {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Backlog {
    /// Notes whether due messages wait to be sent.
    pub fn note(&self, waits: bool, now: Instant) {
        self.0.send_if_modified(|since| {
            let changes = since.is_some() != waits;
            if changes {
                *since = waits.then_some(now);
            }
            changes
        });
    }

    /// Returns when all due messages are sent, or when they have waited for so long that other work may go on.
    pub async fn give_way(&self) {
        let mut since = self.0.subscribe();
        let Some(began) = *since.borrow_and_update() else { return };
        let rest = (began + LONGEST).saturating_duration_since(clock::instant());
        // Either end of the wait is one of the two.
        let _ = tokio::time::timeout(rest, since.wait_for(Option::is_none)).await;
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
        backlog.note(true, began);
        {
            let mut way = std::pin::pin!(backlog.give_way());
            assert!(way.as_mut().now_or_never().is_none());
            backlog.note(false, clock::instant());
            assert!(way.now_or_never().is_some(), "all is sent");
        }
        let began = clock::instant();
        backlog.note(true, began);
        backlog.give_way().await;
        assert!(clock::instant() - began >= LONGEST);
        assert!(backlog.give_way().now_or_never().is_some(), "this backlog has had its time");
    }
}
