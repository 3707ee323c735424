//! `[telemetry]`: what the node says about itself.

use serde::Deserialize;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::complaint::Complaints;

/// What is logged, and in which form.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// A level, or `target=level` directives separated by commas.
    pub log: String,
    pub format: Format,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log: "info".to_owned(), format: Format::Text }
    }
}

impl Telemetry {
    pub(super) fn check(&self, complaints: &mut Complaints) {
        if let Err(error) = EnvFilter::try_new(&self.log) {
            complaints.add("telemetry.log", format!("is {:?}, which is no log filter: {error}", self.log));
            return;
        }
        // A misspelt level would be taken as the name of a target, and everything else would fall silent.
        for word in self.log.split(',').map(str::trim) {
            complaints.unless(
                word.contains('=') || word.contains('[') || word.parse::<LevelFilter>().is_ok(),
                "telemetry.log",
                format!(
                    "has {word:?}, which is neither a level (off, error, warn, info, debug, trace) nor target=level"
                ),
            );
        }
    }
}
