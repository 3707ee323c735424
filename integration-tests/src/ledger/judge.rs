//! The judge's questions. Pure: history in, verdict out.

mod attempts;
mod calm;
mod clocks;
mod fires;
mod late;
mod limits;
mod order;
mod tables;

use std::collections::{BTreeSet, HashMap};

use hdrhistogram::Histogram;

use clocks::Clocks;

use super::{
    Lateness, Number, Verdict,
    history::{Answer, Cancel, Delivery, Entry, History},
};

pub(super) fn judge(history: &History, grace_us: i64) -> Verdict {
    let mut verdict = Verdict::default();
    count(history, &mut verdict);
    let by_number = recognise(history, grace_us, &mut verdict);
    let clocks = Clocks::of(history);
    for (entry, number) in history.entries.iter().zip(0..) {
        for other in &entry.others {
            verdict.unexpected.add(|| format!("task {number} was answered with {:?} and {other}", entry.answer));
        }
        let arrived: &[&Delivery] = by_number.get(&number).map_or(&[], Vec::as_slice);
        judge_arrival(number, entry, arrived, &clocks, &mut verdict);
        late::judge_lateness(number, entry, arrived, history, grace_us, &mut verdict);
        attempts::judge_attempts(number, entry, arrived, history, grace_us, &mut verdict);
    }
    judge_copies(history, grace_us, &mut verdict);
    order::judge_order(history, &by_number, &clocks, &mut verdict);
    order::judge_dependencies(history, grace_us, &by_number, &mut verdict);
    order::judge_claims(history, &mut verdict);
    for ((shard, epoch), owners) in &history.owners {
        if owners.len() > 1 {
            verdict.owners.add(|| format!("shard {shard} in epoch {epoch}: {owners:?}"));
        }
    }
    limits::judge_limits(history, &mut verdict);
    fires::judge_fires(history, &clocks, &mut verdict);
    calm::judge_calm(history, &mut verdict);
    tables::judge_tables(history, grace_us, &mut verdict);
    attempts::judge_successes(history, grace_us, &mut verdict);
    attempts::judge_deaths(history, grace_us, &mut verdict);
    for (number, at_us) in history.missing.iter().filter(|(_, at_us)| !in_window(history, grace_us, *at_us)) {
        verdict.others.add(|| format!("task {number} was accepted, and a node did not know it at {at_us}"));
    }
    history.wrong.iter().for_each(|what| verdict.others.add(|| what.clone()));
    verdict.lateness = lateness(history, i64::MIN, i64::MAX);
    verdict
}

fn count(history: &History, verdict: &mut Verdict) {
    verdict.submitted = history.entries.len();
    verdict.messages = history.deliveries.len();
    verdict.delivered = history.arrived.len();
    verdict.broker_copies = history.deliveries.iter().filter(|delivery| delivery.by_broker).count();
    for entry in &history.entries {
        match entry.answer {
            Answer::Accepted(_) | Answer::Taken => verdict.accepted += 1,
            Answer::Refused => verdict.refused += 1,
            // A request still open when the scenario ended has an unknown outcome too.
            Answer::Unknown | Answer::Open => verdict.unknown += 1,
        }
        if matches!(entry.cancel, Cancel::Final | Cancel::NoFurther) {
            verdict.cancelled += 1;
        }
    }
}

/// Finds the submission of each message. A message without one, or with another task's, is unexpected.
fn recognise<'a>(history: &'a History, grace_us: i64, verdict: &mut Verdict) -> HashMap<Number, Vec<&'a Delivery>> {
    let mut by_number: HashMap<Number, Vec<&Delivery>> = HashMap::new();
    // A submission without an answer may exist, but as one task only.
    let mut unknown_tasks: HashMap<Number, &str> = HashMap::new();
    for delivery in &history.deliveries {
        let Some((number, entry)) = history.known(delivery.number) else {
            if history.fires.contains_key(&delivery.queue) && delivery.number.is_none() {
                continue;
            }
            verdict.unexpected.add(|| format!("{} was never submitted", delivery.message_id));
            continue;
        };
        by_number.entry(number).or_default().push(delivery);
        if delivery.message_id != format!("{}:{}", delivery.task, delivery.attempt) {
            verdict.unexpected.add(|| {
                format!("message id {} of task {} attempt {}", delivery.message_id, delivery.task, delivery.attempt)
            });
        }
        if delivery.queue != entry.queue {
            verdict.unexpected.add(|| format!("task {number} for {} arrived on {}", entry.queue, delivery.queue));
        }
        match &entry.answer {
            Answer::Accepted(task) if *task == delivery.task => {}
            Answer::Accepted(task) => verdict
                .unexpected
                .add(|| format!("task {number} was accepted as {task} and arrived as {}", delivery.task)),
            Answer::Refused => {
                verdict.unexpected.add(|| format!("task {number} was refused and arrived as {}", delivery.task))
            }
            Answer::Taken | Answer::Unknown | Answer::Open => {
                if may_be_two(history, grace_us, entry) {
                    continue;
                }
                let first = unknown_tasks.entry(number).or_insert(&delivery.task);
                if *first != delivery.task {
                    verdict.unexpected.add(|| format!("task {number} exists twice: {first} and {}", delivery.task));
                }
            }
        }
    }
    by_number
}

