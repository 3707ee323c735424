//! From an accepted submission to its row: inserts, writes by key, the tasks of schedules, and the nudge to the owner
//! of a row.

pub mod claim_on_insert;
pub mod firer;
pub mod keyed_submitter;
pub mod nudger;
pub mod submitter;
