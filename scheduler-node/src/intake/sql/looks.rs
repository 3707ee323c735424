//! When an inbox is looked at again.

use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// The interval between two looks at the inbox when neither a notification nor a glance arrives, and between two
/// updates of its gauges.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The time between a pass that found rows, or that a notification asked for, and the next look; a look that finds
/// nothing doubles it. Submissions that come close after one another share a notification (`duetime.notify_inbox`), so
/// some may be committed after that pass: a transaction is found late by no more than it went on after its submission.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(40);

/// So many rows in one pass show that rows come quickly. The statements of a pass for fewer cost the database more than
/// the rows do.
pub(super) const MANY: usize = 32;

/// What a pass leaves in the inbox, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing, or rows that wait for something.
    Nothing,
    /// Perhaps rows that were submitted meanwhile.
    Fresh,
    /// The same after a pass of many rows: more come quickly.
    FreshAfterMany,
    /// Perhaps rows beyond the batch, beyond the bytes of one read, or of shards that this pass left out.
    More,
}

impl Left {
    /// The time to the next look, when the last one was `pause` after the one before it, and its pass took `took`.
    pub(super) fn next_look(self, pause: Duration, took: Duration) -> Duration {
        match self {
            Self::Nothing => (pause * 2).min(LOOK_EVERY),
            Self::Fresh | Self::More => LOOK_AGAIN,
            // Passes begin `LOOK_AGAIN` apart, and long ones leave the database some rest.
            Self::FreshAfterMany => LOOK_AGAIN.saturating_sub(took).max(LOOK_AGAIN / 4),
        }
    }

    /// Waits for `pause`, or for something that calls for a look sooner. Returns the pause from which the next one
    /// follows. While rows come quickly, nothing but `stop` does: each notification would begin a pass for few of them.
    /// One that comes meanwhile counts after the next pass.
    pub(super) async fn until_look<T>(
        self,
        pause: Duration,
        inbox: &Notify,
        glances: &mut watch::Receiver<T>,
        stop: &CancellationToken,
    ) -> Duration {
        let is_called = self != Self::FreshAfterMany;
        tokio::select! {
            () = inbox.notified(), if is_called => return LOOK_AGAIN / 2,
            () = tokio::time::sleep(pause) => {}
            Ok(()) = glances.changed(), if is_called => {}
            () = stop.cancelled() => {}
        }
        pause
    }
}
