//! The tasks of a soak: which are under way, and what their messages did wrong.

use std::collections::HashMap;

use integration_tests::clock::now_us;
use parking_lot::Mutex;

use super::{
    super::{drain::Seen, feed::Accepted, findings::Unmarked, numbers::Numbers},
    traffic::Fate,
};

/// A task that is later than this counts as missing. It is longer than a busy machine stands still.
const MISSING_AFTER_US: i64 = 30_000_000;

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub submitted: u64,
    /// Tasks with their last message.
    pub arrived: u64,
    /// Attempts after the first.
    pub retried: u64,
    /// Attempts that no failure asked for.
    pub unasked: u64,
    pub cancelled: u64,
    pub moved: u64,
    /// Cancels and moves that were refused or had no answer.
    pub unchanged: u64,
    pub early: u64,
    pub unmarked_copies: u64,
    pub marked: u64,
    pub after_cancel: u64,
}

/// The tool's memory of all tasks. It grows by three bits a task, and by some bytes for each retry.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    /// The due time of each accepted task whose last message has not come.
    open: HashMap<u64, i64>,
    /// Tasks whose last message has come.
    arrived: Numbers,
    cancelled: Numbers,
    unmarked: Unmarked,
    tally: Tally,
}

impl Book {
    /// A task may have arrived before its submission is answered.
    pub(super) fn accepted(&self, tasks: &[Accepted]) {
        let mut guard = self.0.lock();
        let pages = &mut *guard;
        for task in tasks {
            pages.tally.submitted += 1;
            if !pages.arrived.has(task.serial) {
                pages.open.insert(task.serial, task.due_us);
            }
        }
    }

    pub(super) fn arrived(&self, seen: Seen) {
        let mut guard = self.0.lock();
        let pages = &mut *guard;
        let noted_us = pages.open.get(&seen.serial).copied().unwrap_or(i64::MIN);
        let due_us = noted_us.max(seen.stamp_us).max(seen.due_ms.unwrap_or(0) * 1_000);
        pages.tally.early += u64::from(seen.at_us < due_us);
        pages.tally.after_cancel += u64::from(pages.cancelled.has(seen.serial));
        pages.tally.retried += u64::from(seen.attempt > 1);
        pages.tally.unasked += u64::from(seen.attempt > Fate::attempts(seen.serial));
        pages.tally.marked += u64::from(seen.marked);
        pages.unmarked.note(seen);
        pages.tally.unmarked_copies = pages.unmarked.copies;
        if Fate::fails(seen) {
            // The next attempt is due after this one.
            pages.open.entry(seen.serial).and_modify(|due_us| *due_us = seen.at_us);
        } else {
            pages.open.remove(&seen.serial);
            pages.tally.arrived += u64::from(pages.arrived.insert(seen.serial));
        }
    }

    pub(super) fn cancelled(&self, serial: u64) {
        let mut pages = self.0.lock();
        pages.open.remove(&serial);
        pages.cancelled.insert(serial);
        pages.tally.cancelled += 1;
        pages.tally.after_cancel += u64::from(pages.arrived.has(serial));
    }

    /// The cancel of a task has an unknown outcome: the task may come or not.
    pub(super) fn in_doubt(&self, serial: u64) {
        let mut pages = self.0.lock();
        pages.open.remove(&serial);
        pages.tally.unchanged += 1;
    }

    pub(super) fn moved(&self, serial: u64, to_us: i64) {
        let mut pages = self.0.lock();
        pages.open.entry(serial).and_modify(|due_us| *due_us = to_us);
        pages.tally.moved += 1;
    }

    pub(super) fn unchanged(&self) {
        self.0.lock().tally.unchanged += 1;
    }

    pub(super) fn tally(&self) -> Tally {
        self.0.lock().tally
    }

    /// The number of accepted tasks that have not come, although they were due long ago.
    pub(super) fn missing(&self) -> usize {
        let before_us = now_us() - MISSING_AFTER_US;
        self.0.lock().open.values().filter(|due_us| **due_us < before_us).count()
    }

    /// The number of accepted tasks that have not come.
    pub(super) fn open(&self) -> usize {
        self.0.lock().open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE_US: i64 = 1_000_000;

    fn message(serial: u64, attempt: u32, at_us: i64) -> Seen {
        Seen { at_us, stamp_us: DUE_US, serial, shard: None, attempt, due_ms: None, marked: false }
    }

    #[test]
    fn a_task_is_open_until_its_last_message_and_each_fault_is_counted() {
        let book = Book::default();
        let task = |serial| Accepted { serial, due_us: DUE_US };
        book.accepted(&[task(1), task(2), task(20), task(120)]);
        assert_eq!((book.open(), book.missing()), (4, 4));
        book.arrived(message(1, 1, DUE_US - 1));
        book.arrived(message(1, 1, DUE_US));
        book.arrived(Seen { marked: true, ..message(1, 1, DUE_US) });
        // The second task fails twice.
        for attempt in 1..=3 {
            assert_eq!(book.open(), 3);
            book.arrived(message(2, attempt, DUE_US));
        }
        book.cancelled(20);
        book.arrived(message(20, 1, DUE_US));
        book.moved(120, DUE_US + 1_000);
        book.arrived(message(120, 1, DUE_US));
        let tally = book.tally();
        assert_eq!((tally.submitted, tally.arrived, tally.retried, book.open()), (4, 4, 2, 0));
        assert_eq!((tally.early, tally.unmarked_copies, tally.marked, tally.after_cancel), (2, 1, 1, 1));
    }

    #[test]
    fn an_attempt_that_no_failure_asked_for_is_counted() {
        let book = Book::default();
        // The second task fails twice, the first one never.
        (1..=3).for_each(|attempt| book.arrived(message(2, attempt, DUE_US)));
        book.arrived(message(1, 1, DUE_US));
        assert_eq!(book.tally().unasked, 0);
        book.arrived(message(1, 2, DUE_US));
        book.arrived(message(2, 4, DUE_US));
        assert_eq!(book.tally().unasked, 2);
    }

    #[test]
    fn a_task_that_comes_before_its_submission_is_answered_is_not_missing() {
        let book = Book::default();
        book.arrived(message(1, 1, DUE_US));
        book.accepted(&[Accepted { serial: 1, due_us: DUE_US }]);
        assert_eq!((book.open(), book.tally().arrived), (0, 1));
    }
}
