//! What was wrong with the tasks of a measurement. It decides how `stack bench` ends, beside how fast anything was.

use std::collections::HashSet;

use super::{drain::Seen, numbers::Numbers, report::Report};

/// Copies without a mark. Of the messages of one attempt, one at most may have no mark.
#[derive(Debug, Default)]
pub(super) struct Unmarked {
    /// Tasks whose first attempt came without a mark.
    first: Numbers,
    /// Further attempts that came without a mark.
    further: HashSet<(u64, u32)>,
    pub copies: u64,
}

impl Unmarked {
    pub(super) fn note(&mut self, seen: Seen) {
        if seen.marked {
            return;
        }
        let is_new = match seen.attempt {
            0 | 1 => self.first.insert(seen.serial),
            attempt => self.further.insert((seen.serial, attempt)),
        };
        self.copies += u64::from(!is_new);
    }
}

/// The tasks that have arrived, and what was wrong with their messages.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    pub tasks: Numbers,
    early: u64,
    doubled: u64,
    unmarked: Unmarked,
}

impl Arrived {
    pub(super) fn of(messages: &[Seen]) -> Self {
        let mut arrived = Self::default();
        for seen in messages {
            arrived.note(*seen);
        }
        arrived
    }

    /// Whether this is the first message of its task.
    pub(super) fn note(&mut self, seen: Seen) -> bool {
        let is_new = self.tasks.insert(seen.serial);
        self.early += u64::from(seen.at_us < seen.stamp_us);
        self.doubled += u64::from(!is_new);
        self.unmarked.note(seen);
        is_new
    }

    /// What was wrong, where so many accepted tasks have not arrived.
    pub(super) fn findings(&self, missing: u64) -> Findings {
        Findings { missing, early: self.early, doubled: self.doubled, unmarked_copies: self.unmarked.copies }
    }
}

/// How many tasks or messages had which fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Findings {
    pub missing: u64,
    pub early: u64,
    /// Messages beyond the first of their task, with a mark or without.
    pub doubled: u64,
    pub unmarked_copies: u64,
}

impl Findings {
    /// Tells the findings of a measurement in which nothing broke. A copy with a mark is then a goal that is missed: a
    /// busy machine causes some.
    pub(super) fn tell(self, part: &str, what: &str, report: &mut Report) {
        self.tell_all(part, what, Some(0.0), report);
    }

    /// Tells the findings around the end of a node, which may cause copies with a mark.
    pub(super) fn tell_around_a_fault(self, part: &str, report: &mut Report) {
        self.tell_all(part, "", None, report);
    }

    fn tell_all(self, part: &str, what: &str, doubled_at_most: Option<f64>, report: &mut Report) {
        for (finding, count) in
            [("missing", self.missing), ("early", self.early), ("copies without a mark", self.unmarked_copies)]
        {
            report.finding(part, &format!("{what}{finding}"), count);
        }
        report.limited(part, &format!("{what}delivered twice"), self.doubled as f64, "", doubled_at_most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(serial: u64, attempt: u32, marked: bool) -> Seen {
        Seen { at_us: 5, stamp_us: 5, serial, shard: None, attempt, due_ms: None, marked }
    }

    #[test]
    fn a_copy_stands_for_no_other_task_and_only_one_without_a_mark_breaks_a_promise() {
        let messages = [
            message(1, 1, false),
            message(2, 1, true),
            message(2, 1, false),
            message(3, 1, false),
            message(3, 1, false),
        ];
        let mut arrived = Arrived::of(&messages);
        assert_eq!(arrived.tasks.different(), 3);
        assert_eq!(arrived.findings(0), Findings { missing: 0, early: 0, doubled: 2, unmarked_copies: 1 });
        // A further attempt is no copy of the one before.
        arrived.note(Seen { at_us: 4, ..message(3, 2, false) });
        assert_eq!(arrived.findings(0), Findings { missing: 0, early: 1, doubled: 3, unmarked_copies: 1 });
    }
}
