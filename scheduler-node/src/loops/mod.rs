//! The loops: code that runs over time and speaks to the other rooms. Each file is one verb that gathers, decides
//! (in `common`), acts and reports.
//!
//! The life of a task: [`submitter`], [`putter`], [`collector`], [`nudger`], [`preloader`], [`dispatcher`],
//! [`picker`], [`publisher`], [`settler`], [`reporter`], [`archiver`]. Tasks of schedules: [`firer`].
//!
//! The life of an ownership: [`session_keeper`], [`elector`], [`assigner`], [`owner`]. Beside them:
//! [`queue_reader`], [`token_reader`], [`auditor`], [`prober`] and [`gauger`].
//!
//! Shared parts: [`held`] (shards, heap, tasks in flight), [`lanes`], [`waiting`], [`gate`], [`site`], `reread`,
//! [`retry`], [`aside`] (writes that a database refuses), and the shortcut of [`at_once`].

pub mod archiver;
pub mod aside;
pub mod assigner;
pub mod at_once;
pub mod auditor;
pub mod collector;
pub mod dispatcher;
pub mod elector;
pub mod firer;
pub mod gate;
pub mod gauger;
pub mod held;
pub mod lanes;
pub mod nudger;
pub mod owner;
pub mod picker;
pub mod preloader;
pub mod prober;
pub mod publisher;
pub mod putter;
pub mod queue_reader;
pub mod receipt_reader;
pub mod receiver;
pub mod releaser;
pub mod reporter;
mod reread;
pub mod retry;
pub mod session_keeper;
pub mod settler;
pub mod site;
pub mod submitter;
pub mod token_reader;
pub mod waiting;

#[cfg(test)]
mod tests;
