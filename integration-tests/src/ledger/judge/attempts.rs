//! The attempts of a task: their numbers, their causes, and how the last one ends.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        Number, Verdict,
        history::{Delivery, Entry, History, Reply, Retries, Row},
    },
    in_window, touches_window,
};

/// A rejection or a success within this part of the deadline must count. RabbitMQ and the nodes have the rest to pass
/// it on.
const IN_TIME_PART: i64 = 5;

/// Attempts begin at 1, have no gap, and stay within the limit. Each arrives for the first time after the one before
/// it has, has a cause, and is due after the wait of its queue.
pub(super) fn judge_attempts(
    number: Number,
    entry: &Entry,
    arrived: &[&Delivery],
    history: &History,
    grace_us: i64,
    verdict: &mut Verdict,
) {
    let mut firsts: BTreeMap<u32, &Delivery> = BTreeMap::new();
    for delivery in arrived {
        let first = firsts.entry(delivery.attempt).or_insert(delivery);
        if delivery.at_us < first.at_us {
            *first = delivery;
        }
    }
    judge_further(number, entry, &firsts, history, verdict);
    let may_miss = history.lossy.contains(&entry.queue);
    let mut before: Option<&Delivery> = None;
    for ((attempt, first), expected) in firsts.iter().zip(1..) {
        if *attempt != expected && !may_miss {
            verdict.attempts.add(|| format!("task {number}: attempt {attempt} arrived where {expected} was next"));
            return;
        }
        if let Some(before) = before {
            if first.at_us < before.at_us {
                verdict.attempts.add(|| format!("task {number}: attempt {attempt} arrived before the one it follows"));
            } else if before.attempt + 1 == *attempt && !has_cause(entry, before, first, history) {
                verdict.attempts.add(|| format!("task {number}: attempt {attempt} has no cause: {first:?}"));
            } else if before.attempt + 1 == *attempt && is_too_soon(entry, before, first, history) {
                verdict.attempts.add(|| format!("task {number}: attempt {attempt} is due too soon: {first:?}"));
            } else if let Some(success) = lost_success(entry, &firsts, (before, first), history, grace_us) {
                verdict.attempts.add(|| format!("task {number}: attempt {attempt} follows the success of {success}"));
            }
        }
        before = Some(first);
    }
    if let (Some(most), Some((last, _))) = (entry.max_attempts, firsts.last_key_value())
        && *last > most
    {
        verdict.attempts.add(|| format!("task {number}: {last} attempts where {most} were allowed"));
    }
}

/// Whether `next` follows from the answer to `before`, or from its silence. Queues without [`Retries`] are not judged.
fn has_cause(entry: &Entry, before: &Delivery, next: &Delivery, history: &History) -> bool {
    let has_failed = || {
        let mut replies = history.replies_to(&before.message_id).iter();
        replies.any(|one| one.reply.may_fail() && one.at_us <= next.at_us)
    };
    match history.retries.get(&entry.queue) {
        None => true,
        Some(Retries::Never) => false,
        Some(Retries::AfterRejection { .. }) => has_failed(),
        Some(Retries::AfterFailureOrSilence { deadline_us }) => {
            has_failed() || was_silent(before, next, *deadline_us, history)
        }
    }
}

/// Whether the deadline of `before` can have passed: it begins with the confirm, which comes after the due time, and
/// the next attempt is due after it. A clock that was set back between the two shortens it.
fn was_silent(before: &Delivery, next: &Delivery, deadline_us: i64, history: &History) -> bool {
    let ahead_us = history.ahead.iter().map(|one| one.ahead_us).max().unwrap_or(0);
    let apart_us = before.due_ms.zip(next.due_ms).map(|(before_ms, next_ms)| (next_ms - before_ms) * 1_000);
    apart_us.is_none_or(|apart_us| apart_us >= deadline_us - ahead_us)
}

/// Whether `next` is due before the wait after the failure of `before` is over. A failure follows the record of an
/// answer that can cause it, or the deadline, which begins with the due time or later. Headers are cut to milliseconds,
/// so the answer is too. Once the clock of a database was set, the two cannot be compared.
fn is_too_soon(entry: &Entry, before: &Delivery, next: &Delivery, history: &History) -> bool {
    let Some(wait_ms) = history.waits.get(&entry.queue) else { return false };
    let Some((before_ms, next_ms)) = before.due_ms.zip(next.due_ms) else { return false };
    if history.ahead.iter().any(|one| one.from_us <= next.at_us) {
        return false;
    }
    let failures = history.replies_to(&before.message_id).iter().filter(|one| one.reply.may_fail());
    let answered_ms = failures.map(|one| one.at_us.div_euclid(1_000)).min();
    let silent_until_ms = match history.retries.get(&entry.queue) {
        Some(Retries::AfterFailureOrSilence { deadline_us }) => Some(before_ms + deadline_us / 1_000),
        _ => None,
    };
    answered_ms.into_iter().chain(silent_until_ms).min().is_some_and(|failed_ms| next_ms < failed_ms + wait_ms)
}

