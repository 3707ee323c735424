//! How many tasks to claim come due, in intervals of some milliseconds. A look at a crowd asks for a few hundred counts
//! where it would walk tens of thousands of entries.

use std::collections::BTreeMap;

use crate::time::UnixMicros;

/// The length of an interval. The lead of a crowd is longer by so much at most, which is little beside the least lead.
const BUCKET_MICROS: i64 = 8_000;

/// The tasks of each interval that has some, by its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets(BTreeMap<i64, usize>);

impl Buckets {
    pub(super) fn add(&mut self, due: UnixMicros) {
        *self.0.entry(number(due)).or_default() += 1;
    }

    pub(super) fn remove(&mut self, due: UnixMicros) {
        let number = number(due);
        let tasks = self.0.get_mut(&number).expect("each task to claim is counted");
        *tasks -= 1;
        if *tasks == 0 {
            self.0.remove(&number);
        }
    }

    /// The moment at which the first interval begins that has a task.
    pub(super) fn first(&self) -> Option<UnixMicros> {
        self.0.keys().next().map(|number| start(*number))
    }

    /// The moment at which each interval begins, and its tasks, earliest first. That of `until` is the last one.
    pub(super) fn until(&self, until: UnixMicros) -> impl Iterator<Item = (UnixMicros, usize)> {
        self.0.range(..=number(until)).map(|(number, tasks)| (start(*number), *tasks))
    }
}

const fn number(due: UnixMicros) -> i64 {
    due.micros().div_euclid(BUCKET_MICROS)
}

const fn start(number: i64) -> UnixMicros {
    UnixMicros::new(number * BUCKET_MICROS)
}
