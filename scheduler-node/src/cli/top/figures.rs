//! A node's figures, read from its Prometheus metrics, and their growth between two samples.

use std::{collections::BTreeMap, time::Duration};

/// Every series by its name and labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures(BTreeMap<String, f64>);

impl Figures {
    pub(super) fn read(exposition: &str) -> Self {
        let series = exposition.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// The sum of all series of one name.
    pub(super) fn sum(&self, name: &str) -> f64 {
        self.of(name).map(|(_, value)| value).sum()
    }

    /// All series of one name, by their labels.
    fn of(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{')).then_some((labels, *value))
        })
    }
}

/// The growth of all nodes' counters, and the time it took.
#[derive(Debug, Default)]
pub(super) struct Growth {
    grown: Figures,
    time: Duration,
}

impl Growth {
    pub(super) fn over(time: Duration) -> Self {
        Self { grown: Figures::default(), time }
    }

    pub(super) fn time(&self) -> Duration {
        self.time
    }

    /// A counter that fell belongs to a restarted node: its whole value is new.
    pub(super) fn add(&mut self, earlier: &Figures, later: &Figures) {
        for (series, value) in &later.0 {
            let before = earlier.0.get(series).copied().unwrap_or_default();
            let grown = if before > *value { *value } else { value - before };
            *self.grown.0.entry(series.clone()).or_default() += grown;
        }
    }

    /// A counter's growth a second, by queue.
    pub(super) fn by_queue(&self, name: &str) -> BTreeMap<String, f64> {
        let mut rates = BTreeMap::new();
        let seconds = self.time.as_secs_f64();
        for (labels, grown) in self.grown.of(name) {
            if let Some(queue) = label_of(labels, "queue").filter(|_| seconds > 0.0) {
                *rates.entry(queue.to_owned()).or_default() += grown / seconds;
            }
        }
        rates
    }

    /// The value that this share of the histogram's new observations does not exceed, for one queue or all; `None`
    /// without observations.
    pub(super) fn quantile(&self, name: &str, queue: Option<&str>, share: f64) -> Option<f64> {
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for (labels, count) in self.grown.of(&format!("{name}_bucket")) {
            if queue.is_some_and(|queue| label_of(labels, "queue") != Some(queue)) {
                continue;
            }
            let bound = label_of(labels, "le")?.parse().unwrap_or(f64::INFINITY);
            match counts.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += count,
                None => counts.push((bound, count)),
            }
        }
        counts.sort_by(|one, other| one.0.total_cmp(&other.0));
        interpolated(&counts, share)
    }
}

/// `counts`: upper bounds, each with its cumulative count. Values are taken as evenly spread within a bucket.
fn interpolated(counts: &[(f64, f64)], share: f64) -> Option<f64> {
    let rank = share * counts.last().map(|(_, count)| *count)?;
    let mut below = (0.0, 0.0);
    for (bound, count) in counts {
        if *count >= rank && *count > below.1 {
            let part = (rank - below.1) / (count - below.1);
            return Some(if bound.is_finite() { below.0 + part * (bound - below.0) } else { below.0 });
        }
        below = (*bound, *count);
    }
    None
}

fn label_of<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_sum_of_its_series_and_of_no_longer_names() {
        let figures = Figures::read("# HELP a x\na{x=\"1\"} 2\na{x=\"2\"} 3\na_total 50\nb 7\n");
        assert_eq!((figures.sum("a"), figures.sum("b"), figures.sum("c")), (5.0, 7.0, 0.0));
    }

    #[test]
    fn rates_and_quantiles_are_of_what_was_added_and_of_all_nodes() {
        let before =
            Figures::read("n{queue=\"a\"} 5\nl_bucket{queue=\"a\",le=\"1\"} 7\nl_bucket{queue=\"a\",le=\"+Inf\"} 7\n");
        let after = Figures::read(
            "n{queue=\"a\"} 25\nl_bucket{queue=\"a\",le=\"1\"} 17\nl_bucket{queue=\"a\",le=\"+Inf\"} 17\n",
        );
        let mut growth = Growth::over(Duration::from_secs(2));
        growth.add(&before, &after);
        growth.add(&before, &after);
        assert_eq!(growth.by_queue("n"), BTreeMap::from([("a".to_owned(), 20.0)]));
        assert_eq!(growth.quantile("l", Some("a"), 0.5), Some(0.5));
        assert_eq!(growth.quantile("l", None, 0.99), Some(0.99));
        assert_eq!(growth.quantile("l", Some("b"), 0.5), None);
    }

    #[test]
    fn a_node_that_was_started_anew_counts_from_nothing() {
        let mut growth = Growth::over(Duration::from_secs(1));
        growth.add(&Figures::read("n{queue=\"a\"} 1000\n"), &Figures::read("n{queue=\"a\"} 3\n"));
        assert_eq!(growth.by_queue("n")["a"], 3.0);
        assert!(Growth::default().by_queue("n").is_empty());
        assert_eq!(Growth::default().quantile("l", None, 0.5), None);
    }
}
