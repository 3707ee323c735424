//! How far a move is, and when it may end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::UnixMicros;

crate::labelled! {
    /// The parts of a move, in their order.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MovePhase {
        /// It waits for its turn.
        #[default]
        Planned = "planned",
        /// The target receives a copy and what changes meanwhile. The source has the shard.
        Copying = "copying",
        /// The shard passes from the source to the target.
        Cutting = "cutting",
        /// The target has the shard. The source deletes its rows.
        Cleaning = "cleaning",
    }
}

impl MovePhase {
    /// Whether the move can still be called off.
    pub const fn is_before_the_cut(self) -> bool {
        matches!(self, Self::Planned | Self::Copying)
    }
}

/// The copied part in percent. `None`: the number of rows is not known yet. The total is an estimate, so a copy that
/// goes on stays below 100.
pub fn percent(step: MovePhase, copied: i64, total: Option<i64>) -> Option<u8> {
    if !step.is_before_the_cut() {
        return Some(100);
    }
    let total = total?;
    if total <= 0 {
        return Some(if copied > 0 { 99 } else { 0 });
    }
    let percent = i128::from(copied.max(0)) * 100 / i128::from(total);
    u8::try_from(percent.min(99)).ok()
}

/// The time that the rest of the copy takes if it goes on as it did. `None`: nothing was copied yet.
pub fn time_left(
    step: MovePhase,
    started_at: Option<UnixMicros>,
    now: UnixMicros,
    copied: i64,
    total: Option<i64>,
) -> Option<Duration> {
    let (started_at, total) = (started_at?, total?);
    if step != MovePhase::Copying || copied <= 0 {
        return None;
    }
    let elapsed_us = i128::from(now.micros().saturating_sub(started_at.micros()).max(0));
    let left_us = elapsed_us * i128::from(total.saturating_sub(copied).max(0)) / i128::from(copied);
    Some(Duration::from_micros(u64::try_from(left_us).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use MovePhase::{Cleaning, Copying, Cutting, Planned};

    #[test]
    fn a_copy_that_goes_on_is_never_shown_as_done() {
        assert_eq!(percent(Planned, 0, None), None);
        assert_eq!(percent(Copying, 50, Some(200)), Some(25));
        assert_eq!(percent(Copying, 250, Some(200)), Some(99), "the total is an estimate");
        assert_eq!(percent(Copying, 1, Some(0)), Some(99));
        assert_eq!(percent(Copying, 0, Some(0)), Some(0));
        assert_eq!(percent(Copying, i64::MAX, Some(i64::MAX)), Some(99));
        assert_eq!((percent(Cutting, 0, None), percent(Cleaning, 0, None)), (Some(100), Some(100)));
    }

    #[test]
    fn the_rest_takes_as_long_as_the_part_before_in_proportion() {
        let at = |seconds: i64| UnixMicros::new(seconds * 1_000_000);
        let left = |step, copied, total| time_left(step, Some(at(10)), at(40), copied, total);
        assert_eq!(left(Copying, 100, Some(400)), Some(Duration::from_secs(90)));
        assert_eq!(left(Copying, 500, Some(400)), Some(Duration::ZERO));
        assert_eq!(left(Copying, 0, Some(400)), None);
        assert_eq!(left(Copying, 1, None), None);
        assert_eq!(left(Cutting, 100, Some(400)), None);
        assert_eq!(time_left(Copying, None, at(1), 1, Some(2)), None);
        assert_eq!(time_left(Copying, Some(at(50)), at(40), 1, Some(2)), Some(Duration::ZERO), "clocks differ");
        assert!(time_left(Copying, Some(UnixMicros::FIRST), UnixMicros::new(i64::MAX), 1, Some(i64::MAX)).is_some());
    }

    #[test]
    fn only_the_first_two_steps_can_be_called_off() {
        assert_eq!(MovePhase::ALL.map(MovePhase::is_before_the_cut), [true, true, false, false]);
    }
}
