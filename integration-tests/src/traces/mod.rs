//! Compares the histories of a run's nodes with the model of claims, and with the rules of the fence.
//!
//! Each start of a node wrote one file. Its lines are in the order of their steps only within a stream, see
//! [`streams`]. Between streams, and between files, no order is known, except where the model has one. A task's lines
//! are accepted when they can be put in an order that is a path of the model. Where a node was killed, or lost lines,
//! it may have taken steps that no line tells.

mod path;
mod read;
mod shards;
mod streams;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::time::Instant;

use self::{
    path::{Verdict, check},
    read::Start,
    streams::{Stream, doubt, streams_of, tasks_of},
};
use crate::sandbox::{HISTORY, Sandbox};

/// The time from the moment of a check until it reads the lines: one of a wrong step is written by then.
const CHECK_EVERY: Duration = Duration::from_millis(300);

/// The limit for the lines that a path needs: a busy machine writes them late.
const WRITTEN_WITHIN: Duration = Duration::from_secs(30);

/// The moments up to which lines are checked.
const MOMENTS: u32 = 3;

/// The most tasks that a report describes.
const DESCRIBED: usize = 5;

/// The most tasks that may stay undecided, in percent, where nodes may have taken steps that no line tells. In such
/// runs up to 4 % did. They were under way at a fault, and a busy machine has several times as many under way.
const UNDECIDED_IN_DOUBT_PERCENT: usize = 25;

/// Where each step has its line, no task was undecided.
const UNDECIDED_PERCENT: usize = 1;

/// So few undecided tasks are no share: a run may have some hundred tasks only.
const UNDECIDED_ANYWHERE: usize = 5;

/// What the check of a run saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub tasks: usize,
    pub lines: usize,
    /// Tasks whose lines the search could not place within its bound.
    pub undecided: usize,
    /// Whether some node may have taken steps that no line tells.
    pub in_doubt: bool,
}

impl Checked {
    /// Fails when so many tasks are undecided that the check shows too little.
    fn decided(self) -> Result<Self> {
        let percent = if self.in_doubt { UNDECIDED_IN_DOUBT_PERCENT } else { UNDECIDED_PERCENT };
        let most = UNDECIDED_ANYWHERE.max(self.tasks * percent / 100);
        ensure!(self.undecided <= most, "{self}, and {most} may be");
        Ok(self)
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, lines, undecided, .. } = self;
        write!(f, "histories: {lines} lines of {tasks} tasks are paths of the model")?;
        if *undecided > 0 { write!(f, ", {undecided} undecided") } else { Ok(()) }
    }
}

/// Checks the histories of all nodes of a sandbox, after its load. A moment may lie between the lines of two
/// connections whose steps belong together, so the first rounds have moments of their own. A fault that is there in all
/// of them, and up to the last moment when all lines are written, is one of the nodes.
pub async fn check_sandbox(sandbox: &Sandbox) -> Result<Checked> {
    let running: Vec<String> = sandbox.nodes().iter().filter_map(|node| node.running_history()).collect();
    let deadline = Instant::now() + WRITTEN_WITHIN;
    let mut until = String::new();
    let mut rounds = 0;
    loop {
        rounds += 1;
        if rounds <= MOMENTS {
            until = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        }
        tokio::time::sleep(CHECK_EVERY).await;
        let checked = check_folder(sandbox.folder(), &running, &until);
        if checked.is_ok() || Instant::now() >= deadline {
            return checked.and_then(Checked::decided);
        }
    }
}

/// Checks the histories in `folder`: files whose names end in `.history`. A file of a node in `running` has all lines
/// up to the moment `until` (RFC 3339 with microseconds); later lines are left out.
pub fn check_folder(folder: &Path, running: &[String], until: &str) -> Result<Checked> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).context("the folder of the histories")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == HISTORY) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            texts.push((name, std::fs::read_to_string(&path)?));
        }
    }
    texts.sort();
    let starts: Result<Vec<Start>> =
        texts.iter().map(|(name, text)| read::start(name, text, running.contains(name), until)).collect();
    check_starts(&starts?)
}

/// Checks the lines of all starts of all nodes of a run.
pub(crate) fn check_starts(starts: &[Start]) -> Result<Checked> {
    let mut faults = shards::faults(starts);
    let mut checked = Checked {
        lines: starts.iter().map(|start| start.lines.len()).sum(),
        in_doubt: starts.iter().any(|start| doubt(start).is_some()),
        ..Checked::default()
    };
    // Most tasks have the same lines but for their names, so each shape is searched once.
    let mut known: HashMap<Vec<Stream>, Verdict> = HashMap::new();
    for (task, lines) in tasks_of(starts) {
        checked.tasks += 1;
        let streams = streams_of(starts, &lines);
        let verdict = known.entry(streams).or_insert_with_key(|streams| check(streams)).clone();
        match verdict {
            Verdict::Path => {}
            Verdict::Undecided => checked.undecided += 1,
            Verdict::NoPath { stuck } => faults.push(described(starts, task, &lines, &stuck)),
        }
    }
    if faults.is_empty() {
        return Ok(checked);
    }
    let count = faults.len();
    faults.truncate(DESCRIBED);
    bail!("{count} traces that no model allows:\n{}", faults.join("\n"))
}

/// A task's lines of all nodes in the order of their clocks, and the steps at which the search got stuck.
fn described(starts: &[Start], task: &str, lines: &BTreeMap<usize, Vec<usize>>, stuck: &[String]) -> String {
    let mut text = format!("task {task}: no model allows this step next: {}", stuck.join(", or "));
    let mut all: Vec<(&str, String)> = Vec::new();
    for (start, places) in lines {
        let start = &starts[*start];
        all.extend(places.iter().map(|place| {
            let line = &start.lines[*place];
            (line.at.as_str(), format!("{} {}: {:?}", line.at, start.name, line.step))
        }));
    }
    all.sort();
    for (_, line) in all {
        let _ = write!(text, "\n    {line}");
    }
    text
}
