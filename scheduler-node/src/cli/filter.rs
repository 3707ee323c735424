//! The filter of the commands that list many tasks or act on them.

use clap::{Args, builder::PossibleValuesParser};
use common::{task::TaskState, time::UnixMicros};
use serde::Serialize;
use serde_with::skip_serializing_none;

use super::moment;

/// Which tasks. All filters given must match.
#[skip_serializing_none]
#[derive(Debug, Args, Serialize)]
pub(super) struct Filter {
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    #[arg(long, value_parser = PossibleValuesParser::new(TaskState::ALL.map(TaskState::text)))]
    state: Option<String>,
    /// The business key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[arg(long, value_name = "KEY")]
    partition_key: Option<String>,
    /// Due at this moment or later: RFC 3339, or Unix milliseconds.
    #[arg(long, value_name = "MOMENT", value_parser = moment::moment)]
    due_after: Option<UnixMicros>,
    /// Due before this moment.
    #[arg(long, value_name = "MOMENT", value_parser = moment::moment)]
    due_before: Option<UnixMicros>,
    /// Part of the error text of the last failed attempt.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

impl Filter {
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        [
            ("queue", self.queue.clone()),
            ("state", self.state.clone()),
            ("key", self.key.clone()),
            ("partition_key", self.partition_key.clone()),
            ("due_after", self.due_after.map(|moment| moment.to_string())),
            ("due_before", self.due_before.map(|moment| moment.to_string())),
            ("error", self.error.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}
