//! The figures of a run, second by second and fault by fault.

use std::collections::HashMap;

use crate::ledger::{GRACE, Ledger, Window};

/// A second in which no task was later than this is normal.
pub(super) const NORMAL_MS: f64 = 1_000.0;
/// So many normal seconds in a row, and the cluster is back to normal.
const NORMAL_SECONDS: usize = 3;
/// Copies that come within this time after a heal count for the fault.
const GRACE_S: f64 = GRACE.as_secs() as f64;

/// What happened to the tasks that were due in one second.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Whether any task was due.
    pub(super) has_tasks: bool,
    /// Messages that arrived in it.
    pub(super) messages: usize,
}

/// One fault and its harm.
#[derive(Clone, Debug)]
pub(super) struct Harm {
    pub(super) row: String,
    pub(super) name: String,
    pub(super) victim: String,
    /// Since the start of the run.
    pub(super) from_s: f64,
    pub(super) until_s: f64,
    pub(super) worst_ms: f64,
    /// From its heal; `None` when the next fault began before.
    pub(super) normal_after_s: Option<f64>,
    pub(super) copies: usize,
    /// Why it had no effect, if it had none.
    pub(super) void: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) seconds: Vec<Second>,
    pub(super) harms: Vec<Harm>,
    /// Of tasks due in seconds without a fault.
    pub(super) quiet_p99_ms: f64,
    /// Seconds apart from all faults and their grace: the judge excuses no copy in them.
    pub(super) without_excuse: usize,
}

impl Figures {
    pub(super) fn of(ledger: &Ledger, queues: &[&str]) -> Self {
        let arrivals = ledger.first_arrivals(queues);
        let deliveries = ledger.arrivals();
        let Some(start_us) = deliveries.iter().map(|delivery| delivery.at_us).min() else { return Self::default() };
        let second_of = |at_us: i64| usize::try_from((at_us - start_us).max(0) / 1_000_000).unwrap_or(0);
        let mut late_ms: Vec<Vec<f64>> = Vec::new();
        for (due_us, at_us) in &arrivals {
            let second = second_of(*due_us);
            late_ms.resize_with(late_ms.len().max(second + 1), Vec::new);
            late_ms[second].push((at_us - due_us) as f64 / 1e3);
        }
        let last = deliveries.iter().map(|delivery| second_of(delivery.at_us)).max().unwrap_or(0);
        late_ms.resize_with(late_ms.len().max(last + 1), Vec::new);
        let mut seconds: Vec<Second> = late_ms.iter_mut().map(|late_ms| second(late_ms)).collect();
        for delivery in &deliveries {
            seconds[second_of(delivery.at_us)].messages += 1;
        }
        let windows = ledger.windows();
        let copies: Vec<f64> = copies(ledger).into_iter().map(|at_us| since(at_us, start_us)).collect();
        let harms: Vec<Harm> =
            windows.iter().map(|window| harm(window, &windows, &seconds, &copies, start_us)).collect();
        let mut quiet: Vec<f64> = late_ms
            .iter()
            .enumerate()
            .filter(|(second, _)| harms.iter().all(|harm| is_apart(harm, *second as f64)))
            .flat_map(|(_, late_ms)| late_ms.iter().copied())
            .collect();
        quiet.sort_by(f64::total_cmp);
        let quiet_p99_ms = quantile(&quiet, 0.99);
        let without_excuse = without_excuse(seconds.len(), &harms);
        Self { seconds, harms, quiet_p99_ms, without_excuse }
    }
}

fn is_apart(harm: &Harm, second: f64) -> bool {
    let settled = harm.until_s + harm.normal_after_s.unwrap_or(GRACE_S);
    second + 1.0 < harm.from_s || second > settled
}

fn without_excuse(seconds: usize, harms: &[Harm]) -> usize {
    let excuses = |harm: &Harm, second: f64| second + 1.0 >= harm.from_s && second <= harm.until_s + GRACE_S;
    (0..seconds).filter(|second| !harms.iter().any(|harm| excuses(harm, *second as f64))).count()
}

fn second(late_ms: &mut [f64]) -> Second {
    late_ms.sort_by(f64::total_cmp);
    Second {
        p50_ms: quantile(late_ms, 0.5),
        p99_ms: quantile(late_ms, 0.99),
        max_ms: late_ms.last().copied().unwrap_or(0.0),
        has_tasks: !late_ms.is_empty(),
        messages: 0,
    }
}

