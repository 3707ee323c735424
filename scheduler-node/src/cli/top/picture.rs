//! The view of one moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chrono::SecondsFormat;
use common::{
    time::UnixMicros,
    wire::{
        ClusterReport,
        cluster::{MasterReport, NodeReport},
    },
};
use serde::Serialize;

use super::figures::{Figures, Growth};
use crate::cli::{cluster::standing, error::Error, moment, print};

/// Only the busiest queues are shown, as many as fit on a screen.
const SHOWN_QUEUES: usize = 20;

const LATENESS: &str = "duetime_lateness_seconds";

/// A picture; its JSON is the output for programs. Rates are a second, over the `window_ms` before it.
#[derive(Debug, Serialize)]
pub(super) struct Picture {
    taken_at: UnixMicros,
    window_ms: u64,
    master: Option<MasterReport>,
    shards: usize,
    shards_unowned: usize,
    /// Over all queues; absent when no task was published.
    lateness: Option<Lateness>,
    nodes: Vec<NodeLine>,
    /// The busiest first.
    queues: Vec<QueueLine>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Lateness {
    p50_ms: f64,
    p99_ms: f64,
}

/// One node; its figures are absent when it did not answer.
#[derive(Debug, Serialize)]
struct NodeLine {
    name: String,
    state: String,
    shards_owned: usize,
    figures: Option<NodeFigures>,
}

#[derive(Debug, Serialize)]
struct NodeFigures {
    heap_entries: f64,
    in_flight: f64,
    oldest_overdue_s: f64,
    lanes_closed: f64,
}

#[derive(Debug, Serialize)]
struct QueueLine {
    queue: String,
    submitted_per_second: f64,
    published_per_second: f64,
    finished_per_second: f64,
    lateness: Option<Lateness>,
}

impl Picture {
    pub(super) fn of(
        taken_at: UnixMicros,
        report: &ClusterReport,
        figures: &BTreeMap<String, Figures>,
        growth: &Growth,
        notes: &[String],
    ) -> Self {
        let node = |node: &NodeReport| NodeLine {
            name: node.name.to_string(),
            state: standing(node),
            shards_owned: node.shards_owned,
            figures: figures.get(node.name.as_str()).map(NodeFigures::of),
        };
        Self {
            taken_at,
            window_ms: u64::try_from(growth.time().as_millis()).unwrap_or(u64::MAX),
            master: report.master.clone(),
            shards: report.shards.len(),
            shards_unowned: report.shards.iter().filter(|shard| shard.owner.is_none()).count(),
            lateness: Lateness::of(growth, None),
            nodes: report.nodes.iter().map(node).collect(),
            queues: queues(growth),
            notes: report.remarks().into_iter().chain(notes.iter().cloned()).collect(),
        }
    }

    pub(super) fn json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(Error::Unwritable)
    }

    pub(super) fn text(&self) -> String {
        let mut parts = vec![self.summary(), self.node_table(), self.queue_table()];
        parts.extend(self.notes.iter().map(|note| print::printable(note)));
        parts.join("\n\n")
    }

    fn summary(&self) -> String {
        let time = self.taken_at.to_utc().to_rfc3339_opts(SecondsFormat::Secs, true);
        let master = match &self.master {
            Some(master) => format!("master {} since term {}", master.name, master.term.revision()),
            None => "no master".to_owned(),
        };
        let owned = self.shards - self.shards_unowned;
        let window = moment::span(Duration::from_millis(self.window_ms));
        let lateness = match &self.lateness {
            Some(late) => format!("p50 {}, p99 {}", ms(late.p50_ms), ms(late.p99_ms)),
            None => "no task was published".to_owned(),
        };
        format!("{time}  {master}  {owned} of {} shards owned\nlateness over {window}: {lateness}", self.shards)
    }

    fn node_table(&self) -> String {
        let row = |node: &NodeLine| {
            let mut row = vec![node.name.clone(), node.shards_owned.to_string()];
            row.extend(match &node.figures {
                Some(figures) => [
                    format!("{:.0}", figures.heap_entries),
                    format!("{:.0}", figures.in_flight),
                    moment::span(Duration::try_from_secs_f64(figures.oldest_overdue_s).unwrap_or_default()),
                    format!("{:.0}", figures.lanes_closed),
                ],
                None => ["?"; 4].map(str::to_owned),
            });
            row.push(node.state.clone());
            row
        };
        let head = ["NODE", "SHARDS", "HEAP", "IN FLIGHT", "OVERDUE", "LANES CLOSED", "STATE"];
        print::table(&head, self.nodes.iter().map(row).collect())
    }

    fn queue_table(&self) -> String {
        let row = |queue: &QueueLine| {
            let late = |of: fn(&Lateness) -> f64| queue.lateness.as_ref().map(|late| ms(of(late))).unwrap_or_default();
            vec![
                queue.queue.clone(),
                rate(queue.submitted_per_second),
                rate(queue.published_per_second),
                rate(queue.finished_per_second),
                late(|late| late.p50_ms),
                late(|late| late.p99_ms),
            ]
        };
        let head = ["QUEUE", "SUBMITTED/S", "PUBLISHED/S", "FINISHED/S", "P50", "P99"];
        let table = print::table(&head, self.queues.iter().take(SHOWN_QUEUES).map(row).collect());
        match self.queues.len().saturating_sub(SHOWN_QUEUES) {
            0 => table,
            more => format!("{table}\nand {more} more"),
        }
    }
}