/// The earlier attempt whose success must have ended the task before `next`: RabbitMQ has confirmed its report in good
/// time, and no fault kept the nodes from reading it until its deadline, or until `before` had arrived. A fault
/// earlier than that excuses nothing, since RabbitMQ keeps what it has confirmed.
fn lost_success<'a>(
    entry: &Entry,
    firsts: &BTreeMap<u32, &'a Delivery>,
    (before, next): (&Delivery, &Delivery),
    history: &History,
    grace_us: i64,
) -> Option<&'a str> {
    let Some(Retries::AfterFailureOrSilence { deadline_us }) = history.retries.get(&entry.queue) else { return None };
    let must_count = |first: &&Delivery| {
        // The clock of the database may be ahead of the due time, or the message may have waited for its consumer.
        let begins_us = first.due_ms.map_or(first.at_us, |due_ms| first.at_us.min(due_ms * 1_000));
        let replies = history.replies_to(&first.message_id);
        let is_in_time = |at_us| at_us <= begins_us + deadline_us / IN_TIME_PART;
        replies.iter().any(|one| one.reply == Reply::Kept && is_in_time(one.at_us))
            && !replies.iter().any(|one| one.reply.may_fail())
            && !touches_window(history, grace_us, before.at_us.max(begins_us + deadline_us), next.at_us)
    };
    firsts.range(..next.attempt).map(|(_, first)| *first).find(must_count).map(|first| first.message_id.as_str())
}

/// After the answer `no_further_attempts` no attempt begins. Where silence fails an attempt, its message may come after
/// that, so such queues are not judged.
fn judge_further(
    number: Number,
    entry: &Entry,
    firsts: &BTreeMap<u32, &Delivery>,
    history: &History,
    verdict: &mut Verdict,
) {
    let Some(Retries::Never | Retries::AfterRejection { .. }) = history.retries.get(&entry.queue) else { return };
    if let Some(ended_us) = entry.ended_us
        && let Some(first) = firsts.values().find(|first| first.at_us > ended_us)
    {
        verdict.after_cancel.add(|| {
            format!(
                "task {number} was to have no further attempts and arrived as {} at {}",
                first.message_id, first.at_us
            )
        });
    }
}

/// A task succeeds as its consumers answered.
pub(super) fn judge_successes(history: &History, grace_us: i64, verdict: &mut Verdict) {
    let replies = history.replies.values().flatten().filter(|one| one.reply == Reply::Succeeded);
    let succeeded: BTreeSet<&str> = replies.filter_map(|one| Some(one.message_id.split_once(':')?.0)).collect();
    for row in history.rows.iter().filter(|row| row.state == "succeeded") {
        let (task, queue) = (&row.task, &row.queue);
        match history.retries.get(queue) {
            Some(Retries::AfterFailureOrSilence { .. }) if !succeeded.contains(task.as_str()) => {
                verdict.tables.add(|| format!("task {task} of {queue} is succeeded, and no consumer reported that"));
            }
            Some(Retries::AfterRejection { deadline_us }) if is_rejected(history, grace_us, row, *deadline_us) => {
                verdict
                    .tables
                    .add(|| format!("task {task} of {queue} is succeeded, and its last attempt was rejected"));
            }
            _ => {}
        }
    }
}

/// Whether the last attempt was rejected in good time, and nothing else was answered. Near a fault the deadline may
/// pass while RabbitMQ still has the rejection.
fn is_rejected(history: &History, grace_us: i64, row: &Row, deadline_us: i64) -> bool {
    let replies = history.replies_to(&format!("{}:{}", row.task, row.attempt));
    let is_near_fault = |at_us| in_window(history, grace_us, at_us);
    !replies.is_empty()
        && replies.iter().all(|one| one.reply == Reply::Rejected)
        && replies.iter().any(|one| one.at_us <= row.due_us + deadline_us / IN_TIME_PART && !is_near_fault(one.at_us))
        && !is_near_fault(row.due_us + deadline_us)
}

/// A task dies once its attempts are used up, or once its consumer discards it.
pub(super) fn judge_deaths(history: &History, grace_us: i64, verdict: &mut Verdict) {
    for row in history.rows.iter().filter(|row| row.state == "dead") {
        let Some(most) = history.attempts.get(&row.queue).filter(|most| row.attempt < **most) else { continue };
        let replies = history.replies_to(&format!("{}:{}", row.task, row.attempt));
        let is_discarded = replies.iter().any(|one| one.reply == Reply::Discarded);
        if !is_discarded && !may_be_unroutable(history, grace_us, row) {
            let (task, queue, attempt) = (&row.task, &row.queue, row.attempt);
            verdict.tables.add(|| format!("task {task} of {queue} is dead after attempt {attempt} of {most}"));
        }
    }
}

/// Whether RabbitMQ may have returned the message of a delay exchange near a fault, which ends the task.
fn may_be_unroutable(history: &History, grace_us: i64, row: &Row) -> bool {
    let is_delayed = history.known(row.number).is_some_and(|(_, entry)| entry.may_repeat);
    is_delayed && touches_window(history, grace_us, row.due_us, row.due_us + grace_us)
}