/// The value at this place of sorted values, 0 when there are none.
fn quantile(sorted: &[f64], place: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * place).round() as usize).copied().unwrap_or(0.0)
}

fn since(at_us: i64, start_us: i64) -> f64 {
    (at_us - start_us) as f64 / 1e6
}

/// When the second and further copies of messages arrived that RabbitMQ had not handed out before.
fn copies(ledger: &Ledger) -> Vec<i64> {
    let mut seen: HashMap<String, ()> = HashMap::new();
    let mut copies = Vec::new();
    for delivery in ledger.arrivals().into_iter().filter(|delivery| !delivery.by_broker) {
        if seen.insert(delivery.message_id, ()).is_some() {
            copies.push(delivery.at_us);
        }
    }
    copies
}

fn harm(window: &Window, windows: &[Window], seconds: &[Second], copies: &[f64], start_us: i64) -> Harm {
    let end_s = seconds.len() as f64;
    let from_s = since(window.from_us, start_us).max(0.0);
    let until_s = window.until_us.map_or(end_s, |until_us| since(until_us, start_us));
    let next_s = windows
        .iter()
        .map(|other| since(other.from_us, start_us))
        .filter(|other_s| *other_s > until_s)
        .fold(end_s, f64::min);
    let normal_s = normal_from(seconds, until_s, next_s);
    let during = &seconds[place(seconds, from_s)..place(seconds, normal_s.unwrap_or(next_s).ceil() + 1.0)];
    let mut words = window.what.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    Harm {
        row: word(),
        name: word(),
        victim: word(),
        from_s,
        until_s,
        worst_ms: during.iter().map(|second| second.max_ms).fold(0.0, f64::max),
        normal_after_s: normal_s.map(|normal_s| (normal_s - until_s).max(0.0)),
        copies: copies.iter().filter(|at_s| (from_s..until_s + GRACE_S).contains(*at_s)).count(),
        void: window.void.clone(),
    }
}

fn place(seconds: &[Second], at_s: f64) -> usize {
    (at_s.max(0.0) as usize).min(seconds.len())
}

/// The first moment from `heal_s` on from which seconds are normal, if it comes before the next fault.
fn normal_from(seconds: &[Second], heal_s: f64, next_s: f64) -> Option<f64> {
    let first = place(seconds, heal_s);
    let is_normal = |second: &Second| second.max_ms < NORMAL_MS;
    let from = (first..place(seconds, next_s))
        .find(|from| seconds[*from..(from + NORMAL_SECONDS).min(seconds.len())].iter().all(is_normal))?;
    Some((from as f64).max(heal_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(max_ms: &[f64]) -> Vec<Second> {
        max_ms.iter().map(|max_ms| Second { max_ms: *max_ms, has_tasks: true, ..Second::default() }).collect()
    }

    #[test]
    fn normal_begins_with_three_normal_seconds_before_the_next_fault() {
        let late = NORMAL_MS * 2.0;
        let all = seconds(&[late, late, 1.0, late, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(normal_from(&all, 1.5, 8.0), Some(4.0));
        assert_eq!(normal_from(&all, 1.5, 4.0), None);
        assert_eq!(normal_from(&all, 5.5, 8.0), Some(5.5));
    }

    #[test]
    fn a_fault_excuses_copies_from_its_beginning_until_its_grace_is_over() {
        let harm = |from_s: f64, until_s: f64| Harm {
            row: String::new(),
            name: String::new(),
            victim: String::new(),
            from_s,
            until_s,
            worst_ms: 0.0,
            normal_after_s: None,
            copies: 0,
            void: None,
        };
        assert_eq!(without_excuse(60, &[]), 60);
        assert_eq!(without_excuse(60, &[harm(10.5, 15.5)]), 60 - 26, "from second 10 to second 35");
        assert_eq!(without_excuse(60, &[harm(10.5, 15.5), harm(30.5, 45.5)]), 10);
    }

    #[test]
    fn a_quantile_is_a_value_of_the_sorted_ones() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.99), quantile(&[], 0.5)), (50.0, 99.0, 0.0));
    }
}
