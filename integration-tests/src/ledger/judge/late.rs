//! While nothing is broken, a task comes soon: one that waits for the next fault or for the end of a run is stuck.

use super::super::{
    Number, Verdict,
    history::{Cancel, Delivery, Entry, History},
};

/// The longest wait of a due task in a calm, once what the fault before it held up has come.
const LATE_US: i64 = 15_000_000;

/// Judges the tasks of queues without a limit or an order. What a fault holds up has its grace to come.
pub(super) fn judge_lateness(
    number: Number,
    entry: &Entry,
    arrived: &[&Delivery],
    history: &History,
    grace_us: i64,
    verdict: &mut Verdict,
) {
    let is_judged = entry.must_arrive() && entry.cancel == Cancel::Never && history.prompt.contains(&entry.queue);
    // What never arrives is lost.
    let Some(first) = arrived.first().filter(|_| is_judged) else { return };
    let ripe_us = entry.due_us.max(entry.accepted_us);
    let is_late_in = |from_us: i64, until_us: Option<i64>| {
        let waits_until_us = until_us.map_or(first.at_us, |until_us| first.at_us.min(until_us));
        waits_until_us - ripe_us.max(from_us + grace_us) > LATE_US
    };
    if history.calms.iter().any(|calm| is_late_in(calm.from_us, calm.until_us)) {
        verdict.late.add(|| {
            let late_ms = (first.at_us - ripe_us) / 1_000;
            format!("task {number} of {} came {late_ms} ms late while nothing was broken", entry.queue)
        });
    }
}
