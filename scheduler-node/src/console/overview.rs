//! The first page: the state of the cluster, and the tasks to come.

use std::time::Duration;

use askama::Template;
use axum::{http::StatusCode, response::Response};
use common::wire::Problem;

use super::{
    format::{about, count, span},
    frame::{Frame, show},
    visitor::Visitor,
};
use crate::desk::{Census, NodeFigures, Outlook};

/// Width and number of the bars, for the next hour and the next day: fine enough to show a spike, few enough to
/// query.
const HOUR: (Duration, i32) = (Duration::from_secs(120), 30);
const DAY: (Duration, i32) = (Duration::from_secs(3_600), 24);

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    node: NodeTiles,
    cluster: Vec<Tile>,
    charts: Vec<Chart>,
    /// Figures that could not be read.
    notes: Vec<String>,
}

struct NodeTiles {
    name: String,
    up: String,
    tiles: Vec<Tile>,
}

/// A number and its link.
struct Tile {
    name: &'static str,
    value: String,
    note: &'static str,
    href: &'static str,
    bad: bool,
}

/// A bar chart; each bar is drawn in an area of 1 by 100.
struct Chart {
    title: &'static str,
    bars: Vec<Bar>,
    /// The sum of all bars.
    total: String,
    first: String,
    last: String,
}

struct Bar {
    /// Distance from the top, out of 100.
    top: i64,
    height: i64,
    label: String,
    at_least: bool,
}

pub(super) async fn overview(visitor: Visitor) -> Response {
    let desk = &visitor.desk;
    // The outlook counts the tasks of all queues.
    let sees_all = desk.require_all_queues().is_ok();
    let outlook = |(length, count): (Duration, i32)| async move {
        if sees_all { Some(desk.outlook(length, count).await) } else { None }
    };
    let (census, dead, hour, day) = tokio::join!(desk.census(), desk.dead_groups(), outlook(HOUR), outlook(DAY));
    let mut notes = Vec::new();
    let mut note = |what: &str, problem: &Problem| notes.push(format!("{what}: {}", problem.detail));
    let mut cluster = Vec::new();
    match census {
        Ok(census) => cluster.extend(live_tiles(&census)),
        Err(problem) => note("unfinished tasks", &problem),
    }
    match dead {
        Ok(dead) => {
            let tasks: i64 = dead.groups.iter().map(|group| group.tasks).sum();
            let value = count(tasks, dead.at_least || dead.cut);
            cluster.push(Tile {
                name: "Dead",
                value,
                note: "kept until retention",
                href: "/console/dead",
                bad: tasks > 0,
            });
        }
        Err(problem) => note("dead tasks", &problem),
    }
    let mut charts = Vec::new();
    for (title, outlook) in [("Due in the next hour", hour), ("Due in the next day", day)] {
        match outlook {
            Some(Ok(outlook)) => charts.push(chart(title, &outlook)),
            Some(Err(problem)) => note(title, &problem),
            None => {}
        }
    }
    let frame = Frame::new("Overview", &visitor);
    show(StatusCode::OK, &OverviewPage { frame, node: node_tiles(&desk.node_figures()), cluster, charts, notes })
}

fn live_tiles(census: &Census) -> [Tile; 4] {
    let counts = &census.counts;
    let tile = |name, tasks, note, href| Tile { name, value: about(tasks, census), note, href, bad: false };
    [
        tile("Scheduled", counts.scheduled, "waiting for their due time", "/console/tasks?state=scheduled"),
        tile("Waiting", counts.waiting, "waiting for other tasks", "/console/tasks?state=waiting"),
        tile("Ready", counts.ready, "due, waiting for room", "/console/tasks?state=ready"),
        tile("In flight", counts.in_flight(), "delivered, not finished", "/console/tasks?state=delivered"),
    ]
}

fn node_tiles(figures: &NodeFigures) -> NodeTiles {
    let lateness =
        |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |seconds| format!("≤ {} ms", seconds * 1e3));
    let tile = |name, value, note| Tile { name, value, note, href: "", bad: false };
    // A due task is claimed within milliseconds; alerts already notice a delay of one second.
    let overdue = Tile {
        bad: figures.oldest_overdue >= Duration::from_secs(1),
        ..tile("Overdue", span(figures.oldest_overdue), "the oldest due task in its shards")
    };
    let finished = format!("{:.1}", figures.a_minute(figures.finished()));
    NodeTiles {
        name: figures.node.name.to_string(),
        up: span(figures.up),
        tiles: vec![
            overdue,
            tile("Lateness p50", lateness(figures.lateness.p50_s), "published after due"),
            tile("Lateness p99", lateness(figures.lateness.p99_s), "published after due"),
            tile("Finished / min", finished, "average since it started"),
        ],
    }
}

fn chart(title: &'static str, outlook: &Outlook) -> Chart {
    let most = outlook.iter().map(|bucket| bucket.tasks).max().unwrap_or(0).max(1);
    let bar = |bucket: &crate::desk::Bucket| {
        // A bar with any task is at least 2 high, so that it is visible.
        let height = if bucket.tasks == 0 { 0 } else { (bucket.tasks * 100 / most).max(2) };
        let label = format!("{}: {}", clock_time(bucket.starts_at), count(bucket.tasks, bucket.at_least));
        Bar { top: 100 - height, height, label, at_least: bucket.at_least }
    };
    let total = outlook.iter().map(|bucket| bucket.tasks).sum();
    let edge =
        |bucket: Option<&crate::desk::Bucket>| bucket.map(|bucket| clock_time(bucket.starts_at)).unwrap_or_default();
    Chart {
        title,
        bars: outlook.iter().map(bar).collect(),
        total: count(total, outlook.iter().any(|bucket| bucket.at_least)),
        first: edge(outlook.first()),
        last: edge(outlook.last()),
    }
}

fn clock_time(moment: common::time::UnixMicros) -> String {
    moment.to_utc().format("%H:%M").to_string()
}
