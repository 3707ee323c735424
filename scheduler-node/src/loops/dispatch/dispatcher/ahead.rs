//! How far ahead of their moments entries leave the heap, and when it is looked at again.

use std::time::{Duration, Instant};

use common::{delay::turn::CROWD, time::UnixMicros};

use super::{Dispatcher, LONGEST_SLEEP};
use crate::{clock, store::Statements};

/// The looks at the heap within the longest lead, while its head is that close.
const LOOKS_AHEAD: u32 = 4;

/// How far ahead of their moments entries leave the heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Tasks to claim.
    pub(super) claims: Duration,
    /// The first of them, if it is due within the longest lead.
    pub(super) first_claim: Option<UnixMicros>,
    /// Whether so many tasks are to be claimed within that time that other queues' tasks wait for them.
    pub(super) is_crowd: bool,
    /// Deadlines wait for their moments once they have left the heap, and hold a place among the claims meanwhile.
    pub(super) others: Duration,
}

impl Ahead {
    /// A claim begins when its first task is this close. So tasks of a stride share it.
    pub(super) fn begin(&self) -> Duration {
        self.claims.saturating_sub(self.others)
    }
}

impl<S: Statements> Dispatcher<S> {
    /// When the heap must be looked at again, if nothing changes in it.
    pub(super) fn next_look(&self, now: Instant, ahead: &Ahead) -> Instant {
        let clock = self.claims.database.sql.clock();
        let head = self.claims.database.owned_shards.next_due().and_then(|due| clock.instant_of(due));
        let Some(head) = head else { return now + LONGEST_SLEEP };
        let most_ahead = self.lead.lock().longest();
        if let Some(looked_at) = head.checked_sub(most_ahead).filter(|looked_at| *looked_at > now) {
            return looked_at;
        }
        let first_claim = ahead.first_claim.and_then(|due| clock.instant_of(due));
        let claim_at = first_claim.and_then(|due| due.checked_sub(ahead.begin()));
        // A crowd may gather behind the head meanwhile, without a notice.
        let look_at = now + most_ahead / LOOKS_AHEAD;
        head.checked_sub(ahead.others).unwrap_or(head).min(claim_at.unwrap_or(look_at)).min(look_at)
    }

    /// How far ahead of their moments entries leave the heap now; `at` is the database's time.
    pub(super) fn ahead(&self, at: UnixMicros) -> Ahead {
        let now = clock::instant();
        let lead = self.lead.lock().clone();
        let room = self.room(usize::MAX).most;
        let counts = self.claims.database.owned_shards.claim_counts(at.plus(lead.longest()), room.max(CROWD + 1));
        let first_claim = counts.first().map(|(due, _)| *due);
        let claims = lead.ahead_of(counts.iter().copied(), room, now);
        let near = counts.iter().take_while(|(due, _)| *due <= at.plus(claims));
        let is_crowd = near.map(|(_, tasks)| tasks).sum::<usize>() > CROWD;
        let ahead = Ahead { others: lead.stride(now), claims, first_claim, is_crowd };
        self.claims
            .metrics
            .claim_ahead_s
            .with_label_values(&[self.claims.database.name().as_str()])
            .set(ahead.claims.as_secs_f64());
        ahead
    }
}
