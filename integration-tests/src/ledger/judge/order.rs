//! The order of tasks: in a sequence, and after what they depend on.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    super::{
        Number, Verdict,
        history::{Delivery, History, Reply, Retries, Row},
    },
    clocks::Clocks,
    touches_window,
};

/// A task of a sequence arrives after the one before it has ended, with all its attempts.
pub(super) fn judge_order(
    history: &History,
    by_number: &HashMap<Number, Vec<&Delivery>>,
    clocks: &Clocks<'_>,
    verdict: &mut Verdict,
) {
    let mut sequences: BTreeMap<&str, BTreeSet<(u64, i64, i64, Number)>> = BTreeMap::new();
    for (entry, number) in history.entries.iter().zip(0..) {
        if let Some((sequence, place)) = &entry.order
            && let Some(arrived) = by_number.get(&number)
            && let Some(first) = arrived.first()
            && clocks.is_ordered(entry, first)
        {
            let ending_us = ending_attempt_us(history, arrived).unwrap_or(first.at_us);
            sequences.entry(sequence).or_default().insert((*place, first.at_us, ending_us, number));
        }
    }
    for (sequence, places) in sequences {
        let in_order: Vec<_> = places.into_iter().collect();
        for pair in in_order.windows(2) {
            let [(_, first_us, ending_us, before), (_, next_us, _, after)] = pair else { continue };
            if next_us < first_us {
                verdict.order.add(|| format!("{sequence}: task {after} arrived before task {before}"));
            } else if next_us < ending_us {
                verdict.order.add(|| format!("{sequence}: task {after} arrived between two attempts of task {before}"));
            }
        }
    }
}

/// The first arrival of the attempt that ends a task: of the first one that its consumer reported as a success, or of
/// the last one. A report may come late and end the task while RabbitMQ has the message of a further attempt already.
fn ending_attempt_us(history: &History, arrived: &[&Delivery]) -> Option<i64> {
    let mut firsts: BTreeMap<u32, &Delivery> = BTreeMap::new();
    for delivery in arrived {
        firsts.entry(delivery.attempt).or_insert(delivery);
    }
    let has_succeeded =
        |first: &&&Delivery| history.replies_to(&first.message_id).iter().any(|one| one.reply == Reply::Succeeded);
    let ending = firsts.values().find(has_succeeded).or_else(|| firsts.values().next_back());
    ending.map(|ending| ending.at_us)
}

/// How much later than its dependent a task may be read that succeeded with its confirm. RabbitMQ had both in order,
/// but two connections of consumers read them, and a busy machine holds one of them up for less. One such moment meets
/// all tasks of its time, so their share would tell nothing. [`judge_claims`] needs no excuse.
const READ_LATE_US: i64 = 2_000_000;

/// A task with dependencies arrives after the attempt with which each of them succeeded: its last. One that succeeds
/// with the confirm may be read a little later. A broker that is in trouble may hold it for longer, while its dependent
/// comes by another one.
pub(super) fn judge_dependencies(
    history: &History,
    grace_us: i64,
    by_number: &HashMap<Number, Vec<&Delivery>>,
    verdict: &mut Verdict,
) {
    let may_come_later = |other: Number, first: &Delivery, succeeding: &Delivery| {
        let entry = history.known(Some(other)).map(|(_, entry)| entry);
        let is_read_late = || succeeding.at_us - first.at_us < READ_LATE_US;
        entry.is_some_and(|entry| matches!(history.retries.get(&entry.queue), Some(Retries::Never)))
            && (is_read_late() || touches_window(history, grace_us, first.at_us, succeeding.at_us))
    };
    for (entry, number) in history.entries.iter().zip(0..) {
        let Some(first) = by_number.get(&number).and_then(|arrived| arrived.first()) else { continue };
        for other in &entry.after {
            let arrived: &[&Delivery] = by_number.get(other).map_or(&[], Vec::as_slice);
            let last_attempt = arrived.iter().map(|delivery| delivery.attempt).max();
            let succeeding = arrived.iter().find(|delivery| Some(delivery.attempt) == last_attempt);
            let is_early =
                |succeeding: &&Delivery| succeeding.at_us > first.at_us && !may_come_later(*other, first, succeeding);
            if succeeding.is_none_or(is_early) {
                verdict
                    .order
                    .add(|| format!("task {number} arrived before task {other}, which it depends on, had succeeded"));
            }
        }
    }
}

/// A task is claimed after all that it depends on has succeeded. Both are on one shard, so the clock of one database
/// tells, unless it was set. No slow reader and no broker in trouble changes that.
pub(super) fn judge_claims(history: &History, verdict: &mut Verdict) {
    let rows: HashMap<Number, &Row> = history.rows.iter().filter_map(|row| Some((row.number?, row))).collect();
    for (entry, number) in history.entries.iter().zip(0..) {
        let Some((row, claimed_us)) = rows.get(&number).and_then(|row| Some((row, row.claimed_us?))) else { continue };
        if history.ahead.iter().any(|one| one.shards.contains(&row.shard)) {
            continue;
        }
        let has_succeeded = |other: &Row| {
            other.state == "succeeded" && other.finished_us.is_none_or(|finished_us| finished_us <= claimed_us)
        };
        for other in entry.after.iter().filter(|other| !rows.get(*other).is_some_and(|row| has_succeeded(row))) {
            verdict.order.add(|| {
                format!("task {number} was claimed at {claimed_us}, before the success of task {other} that it needs")
            });
        }
    }
}
