//! The state of a queue between two looks: where its walks ended, and what else the next look has to know.

use common::{
    delay::PartSize,
    priority::{LEVELS, Levels},
    task::rate::Bucket,
    time::UnixMicros,
};

use super::{doubt::Doubt, failing::Failing};
use crate::store::lane::{LaneEnd, LaneEnds, Walks};

/// The state of a queue between two looks.
#[derive(Clone, Debug, Default)]
pub struct QueueProgress {
    pub(super) ends: LaneEnds,
    /// For each priority, where a walk began that is still on its way round and has found no task to start.
    pub(super) rounds: [Option<LaneStart>; LEVELS],
    /// Only for a queue with a rate.
    pub(super) bucket: Option<Bucket>,
    /// A pick with an unknown outcome; the queue rests until it is over.
    pub(super) doubt: Option<Doubt>,
    /// When the first of the tasks comes due that the last walks found too early to be started.
    pub(super) comes_due: Option<UnixMicros>,
    /// The most tasks of a pick.
    pub(super) size: PartSize,
    /// The looks that failed.
    pub(super) failing: Failing,
}

/// The lane before which a walk began. `None`: the first lane of all.
pub(super) type LaneStart = Option<LaneEnd>;

impl QueueProgress {
    pub(super) fn took(&mut self, started: usize) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(started);
        }
    }

    /// Notes where walks ended. A walk that used up its steps and found nothing goes on at once, until it comes
    /// round to where it began.
    pub(super) fn walked(&mut self, walks: Walks, wanted: Levels, taken: Levels) {
        self.comes_due = self.comes_due.into_iter().chain(walks.comes_due).min();
        for (level, end) in walks.ends.into_iter().enumerate().filter(|(level, _)| wanted[*level] > 0) {
            let before = self.ends[level].clone();
            let after = end.or_else(|| before.clone());
            let is_on_its_way = walks.cut[level] && taken[level] == 0;
            self.rounds[level] = match self.rounds[level].take() {
                _ if !is_on_its_way => None,
                Some(start) if passes(&before, &start, &after) => None,
                Some(start) => Some(start),
                None => Some(before),
            };
            self.ends[level] = after;
        }
    }
}

/// Whether a walk from `before` to `after`, less than once round, passes `start`.
fn passes(before: &LaneStart, start: &LaneStart, after: &LaneStart) -> bool {
    if before < after { before < start && start <= after } else { before < start || start <= after }
}
