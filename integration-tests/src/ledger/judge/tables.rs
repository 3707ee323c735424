//! What the databases hold at the end, beside what was answered and what arrived.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        Number, Verdict,
        history::{Answer, Cancel, Entry, History, Row},
    },
    may_be_two,
};

/// States of a task that was taken back.
const TAKEN_BACK: [&str; 3] = ["cancelled", "superseded", "expired"];

pub(super) fn judge_tables(history: &History, grace_us: i64, verdict: &mut Verdict) {
    if !history.has_tables {
        return;
    }
    judge_places(&history.rows, verdict);
    judge_ends(history, verdict);
    let mut by_number: BTreeMap<Number, Vec<&Row>> = BTreeMap::new();
    for row in &history.rows {
        if let Some((number, _)) = history.known(row.number) {
            by_number.entry(number).or_default().push(row);
        } else if !history.fires.contains_key(&row.queue) {
            verdict.tables.add(|| format!("task {} of {} was never submitted", row.task, row.queue));
        }
    }
    for (entry, number) in history.entries.iter().zip(0..) {
        let rows = by_number.get(&number).map_or(&[][..], Vec::as_slice);
        judge_entry(number, entry, rows, may_be_two(history, grace_us, entry), verdict);
    }
}

/// Each task has one row in all databases together, and a key and version one task that was not taken back. A
/// superseded task has a successor.
fn judge_places(rows: &[Row], verdict: &mut Verdict) {
    let (mut tasks, mut keys) = (BTreeSet::new(), BTreeSet::new());
    let mut newest: BTreeMap<_, i64> = BTreeMap::new();
    for row in rows {
        let version = newest.entry((&row.queue, &row.partition_key, &row.key)).or_insert(row.version);
        *version = row.version.max(*version);
    }
    for row in rows {
        let is_newest = newest.get(&(&row.queue, &row.partition_key, &row.key)) == Some(&row.version);
        if row.state == "superseded" && is_newest {
            verdict.tables.add(|| format!("task {} is superseded, and no newer version is there", row.task));
        }
        if !tasks.insert(&row.task) {
            verdict.tables.add(|| format!("task {} has two rows", row.task));
        }
        if let Some(key) = &row.key
            && !TAKEN_BACK.contains(&row.state.as_str())
            && !keys.insert((&row.queue, &row.partition_key, key, row.version))
        {
            verdict.tables.add(|| format!("{} has two tasks of key {key} in version {}", row.queue, row.version));
        }
    }
}

/// How each row ended agrees with what arrived of it.
fn judge_ends(history: &History, verdict: &mut Verdict) {
    let mut arrived: BTreeMap<&str, u32> = BTreeMap::new();
    for delivery in &history.deliveries {
        let last = arrived.entry(&delivery.task).or_default();
        *last = delivery.attempt.max(*last);
    }
    for row in &history.rows {
        let last = arrived.get(row.task.as_str()).copied();
        let has_arrived = last.is_some();
        let (task, state, queue) = (&row.task, &row.state, &row.queue);
        let is_taken_back = TAKEN_BACK.contains(&state.as_str());
        // Such a row without an attempt has a finding of its own.
        let is_known = row.attempt == 0 && (row.live || is_taken_back);
        if let Some(last) = last.filter(|last| *last > row.attempt && !is_known) {
            verdict.tables.add(|| {
                format!("task {task} of {queue} is {state} in attempt {}, and attempt {last} arrived", row.attempt)
            });
        }
        if row.live {
            verdict.tables.add(|| format!("task {task} of {queue} is still {state} in attempt {}", row.attempt));
        } else if is_taken_back {
            if row.attempt == 0 && has_arrived {
                verdict.tables.add(|| format!("task {task} of {queue} is {state}, was never claimed, and arrived"));
            }
        } else if !has_arrived && !history.lossy.contains(queue) {
            verdict.tables.add(|| format!("task {task} of {queue} is {state} and never arrived"));
        }
    }
}

/// What a submission was answered agrees with its rows.
fn judge_entry(number: Number, entry: &Entry, rows: &[&Row], may_be_two: bool, verdict: &mut Verdict) {
    match (&entry.answer, rows) {
        (Answer::Refused, [row, ..]) => {
            verdict.tables.add(|| format!("task {number} was refused and is {} as {}", row.state, row.task));
        }
        (Answer::Accepted(_) | Answer::Taken, []) => {
            verdict.tables.add(|| format!("task {number} of {} was accepted and has no row", entry.queue));
        }
        (_, [_, _, ..]) if !may_be_two => {
            verdict.tables.add(|| format!("task {number} of {} is {} tasks", entry.queue, rows.len()));
        }
        _ => {}
    }
    if entry.cancel == Cancel::Final
        && let Some(row) = rows.iter().find(|row| row.state != "cancelled")
    {
        verdict.tables.add(|| format!("task {number} was cancelled and is {}", row.state));
    }
    if entry.cancel == Cancel::Never
        && !entry.may_lapse
        && entry.answer != Answer::Refused
        && let Some(row) = rows.iter().find(|row| TAKEN_BACK.contains(&row.state.as_str()))
    {
        verdict.tables.add(|| format!("task {number} is {}, and no client asked for that", row.state));
    }
}
