//! The figures of all runs, and their medians.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    judge::{self, Verdict},
    machine::Machine,
    work::{Outcome, Told, Work},
};

/// A median with the least and the largest value of all runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median, min, max })
    }
}

/// One run of one work.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    /// Absent where nothing arrives.
    pub arrivals: Option<Verdict>,
    /// Tasks a second, as the work counts them.
    pub per_second: f64,
    pub submitted_per_second: f64,
    pub sleeper_p99_ms: f64,
}

/// One peer: a row of the table.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub peer: String,
    /// What RabbitMQ or PostgreSQL do alone: no scheduler.
    pub is_limit: bool,
    /// Why a work failed. It was not tried again.
    pub not_run: BTreeMap<Work, String>,
    /// Works that are not for this peer, and why.
    pub not_its: BTreeMap<Work, String>,
    pub settings: String,
    pub version: String,
    pub unfair: String,
    pub runs: BTreeMap<Work, Vec<Run>>,
}

impl Row {
    pub(super) fn add(&mut self, work: Work, seconds: u64, outcome: Outcome, sleeper_p99_ms: f64) {
        let (told, arrivals) = match outcome {
            Outcome::Not(why) => {
                self.not_its.insert(work, why);
                return;
            }
            Outcome::Counted(told) => (told, None),
            Outcome::Arrived(told, arrivals) => (told, Some(arrivals)),
        };
        let submitted_per_second = told.submitted as f64 / told.submit_seconds.max(1e-9);
        let verdict = arrivals.as_ref().map(|arrivals| judge::judge(told.submitted, arrivals));
        let per_second = match (&arrivals, &verdict) {
            (Some(arrivals), _) if work == Work::Throughput => judge::steady(seconds, arrivals),
            (_, Some(verdict)) => verdict.per_second,
            (_, None) => submitted_per_second,
        };
        let run = Run { arrivals: verdict, per_second, submitted_per_second, sleeper_p99_ms };
        self.runs.entry(work).or_default().push(run);
        let Told { settings, version, unfair, .. } = told;
        (self.settings, self.version, self.unfair) = (settings, version, unfair);
    }

    pub(super) fn rate(&self, work: Work) -> Option<Spread> {
        Spread::of(self.of(work).iter().map(|run| run.per_second).collect())
    }

    pub(super) fn late(&self, work: Work, figure: impl Fn(&Verdict) -> f64) -> Option<Spread> {
        Spread::of(self.of(work).iter().filter_map(|run| run.arrivals.as_ref().map(&figure)).collect())
    }

    /// Lost, doubled and early tasks of all runs. Work that ends by the clock leaves tasks behind, which are not lost.
    pub(super) fn findings(&self) -> Option<[u64; 3]> {
        let verdicts = || {
            let arrived = |(work, run): (Work, &Run)| Some((work, run.arrivals.clone()?));
            self.runs.iter().flat_map(|(work, runs)| runs.iter().map(|run| (*work, run))).filter_map(arrived)
        };
        verdicts().next()?;
        let lost = verdicts().filter(|(work, _)| *work != Work::Throughput).map(|(_, verdict)| verdict.lost).sum();
        let (doubled, early) =
            (verdicts().map(|(_, verdict)| verdict.doubled).sum(), verdicts().map(|(_, verdict)| verdict.early).sum());
        Some([lost, doubled, early])
    }

    /// Whether it did each work that is its own, and no task of any run was lost, doubled or early.
    pub(super) fn is_sound(&self) -> bool {
        self.not_run.is_empty() && self.findings().is_none_or(|findings| findings == [0; 3])
    }

    /// The reason when nothing of it was run.
    pub(super) fn why_nothing(&self) -> Option<&str> {
        let mut why = self.not_run.values().chain(self.not_its.values());
        if self.runs.is_empty() { why.next().map(String::as_str) } else { None }
    }

    fn of(&self, work: Work) -> &[Run] {
        self.runs.get(&work).map_or(&[], Vec::as_slice)
    }
}

/// Everything that was measured, as the JSON file holds it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Results {
    pub began: String,
    pub machine: Machine,
    pub stores: BTreeMap<&'static str, String>,
    /// The amounts of the works, by option.
    pub amounts: BTreeMap<&'static str, u64>,
    pub sleeper_p99_ms: f64,
    pub rows: Vec<Row>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::judge::Arrival;

    #[test]
    fn the_median_is_the_middle_run_or_the_middle_of_two() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(vec![4.0, 2.0]), Some(Spread { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn what_a_throughput_leaves_behind_is_not_lost() {
        let told = |submitted| Told { submitted, submit_seconds: 1.0, ..Told::default() };
        let once = vec![Arrival { number: 0, due_us: 1, got_us: 2 }];
        let mut row = Row::default();
        row.add(Work::Throughput, 1, Outcome::Arrived(told(10), once.clone()), 0.0);
        assert_eq!(row.findings(), Some([0, 0, 0]));
        row.add(Work::Burst, 1, Outcome::Arrived(told(10), once), 0.0);
        assert_eq!(row.findings(), Some([9, 0, 0]));
    }

    #[test]
    fn a_peer_is_sound_when_it_did_all_its_works_and_no_task_was_amiss() {
        let told = Told { submitted: 1, submit_seconds: 1.0, ..Told::default() };
        let once = vec![Arrival { number: 0, due_us: 1, got_us: 2 }];
        let mut row = Row::default();
        row.add(Work::Submit, 1, Outcome::Counted(told.clone()), 0.0);
        row.add(Work::Burst, 1, Outcome::Arrived(told.clone(), once), 0.0);
        assert!(row.is_sound(), "nothing arrives in a work that only counts");
        let failed = Row { not_run: [(Work::Late, "it hung".to_owned())].into(), ..row.clone() };
        assert!(!failed.is_sound());
        row.add(Work::Burst, 1, Outcome::Arrived(told, Vec::new()), 0.0);
        assert!(!row.is_sound(), "a task is lost");
    }
}
