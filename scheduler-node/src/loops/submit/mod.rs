//! From an accepted submission to its row: inserts, writes by key, the tasks of schedules, and the nudge to the owner
//! of a row.

mod batch;
pub mod firer;
pub mod keyed_submitter;
mod resend;
pub mod submitter;
