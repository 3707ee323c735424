//! The nodes' own metrics, summed over the nodes, and their growth between two scrapes.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use integration_tests::{client::Client, sandbox::Sandbox};
use reqwest::Method;
use tokio::time::Instant;

use super::{machine::Watch, report::Report};

/// Waits for the end of the warm-up, then watches nodes and machine until `end`.
pub(super) async fn watched(cluster: &Sandbox, warm_up: Duration, end: Instant) -> Result<(Scrape, Watch)> {
    tokio::time::sleep(warm_up).await;
    let clients = cluster.clients();
    let (watch, before) = (Watch::start(cluster), Scrape::of(&clients).await?);
    tokio::time::sleep_until(end).await;
    Ok((Scrape::of(&clients).await?.since(&before), watch))
}

/// The histogram of the nodes' statements, by `op`.
const STATEMENTS: &str = "duetime_database_statement_seconds";

/// Every series by its name and labels.
#[derive(Debug, Default)]
pub(super) struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    pub(super) async fn of(clients: &[Client]) -> Result<Self> {
        let mut all = Self::default();
        let answers = clients.iter().map(|client| client.send(Method::GET, "/metrics", None));
        for answer in futures::future::join_all(answers).await {
            all.add(&answer?.text().await.context("reading metrics")?);
        }
        Ok(all)
    }

    fn add(&mut self, exposition: &str) {
        for line in exposition.lines().filter(|line| !line.starts_with('#')) {
            if let Some((series, value)) = line.rsplit_once(' ')
                && let Ok(value) = value.parse::<f64>()
            {
                *self.0.entry(series.to_owned()).or_default() += value;
            }
        }
    }

    /// How much each counter has grown since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let grown = |(series, value): (&String, &f64)| {
            (series.clone(), value - earlier.0.get(series).copied().unwrap_or_default())
        };
        Self(self.0.iter().map(grown).collect())
    }

    /// The series of one name, by the value of one label.
    fn by_label<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = (&'a str, &'a str, f64)> {
        self.0.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(name)?;
            Some((label_of(labels, label)?, labels, *value))
        })
    }

    /// The histogram `name` over all series with `mark` among their labels.
    pub(super) fn histogram(&self, name: &str, mark: &str) -> Histogram {
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for (bound, labels, count) in self.by_label(&format!("{name}_bucket"), "le") {
            let bound = bound.parse().unwrap_or(f64::INFINITY);
            if labels.contains(mark) {
                match counts.iter_mut().find(|(known, _)| *known == bound) {
                    Some((_, sum)) => *sum += count,
                    None => counts.push((bound, count)),
                }
            }
        }
        counts.sort_by(|one, other| one.0.total_cmp(&other.0));
        Histogram { counts }
    }

    /// Reports what the nodes did, for a person who looks for the time spent.
    pub(super) fn details(&self, part: &str, seconds: f64, report: &mut Report) {
        let name = STATEMENTS;
        for (op, labels, count) in self.by_label(&format!("{name}_count"), "op") {
            if count / seconds >= 0.5 {
                let sum = self.0.get(&format!("{name}_sum{labels}")).copied().unwrap_or_default();
                report.figure(part, &format!("statement {op}: each"), sum / count * 1e3, "ms");
                let p99 = self.histogram(name, &format!("op=\"{op}\"")).quantile(0.99);
                report.figure(part, &format!("statement {op}: p99"), p99 * 1e3, "ms");
                report.figure(part, &format!("statement {op}: rate"), count / seconds, "/s");
                report.figure(part, &format!("statement {op}: under way"), sum / seconds, "");
            }
        }
        for (name, text, factor, unit) in [
            ("duetime_claim_batch_tasks", "tasks a claim", 1.0, ""),
            ("duetime_broker_confirm_seconds", "a batch with the broker", 1e3, "ms"),
            ("duetime_http_request_duration_seconds", "an HTTP request", 1e3, "ms"),
        ] {
            let (sum, count) = (self.total(&format!("{name}_sum")), self.total(&format!("{name}_count")));
            report.figure(part, &format!("{text}: mean"), factor * sum / count.max(1.0), unit);
            report.figure(part, &format!("{text}: rate"), count / seconds, "/s");
        }
    }

    /// Reports how often each statement was sent, the most frequent first.
    pub(super) fn statements(&self, part: &str, seconds: f64, report: &mut Report) {
        let (counts, mut rates) = (format!("{STATEMENTS}_count"), BTreeMap::<&str, f64>::new());
        for (op, _, count) in self.by_label(&counts, "op") {
            *rates.entry(op).or_default() += count / seconds;
        }
        let mut rates: Vec<(&str, f64)> = rates.into_iter().filter(|(_, rate)| *rate > 0.0).collect();
        rates.sort_by(|one, other| other.1.total_cmp(&one.1));
        for (op, rate) in rates {
            report.figure(part, &format!("statement {op}"), rate, "/s");
        }
    }

    pub(super) fn total(&self, name: &str) -> f64 {
        self.total_of(name, "")
    }

    /// The sum of all series of this name with `mark` among their labels.
    pub(super) fn total_of(&self, name: &str, mark: &str) -> f64 {
        let is_meant = |series: &str| {
            series
                .strip_prefix(name)
                .is_some_and(|rest| rest.contains(mark) && (rest.is_empty() || rest.starts_with('{')))
        };
        self.0.iter().filter(|(series, _)| is_meant(series)).map(|(_, value)| value).sum()
    }
}

/// Upper bounds, each with its cumulative count.
#[derive(Debug)]
pub(super) struct Histogram {
    counts: Vec<(f64, f64)>,
}

impl Histogram {
    pub(super) fn count(&self) -> f64 {
        self.counts.last().map_or(0.0, |(_, count)| *count)
    }

    /// The quantile; values are taken as evenly spread within a bucket. NaN for an empty histogram.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.count();
        let mut below = (0.0, 0.0);
        for (bound, count) in &self.counts {
            if *count >= wanted && *count > below.1 {
                let part = (wanted - below.1) / (count - below.1);
                return if bound.is_finite() { below.0 + part * (bound - below.0) } else { below.0 };
            }
            below = (*bound, *count);
        }
        f64::NAN
    }

    /// The bound of the last bucket with any values.
    pub(super) fn largest(&self) -> f64 {
        self.quantile(1.0)
    }
}

fn label_of<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(text: &str) -> Scrape {
        let mut scrape = Scrape::default();
        scrape.add(text);
        scrape
    }

    #[test]
    fn quantiles_are_read_off_what_was_added_between_two_looks_of_all_nodes() {
        let before = scrape(
            "late_bucket{queue=\"a\",le=\"1\"} 100\nlate_bucket{queue=\"a\",le=\"2\"} 100\nlate_bucket{queue=\"a\",le=\"+Inf\"} 100\n",
        );
        let node = "late_bucket{queue=\"a\",le=\"1\"} 100\nlate_bucket{queue=\"a\",le=\"2\"} 150\n\
                    late_bucket{queue=\"a\",le=\"+Inf\"} 150\nlate_bucket{queue=\"b\",le=\"1\"} 9\n";
        let mut after = scrape(node);
        after.add(node);
        let late = after.since(&before).histogram("late", "queue=\"a\"");
        assert_eq!(late.count(), 200.0);
        assert_eq!(late.quantile(0.25), 0.5);
        assert_eq!(late.quantile(0.75), 1.5);
        assert_eq!(late.largest(), 2.0);
    }
}