fn judge_arrival(number: Number, entry: &Entry, arrived: &[&Delivery], clocks: &Clocks<'_>, verdict: &mut Verdict) {
    if entry.must_arrive() && arrived.is_empty() {
        verdict.lost.add(|| format!("task {number} {:?} on {} due {}", entry.answer, entry.queue, entry.due_us));
    }
    if entry.cancel == Cancel::Final
        && let Some(delivery) = arrived.first()
    {
        verdict.after_cancel.add(|| {
            format!("task {number} was cancelled and arrived as {} at {}", delivery.message_id, delivery.at_us)
        });
    }
    let mut was_excused = false;
    for delivery in arrived {
        // The header is in whole milliseconds, rounded down: the start of its millisecond is the latest moment that
        // it can promise.
        let mut due_us = delivery.due_ms.map_or(i64::MIN, |due_ms| due_ms * 1_000);
        // A task that came early by the clock of its database was due: what follows goes by its own header.
        if !was_excused {
            due_us = due_us.max(entry.due_us);
        }
        let is_early = delivery.at_us < due_us;
        let is_excused = is_early && delivery.at_us >= due_us - clocks.may_be_early_us(delivery);
        was_excused |= is_excused;
        if is_early && !is_excused {
            verdict.early.add(|| {
                format!(
                    "{} (task {number}) arrived {} us before its due time {due_us}",
                    delivery.message_id,
                    due_us - delivery.at_us
                )
            });
        }
    }
}

/// Of the copies of one attempt at most one may be unmarked, and a copy needs a fault near it.
fn judge_copies(history: &History, grace_us: i64, verdict: &mut Verdict) {
    let mut copies: HashMap<&str, Vec<&Delivery>> = HashMap::new();
    for delivery in history.deliveries.iter().filter(|delivery| !delivery.by_broker) {
        copies.entry(&delivery.message_id).or_default().push(delivery);
    }
    let mut repeated: Vec<(&str, Vec<&Delivery>)> = copies.into_iter().filter(|(_, copies)| copies.len() > 1).collect();
    repeated.sort_by_key(|(_, copies)| copies[0].at_us);
    for (message_id, copies) in repeated {
        let marked = copies.iter().filter(|copy| copy.marked).count();
        verdict.marked_copies += marked.min(copies.len() - 1);
        if copies.len() - marked > 1 {
            verdict.unmarked.add(|| format!("{message_id}: {} copies, {marked} marked", copies.len()));
        }
        for copy in &copies[1..] {
            if !in_window(history, grace_us, copy.at_us) {
                verdict.outside.add(|| {
                    let windows: Vec<&str> = history.windows.iter().map(|window| window.what.as_str()).collect();
                    format!("{message_id}: a copy at {} is near none of {windows:?}", copy.at_us)
                });
            }
        }
    }
}

/// Whether a submission may have become a second task: RabbitMQ hands its message out again when a fault comes before
/// the node's ack, which comes within the grace after the confirm.
fn may_be_two(history: &History, grace_us: i64, entry: &Entry) -> bool {
    entry.may_repeat && touches_window(history, grace_us, entry.invoked_us, entry.accepted_us + grace_us)
}

fn in_window(history: &History, grace_us: i64, at_us: i64) -> bool {
    touches_window(history, grace_us, at_us, at_us)
}

/// Whether a fault or its grace falls into this span.
fn touches_window(history: &History, grace_us: i64, from_us: i64, until_us: i64) -> bool {
    history
        .windows
        .iter()
        .any(|window| until_us >= window.from_us && window.until_us.is_none_or(|healed| from_us <= healed + grace_us))
}

/// The submission and the first arrival, in microseconds, of each task that has arrived.
pub(super) fn first_arrivals(history: &History) -> impl Iterator<Item = (&Entry, i64)> {
    let mut seen: BTreeSet<Number> = BTreeSet::new();
    history.deliveries.iter().filter(|delivery| delivery.attempt == 1).filter_map(move |delivery| {
        let (number, entry) = history.known(delivery.number)?;
        seen.insert(number).then_some((entry, delivery.at_us))
    })
}

/// A day: longer lateness is recorded as this.
const LONGEST_US: u64 = 86_400_000_000;

pub(super) fn lateness(history: &History, from_us: i64, until_us: i64) -> Lateness {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST_US, 3).expect("bounds and digits fit together");
    for (entry, at_us) in first_arrivals(history) {
        // A task cannot arrive before its submission: a due time in the past means now.
        let due_us = entry.due_us.max(entry.invoked_us);
        if (from_us..until_us).contains(&due_us) {
            histogram.saturating_record(u64::try_from(at_us - due_us).unwrap_or(0));
        }
    }
    let in_ms = |us: u64| us as f64 / 1_000.0;
    Lateness {
        count: histogram.len(),
        p50_ms: in_ms(histogram.value_at_quantile(0.5)),
        p99_ms: in_ms(histogram.value_at_quantile(0.99)),
        max_ms: in_ms(histogram.max()),
    }
}
