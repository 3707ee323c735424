//! `[audit]`: how long the audit is kept.

use serde::Deserialize;

use super::complaint::Complaints;

/// Ten years: no common rule asks for more.
const LONGEST_DAYS: u32 = 3_660;

/// Retention of the audit, which lives in the first database. If nodes differ, the shortest retention applies.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    pub keep_days: u32,
}

impl Default for Audit {
    fn default() -> Self {
        Self { keep_days: 400 }
    }
}

impl Audit {
    pub(super) fn check(self, complaints: &mut Complaints) {
        complaints.unless(
            (1..=LONGEST_DAYS).contains(&self.keep_days),
            "audit.keep_days",
            format!("is {}; it must be 1 to {LONGEST_DAYS}", self.keep_days),
        );
    }
}
