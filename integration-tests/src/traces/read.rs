//! Reads the history of one start of a node.

use anyhow::{Result, anyhow};
use serde::Deserialize;

/// One start of a node.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) lines: Vec<Line>,
    /// Whether the lines are all that the node did. A node that was killed may have done more after its last line.
    pub(crate) is_whole: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) at: String,
    #[serde(flatten)]
    pub(crate) step: Step,
}

/// A line's step, spelled as the node spells it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum Step {
    Started,
    Stopped,
    Submitted { task: String },
    Claimed { task: String, attempt: u8, epoch: i64, now: Option<String> },
    Rescued { task: String, attempt: u8, epoch: i64, now: Option<String> },
    Published { task: String, attempt: u8 },
    Confirmed { task: String, attempt: u8 },
    Unfit { task: String, attempt: u8 },
    Returned { task: String, attempt: u8 },
    Nacked { task: String, attempt: u8 },
    Unknown { task: String, attempt: u8 },
    Failed { task: String, attempt: u8 },
    Finished { task: String, attempt: u8, outcome: String },
    Cancelled { task: String, attempt: u8 },
    Expired { task: String },
    Revived { task: String },
    Released { task: String },
    ShardAcquired { shard: u16, epoch: i64 },
    ShardReleased { shard: u16, epoch: i64 },
    Doubt { op: String },
    Gap { lost: u64 },
}

impl Step {
    /// The task that takes the step.
    pub(crate) fn task(&self) -> Option<&str> {
        match self {
            Self::Submitted { task }
            | Self::Claimed { task, .. }
            | Self::Rescued { task, .. }
            | Self::Published { task, .. }
            | Self::Confirmed { task, .. }
            | Self::Unfit { task, .. }
            | Self::Returned { task, .. }
            | Self::Nacked { task, .. }
            | Self::Unknown { task, .. }
            | Self::Failed { task, .. }
            | Self::Finished { task, .. }
            | Self::Cancelled { task, .. }
            | Self::Expired { task }
            | Self::Revived { task }
            | Self::Released { task } => Some(task),
            _ => None,
        }
    }

    /// Whether the node may have taken steps that no line tells, from here on.
    pub(crate) const fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Doubt { .. } | Self::Gap { .. })
    }
}

/// The lines of a file up to `until`. A kill tears the last line of a file, which is then a gap; a full disk tears
/// lines, after which the file tells a gap. Any other line that cannot be read is an error.
pub(crate) fn start(name: &str, text: &str, is_running: bool, until: &str) -> Result<Start> {
    let mut lines: Vec<Line> = Vec::new();
    let mut torn = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let read = serde_json::from_str::<Line>(line);
        match (read, torn) {
            (Err(_), _) => torn = torn.or(Some(line)),
            (Ok(read), Some(line)) if !matches!(read.step, Step::Gap { .. }) => return Err(unreadable(name, line)),
            (Ok(read), _) => {
                torn = None;
                lines.push(read);
            }
        }
    }
    if let Some(line) = torn {
        // Of a node that runs, the rest of the line comes in a moment.
        if is_running {
            return Err(unreadable(name, line));
        }
        lines.push(Line { at: String::new(), step: Step::Gap { lost: 1 } });
    }
    lines.retain(|line| line.at.as_str() <= until);
    let has_stopped = lines.last().is_some_and(|line| line.step == Step::Stopped);
    Ok(Start { name: name.to_owned(), lines, is_whole: is_running || has_stopped })
}

fn unreadable(name: &str, line: &str) -> anyhow::Error {
    anyhow!("the history of {name} has a line that cannot be read: {line}")
}
