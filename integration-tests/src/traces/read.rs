//! Reads the history of one start of a node.

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

/// The lines of a file up to `until`. A line that cannot be read was torn by a kill or a full disk: it is a gap.
pub(crate) fn start(name: &str, text: &str, is_running: bool, until: &str) -> Start {
    let torn = || Line { at: String::new(), step: Step::Gap { lost: 1 } };
    let lines = text.lines().filter(|line| !line.is_empty());
    let lines = lines.map(|line| serde_json::from_str(line).unwrap_or_else(|_| torn()));
    let lines: Vec<Line> = lines.filter(|line: &Line| line.at.as_str() <= until).collect();
    let has_stopped = lines.last().is_some_and(|line| line.step == Step::Stopped);
    Start { name: name.to_owned(), lines, is_whole: is_running || has_stopped }
}
