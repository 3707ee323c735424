//! The moments in which many tasks are late together: a stall of a store shows as one of them.

/// Due instants are put into steps of this length. A moment is a run of steps, each with a task that came later than
/// a step after it was due.
pub(super) const STEP_US: u64 = 20_000;

/// The latest task of each step.
#[derive(Debug, Default)]
pub(super) struct Moments(Vec<u64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// When its first task was due, from the beginning of the measurement.
    pub from_us: u64,
    pub length_us: u64,
    /// The lateness of its latest task.
    pub latest_us: u64,
}

impl Moments {
    /// Notes a task that was due so long after the beginning.
    pub(super) fn note(&mut self, after_us: u64, late_us: u64) {
        let step = (after_us / STEP_US) as usize;
        if self.0.len() <= step {
            self.0.resize(step + 1, 0);
        }
        self.0[step] = self.0[step].max(late_us);
    }

    /// All of them, that of the latest task first.
    pub(super) fn worst(&self) -> Vec<Moment> {
        let mut moments: Vec<Moment> = Vec::new();
        for (from_us, late_us) in (0..).step_by(STEP_US as usize).zip(&self.0).filter(|(_, late)| **late > STEP_US) {
            match moments.last_mut() {
                Some(last) if last.from_us + last.length_us == from_us => {
                    last.length_us += STEP_US;
                    last.latest_us = last.latest_us.max(*late_us);
                }
                _ => moments.push(Moment { from_us, length_us: STEP_US, latest_us: *late_us }),
            }
        }
        moments.sort_by_key(|moment| std::cmp::Reverse(moment.latest_us));
        moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_tasks_whose_instants_are_close_together_are_one_moment() {
        let mut moments = Moments::default();
        for (after_us, late_us) in [(0, 900), (20_000, 45_000), (39_999, 30_000), (41_000, 21_000), (90_000, 60_000)] {
            moments.note(after_us, late_us);
        }
        assert_eq!(
            moments.worst(),
            [
                Moment { from_us: 80_000, length_us: STEP_US, latest_us: 60_000 },
                Moment { from_us: 20_000, length_us: 2 * STEP_US, latest_us: 45_000 },
            ]
        );
    }
}