impl Lateness {
    fn of(growth: &Growth, queue: Option<&str>) -> Option<Self> {
        let at_ms = |share| growth.quantile(LATENESS, queue, share).map(|seconds| seconds * 1_000.0);
        Some(Self { p50_ms: at_ms(0.5)?, p99_ms: at_ms(0.99)? })
    }
}

impl NodeFigures {
    fn of(figures: &Figures) -> Self {
        Self {
            heap_entries: figures.sum("duetime_heap_entries"),
            in_flight: figures.sum("duetime_tasks_in_flight"),
            oldest_overdue_s: figures.sum("duetime_oldest_overdue_seconds"),
            lanes_closed: figures.sum("duetime_lanes_closed"),
        }
    }
}

/// The queues with any activity.
fn queues(growth: &Growth) -> Vec<QueueLine> {
    let submitted = growth.by_queue("duetime_tasks_submitted_total");
    let published = growth.by_queue("duetime_publishes_total");
    let finished = growth.by_queue("duetime_tasks_finished_total");
    let names: BTreeSet<&String> =
        [&submitted, &published, &finished].into_iter().flat_map(|rates| rates.keys()).collect();
    let of = |rates: &BTreeMap<String, f64>, name: &String| rates.get(name).copied().unwrap_or_default();
    let line = |name: &String| QueueLine {
        queue: name.clone(),
        submitted_per_second: of(&submitted, name),
        published_per_second: of(&published, name),
        finished_per_second: of(&finished, name),
        lateness: Lateness::of(growth, Some(name)),
    };
    let mut lines: Vec<QueueLine> = names.into_iter().map(line).filter(|line| line.busy() > 0.0).collect();
    lines.sort_by(|one, other| other.busy().total_cmp(&one.busy()));
    lines
}

impl QueueLine {
    fn busy(&self) -> f64 {
        self.submitted_per_second + self.published_per_second + self.finished_per_second
    }
}

fn ms(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.1} ms") } else { moment::span(Duration::from_secs_f64(ms / 1_000.0)) }
}

fn rate(per_second: f64) -> String {
    if per_second < 10.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn report() -> ClusterReport {
        let node = |name: &str| {
            json!({
                "name": name, "incarnation": "0199f3a0-0000-7000-8000-000000000005", "url": null, "leaving": false,
                "unfit": [], "broker_unfit": false, "version": "0.1.0", "started_at": "2030-01-01T00:00:00Z",
                "shards_owned": 1,
            })
        };
        let shard = |shard: u16, owner: Option<&str>| json!({ "shard": shard, "database": "main", "assigned": "a", "owner": owner, "epoch": 4 });
        serde_json::from_value(json!({
            "node": { "name": "a", "incarnation": "0199f3a0-0000-7000-8000-000000000005" },
            "nodes": [node("a"), node("b")], "master": { "name": "b", "term": 9 },
            "shards": [shard(0, Some("a")), shard(1, None)], "frozen_until": null, "lag": {},
        }))
        .expect("a report")
    }

    fn picture() -> Picture {
        let published = |count: u32| {
            format!(
                "duetime_publishes_total{{queue=\"mails\"}} {count}\nduetime_publishes_total{{queue=\"idle\"}} 7\n\
                     duetime_lateness_seconds_bucket{{queue=\"mails\",le=\"0.002\"}} {count}\n\
                     duetime_lateness_seconds_bucket{{queue=\"mails\",le=\"+Inf\"}} {count}\n\
                     duetime_heap_entries{{database=\"main\"}} 41\nduetime_heap_entries{{database=\"more\"}} 1\n"
            )
        };
        let (before, after) = (Figures::read(&published(10)), Figures::read(&published(60)));
        let mut growth = Growth::over(Duration::from_secs(5));
        growth.add(&before, &after);
        let figures = BTreeMap::from([("a".to_owned(), after)]);
        Picture::of(UnixMicros::new(0), &report(), &figures, &growth, &["node b has no figures".to_owned()])
    }

    #[test]
    fn a_picture_shows_the_nodes_and_the_queues_in_which_anything_happened() {
        let text = picture().text();
        for part in ["master b since term 9", "1 of 2 shards owned", "lateness over 5 s: p50 1.0 ms, p99 2.0 ms"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        assert!(row("a ").is_some_and(|row| row.contains("42")), "{text}");
        assert!(row("b ").is_some_and(|row| row.contains('?')), "{text}");
        assert!(row("mails").is_some_and(|row| row.contains("10")), "{text}");
        assert_eq!(row("idle"), None);
    }

    #[test]
    fn a_program_reads_the_same_picture() {
        let json: Value = serde_json::from_str(&picture().json().expect("JSON")).expect("JSON");
        assert_eq!(json["queues"][0]["published_per_second"], 10.0);
        assert_eq!(
            (&json["nodes"][0]["figures"]["heap_entries"], &json["nodes"][1]["figures"]),
            (&json!(42.0), &Value::Null)
        );
        assert_eq!((&json["shards_unowned"], &json["window_ms"]), (&json!(1), &json!(5_000)));
    }
}
