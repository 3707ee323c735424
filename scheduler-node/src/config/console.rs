//! `[console]`: what the pages for a person's browser show.

use serde::Deserialize;

/// What is shown there.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Console {
    /// Whether payloads and results are shown to those who may see a task.
    pub show_payloads: bool,
}

impl Default for Console {
    fn default() -> Self {
        Self { show_payloads: true }
    }
}
