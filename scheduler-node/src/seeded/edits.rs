//! Bugs in SQL: the text of a statement without one of its guards.

use std::{collections::BTreeMap, sync::LazyLock};

use parking_lot::Mutex;

use super::Bug;

/// The change that a bug makes in one statement.
pub struct Edit {
    pub bug: Bug,
    /// The statement's file, without `.sql`.
    pub statement: &'static str,
    /// Stands in the statement exactly once.
    pub guard: &'static str,
    pub instead: &'static str,
}

const fn edit(bug: Bug, statement: &'static str, guard: &'static str, instead: &'static str) -> Edit {
    Edit { bug, statement, guard, instead }
}

pub const EDITS: &[Edit] = &[
    edit(Bug::NaiveFence, "task_claim", "FOR SHARE OF s", ""),
    edit(Bug::ClaimWithoutEpoch, "task_claim", " AND s.epoch = mine.epoch", ""),
    edit(Bug::AcquireKeepsEpoch, "shard_acquire_free", "epoch = s.epoch + 1", "epoch = s.epoch"),
    edit(Bug::TakeoverLeavesClaimed, "task_takeover", "claim_epoch < s.epoch", "claim_epoch > s.epoch"),
    edit(Bug::ClaimTooEarly, "task_claim", "t.wake_at <= clock_timestamp() + $4", "$4::interval IS NOT NULL"),
    edit(
        Bug::CancelClaimed,
        "task_cancel",
        "t.state IN ('waiting', 'scheduled', 'ready')",
        "t.state IN ('waiting', 'scheduled', 'ready', 'dispatching')",
    ),
    edit(
        Bug::CancelClaimed,
        "bulk_cancel",
        "t.state::text IN ('waiting', 'scheduled', 'ready')     -- cast",
        "t.state::text IN ('waiting', 'scheduled', 'ready', 'dispatching')     -- cast",
    ),
    edit(
        Bug::CancelClaimed,
        "bulk_cancel",
        "t.id = free.id AND t.state::text IN ('waiting', 'scheduled', 'ready')",
        "t.id = free.id",
    ),
    edit(
        Bug::CancelClaimed,
        "task_cancel_shared",
        "t.state::text IN ('waiting', 'scheduled', 'ready')     -- cast",
        "t.state::text IN ('waiting', 'scheduled', 'ready', 'dispatching')     -- cast",
    ),
    edit(
        Bug::CancelClaimed,
        "task_cancel_shared",
        "t.id = free.id AND t.state::text IN ('waiting', 'scheduled', 'ready')",
        "t.id = free.id",
    ),
    edit(
        Bug::RevertOnTimeout,
        "task_rescue",
        "SET claim_epoch = a.epoch",
        "SET state = 'scheduled', claim_epoch = a.epoch",
    ),
    edit(Bug::BlindSettle, "task_finish", " AND t.attempt = f.attempt", ""),
    edit(Bug::UnmarkedCopies, "task_rescue", "redeliveries = t.redeliveries + 1", "redeliveries = t.redeliveries"),
    edit(Bug::AttemptUsedAgain, "task_claim", "ELSE t.attempt + 1 END", "ELSE greatest(t.attempt, 1) END"),
    edit(Bug::LateFirstSending, "task_submit", "clock_timestamp() > $23 THEN", "$23 IS NULL THEN"),
    edit(Bug::SecondSendingBlind, "task_submit", "f.id <> ALL(ARRAY(SELECT id FROM finished))", "true"),
    edit(Bug::SecondSendingBlind, "task_submit", "WHEN $17 THEN duetime.not_finished(t.id)", "WHEN $17 THEN true"),
    // The second arrival is taken for the first one, also after its task has finished.
    edit(
        Bug::InboxRowTwice,
        "task_collect",
        "ON CONFLICT (id) DO NOTHING",
        "ON CONFLICT (id) DO UPDATE SET source = excluded.source",
    ),
    edit(
        Bug::InboxRowTwice,
        "task_collect",
        "(SELECT id FROM gone UNION ALL SELECT id FROM first))",
        "(SELECT id FROM gone UNION ALL SELECT id FROM first)) ON CONFLICT (id) DO NOTHING",
    ),
    // The next task starts while the one before waits for its retry.
    edit(
        Bug::OrderReleasedEarly,
        "task_retry",
        "SET state = 'scheduled',",
        "SET state = 'scheduled', in_order = false,",
    ),
    edit(Bug::OrderReleasedEarly, "task_pick", "AND state <> 'waiting'", "AND state = 'ready'"),
    edit(Bug::LimitOutsideFence, "task_pick", "FOR SHARE OF s", ""),
    edit(Bug::PickUnderOldPolicy, "task_pick", " WHERE NOT EXISTS (SELECT FROM turned)", ""),
    edit(Bug::RescueUnlocked, "task_rescue", "FOR SHARE OF s", ""),
    edit(Bug::BlindDeadline, "task_retry", "(NOT f.at_deadline OR t.wake_at <= clock_timestamp())", "true"),
    edit(Bug::BlindDeadline, "task_finish", "(NOT f.at_deadline OR t.wake_at <= clock_timestamp())", "true"),
    edit(Bug::ReplacedSucceeds, "task_finish", "t.attempt > t.attempts_base", "t.attempt > 0"),
    edit(Bug::StoppedRetried, "task_retry", "AND NOT t.stopping", ""),
    edit(Bug::PolicyIgnored, "task_claim", "AND t.queue <> ALL(ARRAY(SELECT q.queue FROM turned AS q))", ""),
    edit(
        Bug::NoSecondLook,
        "task_release",
        "JOIN duetime.task AS t ON t.id = asked.id",
        "JOIN duetime.task AS t ON t.id = asked.id AND false",
    ),
    edit(Bug::LateDrop, "move_drop", " AND move_write < $3", ""),
    edit(Bug::FireTimeTwice, "schedule_turn", "AND revision = $2", "AND $2::bigint IS NOT NULL"),
    edit(Bug::FireTimeTwice, "schedule_turns", "AND s.revision = a.revision", "AND a.revision IS NOT NULL"),
];

/// The text of a statement as the seeded bug has it.
///
/// # Panics
///
/// If the statement does not have the guard exactly once. A bug that changes nothing would look like one that nothing
/// catches.
pub fn statement(name: &'static str, text: &'static str) -> &'static str {
    static EDITED: LazyLock<Mutex<BTreeMap<&'static str, &'static str>>> = LazyLock::new(Mutex::default);
    let Some(bug) = Bug::seeded() else { return text };
    // A statement lives as long as the process, and there are few.
    EDITED.lock().entry(name).or_insert_with(|| edited(bug, name, text).leak())
}

pub fn edited(bug: Bug, name: &str, text: &str) -> String {
    let mut edited = text.to_owned();
    for edit in EDITS.iter().filter(|edit| edit.bug == bug && edit.statement == name) {
        assert_eq!(text.matches(edit.guard).count(), 1, "{bug:?}: {name} has \"{}\"", edit.guard);
        edited = edited.replace(edit.guard, edit.instead);
    }
    edited
}
