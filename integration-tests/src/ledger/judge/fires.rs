//! Each fire time of a schedule has one task, from its beginning to its end.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        Verdict,
        history::{Fires, History, Row},
    },
    clocks::Clocks,
};

/// A schedule may be so far behind when it is paused, and makes no task for the rest. A run pauses it once a task has
/// arrived that was due up to 10 s ago.
const BEHIND_US: i64 = 30_000_000;

pub(super) fn judge_fires(history: &History, clocks: &Clocks<'_>, verdict: &mut Verdict) {
    for (queue, fires) in &history.fires {
        judge_arrivals(history, queue, clocks, verdict);
        if history.has_tables {
            let rows = history.rows.iter().filter(|row| row.queue == *queue && row.number.is_none());
            judge_rows(queue, *fires, rows, verdict);
        }
    }
}

fn judge_arrivals(history: &History, queue: &str, clocks: &Clocks<'_>, verdict: &mut Verdict) {
    let mut tasks: BTreeMap<i64, BTreeSet<&str>> = BTreeMap::new();
    for delivery in history.deliveries.iter().filter(|one| one.queue == queue && one.number.is_none()) {
        let Some(due_ms) = delivery.due_ms else { continue };
        tasks.entry(due_ms).or_default().insert(&delivery.task);
        if delivery.at_us < due_ms * 1_000 - clocks.may_be_early_us(delivery) {
            verdict.early.add(|| format!("{} of {queue} arrived before its fire time {due_ms}", delivery.message_id));
        }
    }
    for (due_ms, tasks) in tasks.iter().filter(|(_, tasks)| tasks.len() > 1) {
        verdict.fires.add(|| format!("{queue}: {tasks:?} for the fire time {due_ms}"));
    }
}

fn judge_rows<'a>(queue: &str, fires: Fires, rows: impl Iterator<Item = &'a Row>, verdict: &mut Verdict) {
    let mut times: Vec<i64> = rows.map(|row| row.due_us).collect();
    times.sort_unstable();
    // The first fire time comes within one interval, and a second one allows for the way of an answer.
    let begins = |from_us| times.first().is_some_and(|first| *first <= from_us + 2 * fires.every_us);
    if !fires.from_us.is_none_or(begins) {
        verdict.fires.add(|| format!("{queue}: the first row is {:?}, and {:?} is in force", times.first(), fires));
    }
    let goes_on = |until_us| times.last().is_some_and(|last| *last >= until_us - BEHIND_US);
    if !fires.until_us.is_none_or(goes_on) {
        verdict.fires.add(|| format!("{queue}: the last row is {:?}, and {:?} is in force", times.last(), fires));
    }
    for pair in times.windows(2) {
        let [before, after] = pair else { continue };
        if before == after {
            verdict.fires.add(|| format!("{queue}: two rows for the fire time {after}"));
        } else if after - before != fires.every_us {
            verdict.fires.add(|| format!("{queue}: no row between the fire times {before} and {after}"));
        }
    }
}
