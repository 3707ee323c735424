//! `[console]`: what the console's pages show.

use serde::Deserialize;

/// Settings of the console.
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
