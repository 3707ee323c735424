//! Judges what arrived at a peer's workers, in the same way for all peers.

use std::collections::HashMap;

use serde::Serialize;

/// Tasks from this number on are the pending ones of `late`: none of them is ever due.
pub(super) const FIRST_PENDING: u64 = 1_000_000_000;

/// One task that a worker began to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub number: u64,
    pub due_us: i64,
    pub got_us: i64,
}

/// The arrivals of one work. Lateness is that of the first arrival of each task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub submitted: u64,
    pub arrived: u64,
    /// Submitted, and not arrived when the work ended.
    pub lost: u64,
    /// Arrivals beyond the first of their task.
    pub doubled: u64,
    /// Arrivals before their task was due. They count as not late at all.
    pub early: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// From the first due instant to the last arrival.
    pub per_second: f64,
}

pub(super) fn judge(submitted: u64, arrivals: &[Arrival]) -> Verdict {
    let early = arrivals.iter().filter(|arrival| arrival.got_us < arrival.due_us).count() as u64;
    let first = first_arrivals(arrivals);
    let mut late_us: Vec<i64> = first.values().map(|arrival| (arrival.got_us - arrival.due_us).max(0)).collect();
    late_us.sort_unstable();
    let arrived = first.len() as u64;
    let from_us = first.values().map(|arrival| arrival.due_us).min().unwrap_or(0);
    let until_us = first.values().map(|arrival| arrival.got_us).max().unwrap_or(0);
    Verdict {
        submitted,
        arrived,
        lost: submitted.saturating_sub(arrived),
        doubled: counted(arrivals).count() as u64 - arrived,
        early,
        p50_ms: ms(at_share(&late_us, 0.5)),
        p99_ms: ms(at_share(&late_us, 0.99)),
        max_ms: ms(at_share(&late_us, 1.0)),
        per_second: arrived as f64 / ((until_us - from_us).max(1) as f64 / 1e6),
    }
}

/// The tasks that are ever due.
fn counted(arrivals: &[Arrival]) -> impl Iterator<Item = &Arrival> {
    arrivals.iter().filter(|arrival| arrival.number < FIRST_PENDING)
}

/// The first arrival of each task, by its number.
fn first_arrivals(arrivals: &[Arrival]) -> HashMap<u64, Arrival> {
    let mut first: HashMap<u64, Arrival> = HashMap::with_capacity(arrivals.len());
    for arrival in counted(arrivals) {
        let known = first.entry(arrival.number).or_insert(*arrival);
        if arrival.got_us < known.got_us {
            *known = *arrival;
        }
    }
    first
}

/// Tasks a second that arrived for the first time in the middle four fifths of `seconds`, which begin with the first
/// arrival.
pub(super) fn steady(seconds: u64, arrivals: &[Arrival]) -> f64 {
    let first = first_arrivals(arrivals);
    let Some(first_us) = first.values().map(|arrival| arrival.got_us).min() else { return 0.0 };
    let tenth_us = i64::try_from(seconds).unwrap_or(i64::MAX / 100_000) * 100_000;
    let middle = first_us + tenth_us..first_us + 9 * tenth_us;
    let count = first.values().filter(|arrival| middle.contains(&arrival.got_us)).count();
    count as f64 / (8.0 * tenth_us as f64 / 1e6)
}

/// The least value that `share` of the sorted values do not exceed.
fn at_share(sorted: &[i64], share: f64) -> i64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

fn ms(us: i64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    /// All due after one second.
    fn late(number: u64, late_us: i64) -> Arrival {
        Arrival { number, due_us: SECOND, got_us: SECOND + late_us }
    }

    #[test]
    fn each_task_that_arrives_once_and_after_its_instant_is_no_finding() {
        let arrivals: Vec<Arrival> = (0..100).map(|number| late(number, 1_000 * (number as i64 + 1))).collect();
        let verdict = judge(100, &arrivals);
        assert_eq!((verdict.arrived, verdict.lost, verdict.doubled, verdict.early), (100, 0, 0, 0));
        assert_eq!((verdict.p50_ms, verdict.p99_ms, verdict.max_ms), (50.0, 99.0, 100.0));
        assert_eq!(verdict.per_second, 1_000.0);
    }

    #[test]
    fn a_task_that_is_missing_is_lost_though_another_came_twice() {
        let verdict = judge(3, &[late(0, 5_000), late(2, 7_000), late(2, 1_000), late(2, 9_000)]);
        assert_eq!((verdict.arrived, verdict.lost, verdict.doubled), (2, 1, 2));
        assert_eq!(verdict.max_ms, 5.0, "the first arrival of a task counts");
    }

    #[test]
    fn an_arrival_before_its_instant_is_early_and_makes_nothing_faster() {
        let verdict = judge(2, &[late(0, -1), late(1, 0)]);
        assert_eq!((verdict.early, verdict.lost, verdict.p50_ms), (1, 0, 0.0));
    }

    #[test]
    fn a_pending_task_that_runs_is_early_and_replaces_no_lost_one() {
        let verdict = judge(1, &[late(FIRST_PENDING, -900_000)]);
        assert_eq!((verdict.early, verdict.arrived, verdict.lost, verdict.doubled), (1, 0, 1, 0));
    }

    #[test]
    fn nothing_arrived_is_all_lost() {
        let verdict = judge(5, &[]);
        assert_eq!((verdict.lost, verdict.arrived, verdict.max_ms), (5, 0, 0.0));
        assert_eq!(steady(10, &[]), 0.0);
    }

    #[test]
    fn a_rare_delay_is_in_the_maximum_and_not_in_the_percentiles() {
        let mut arrivals: Vec<Arrival> = (0..1_000).map(|number| late(number, 2_000)).collect();
        arrivals[17].got_us += SECOND;
        let verdict = judge(1_000, &arrivals);
        assert_eq!((verdict.p50_ms, verdict.p99_ms, verdict.max_ms), (2.0, 2.0, 1_002.0));
    }

    #[test]
    fn the_start_and_the_end_of_a_throughput_do_not_count() {
        // One task a millisecond for ten seconds, with a pile at its start and one at its end.
        let even = (0..10_000_u64).map(|number| late(number, number as i64 * 1_000));
        let piles = (0..5_000_u64).flat_map(|number| [late(20_000 + number, 10), late(40_000 + number, 9_900_000)]);
        let arrivals: Vec<Arrival> = even.chain(piles).collect();
        assert_eq!(steady(10, &arrivals), 1_000.0);
    }
    #[test]
    fn a_peer_that_runs_each_task_twice_is_no_faster() {
        // A thousand tasks, one a millisecond, each a second time a tenth of a second later.
        let once: Vec<Arrival> = (0..1_000_u64).map(|number| late(number, number as i64 * 1_000)).collect();
        let again = once.iter().map(|arrival| Arrival { got_us: arrival.got_us + 100_000, ..*arrival });
        let twice: Vec<Arrival> = once.iter().copied().chain(again).collect();
        assert_eq!((steady(1, &once), steady(1, &twice)), (1_000.0, 1_000.0));
    }
}
