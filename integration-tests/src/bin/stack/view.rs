//! The live view of the demo: redrawn in place on a terminal, a line now and then elsewhere.

use std::{
    convert::Infallible,
    io::{IsTerminal, Write, stdout},
    time::{Duration, Instant},
};

use integration_tests::{clock::now_us, sandbox::Sandbox};
use tokio::sync::watch;

const REFRESH: Duration = Duration::from_millis(500);
const LINE_EVERY: Duration = Duration::from_secs(4);
/// The view shows the lateness of tasks that were due within this last time.
const RECENT_US: i64 = 5_000_000;

/// The story's current state.
#[derive(Clone, Debug)]
pub(crate) struct Happening {
    pub phase: &'static str,
    /// Printed once.
    pub note: Option<String>,
}

impl Default for Happening {
    fn default() -> Self {
        Self { phase: "submitting", note: None }
    }
}

pub(crate) struct View<'a> {
    cluster: &'a Sandbox,
    happening: watch::Receiver<Happening>,
    began: Instant,
}

impl<'a> View<'a> {
    pub(crate) fn new(cluster: &'a Sandbox, happening: watch::Receiver<Happening>) -> Self {
        Self { cluster, happening, began: Instant::now() }
    }

    /// Shows the view until it is dropped.
    pub(crate) async fn show(mut self) -> Infallible {
        if stdout().is_terminal() { self.in_place().await } else { self.in_lines().await }
    }

    async fn in_place(&mut self) -> Infallible {
        let mut drawn = 0;
        loop {
            let nodes = self.nodes().await;
            let mut lines = vec![self.counts(), self.lateness()];
            lines.extend(nodes);
            let mut out = stdout().lock();
            if drawn > 0 {
                // Moves up to the first line of the last picture, and clears from there.
                write!(out, "\x1b[{drawn}F\x1b[J").ok();
            }
            if let Some(note) = self.note() {
                writeln!(out, "{note}").ok();
            }
            writeln!(out, "{}", lines.join("\n")).ok();
            out.flush().ok();
            drop(out);
            drawn = lines.len();
            tokio::time::sleep(REFRESH).await;
        }
    }

    async fn in_lines(&mut self) -> Infallible {
        let mut last: Option<Instant> = None;
        loop {
            if let Some(note) = self.note() {
                println!("{note}");
                last = None;
            }
            if last.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
                last = Some(Instant::now());
                let nodes: Vec<String> = self.nodes().await.iter().map(|node| node.trim().to_owned()).collect();
                println!("{} | {} | {}", self.counts(), self.lateness(), nodes.join(", "));
            }
            tokio::time::sleep(REFRESH).await;
        }
    }

    fn note(&mut self) -> Option<String> {
        if self.happening.has_changed().unwrap_or(false) {
            self.happening.borrow_and_update().note.clone()
        } else {
            None
        }
    }

    fn counts(&self) -> String {
        let progress = self.cluster.ledger.progress();
        format!(
            "{:5.1} s  submitted {}  due {}  delivered {}  ({})",
            self.began.elapsed().as_secs_f32(),
            progress.submitted,
            progress.due,
            progress.delivered,
            self.happening.borrow().phase,
        )
    }

    fn lateness(&self) -> String {
        let now_us = now_us();
        format!("late by {}", self.cluster.ledger.lateness(now_us - RECENT_US, now_us))
    }

    /// The master, and how many shards each node owns.
    async fn nodes(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for node in self.cluster.nodes() {
            let name = node.name();
            if !node.is_running() {
                lines.push(format!("  {name}  dead"));
                continue;
            }
            let client = node.client();
            let shards = client.metric("duetime_shards_owned").await.ok().flatten();
            let master = client.metric("duetime_master").await.ok().flatten() == Some(1.0);
            let shards = shards.map_or_else(|| "?".into(), |count| count.to_string());
            lines.push(format!("  {name}  {shards} shards{}", if master { ", master" } else { "" }));
        }
        lines
    }
}
