//! From a confirm or a report to the end of a task: settle, report, release of dependent tasks, archive.

pub mod archiver;
pub mod releaser;
pub mod reporter;
pub mod settler;
