//! Progress of a longer operation, for a person who waits for it.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar is redrawn while nothing arrives.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

/// A count of tasks, drawn on a terminal only.
pub(super) fn of_tasks() -> ProgressBar {
    counted("{spinner} {human_pos} tasks, {per_sec}, {elapsed}")
}

/// A count of remaining shards, drawn on a terminal only.
pub(super) fn of_shards() -> ProgressBar {
    counted("{spinner} {human_pos} shards left, {elapsed}")
}

/// A count of remaining moves of shards with a message about their progress, drawn on a terminal only.
pub(super) fn of_moves() -> ProgressBar {
    counted("{spinner} {human_pos} shards left, {elapsed}  {msg}")
}

fn counted(template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template);
    let progress = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    progress.enable_steady_tick(DRAWN_EVERY);
    progress
}
