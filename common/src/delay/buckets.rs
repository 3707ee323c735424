//! How many tasks to claim come due, in intervals of some milliseconds. A look at a crowd asks for a few hundred counts
//! where it would walk tens of thousands of entries.

use std::collections::BTreeMap;

use crate::time::UnixMicros;

/// The length of an interval. The lead of a crowd is longer by so much at most, which is little beside the least lead.
const BUCKET_MICROS: i64 = 8_000;

/// The tasks of each interval that has some, by its number. Intervals of the distant past are counted together.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets(BTreeMap<i64, Bucket>);

/// The tasks of an interval, or of all up to the one with the number `last`.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    last: i64,
    tasks: usize,
}

impl Buckets {
    pub(super) fn add(&mut self, due: UnixMicros) {
        let number = number(due);
        if let Some((_, bucket)) = self.of(number) {
            bucket.tasks += 1;
            return;
        }
        self.0.insert(number, Bucket { last: number, tasks: 1 });
    }

    pub(super) fn remove(&mut self, due: UnixMicros) {
        let (first, bucket) = self.of(number(due)).expect("each task to claim is counted");
        bucket.tasks -= 1;
        if bucket.tasks == 0 {
            self.0.remove(&first);
        }
    }

    /// Counts together what is due before `moment`. Otherwise a million overdue tasks of some hours would have as many
    /// counts.
    pub(super) fn join_before(&mut self, moment: UnixMicros) {
        let end = number(moment);
        if self.0.range(..end).nth(1).is_none() {
            return;
        }
        let later = self.0.split_off(&end);
        let joined = std::mem::replace(&mut self.0, later);
        let tasks = joined.values().map(|bucket| bucket.tasks).sum();
        if let (Some(first), Some(bucket)) = (joined.keys().next(), joined.values().next_back()) {
            self.0.insert(*first, Bucket { last: bucket.last, tasks });
        }
    }

    /// The moment at which each interval begins, and its tasks, earliest first. That of `until` is the last one. Of
    /// intervals that are counted together, one task counts for the first, and all others for the last: such tasks
    /// rarely come due at once.
    pub(super) fn until(&self, until: UnixMicros) -> impl Iterator<Item = (UnixMicros, usize)> {
        self.0.range(..=number(until)).flat_map(|(first, bucket)| {
            let at_first = if *first == bucket.last { bucket.tasks } else { 1 };
            let counts = [(start(*first), at_first), (start(bucket.last), bucket.tasks - at_first)];
            counts.into_iter().filter(|(_, tasks)| *tasks > 0)
        })
    }

    /// How many counts there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bucket that counts the interval of this number, and the number of its first one.
    fn of(&mut self, number: i64) -> Option<(i64, &mut Bucket)> {
        let (first, bucket) = self.0.range_mut(..=number).next_back()?;
        (number <= bucket.last).then_some((*first, bucket))
    }
}

const fn number(due: UnixMicros) -> i64 {
    due.micros().div_euclid(BUCKET_MICROS)
}

const fn start(number: i64) -> UnixMicros {
    UnixMicros::new(number * BUCKET_MICROS)
}
