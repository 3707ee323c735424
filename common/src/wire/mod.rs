//! The JSON and AMQP shapes of requests, answers, reports and headers.
//!
//! Requests are read strictly: an unknown field is an error that names it. Data that other nodes and versions wrote
//! is read leniently.

pub mod amqp;
pub mod audit;
pub mod batch;
pub mod bulk;
mod change;
pub mod check;
pub mod cluster;
mod cursor;
mod dependency;
mod export;
pub mod format;
pub mod list;
mod loss;
mod page;
pub mod problem;
pub mod queue;
pub mod read;
mod report;
pub mod schedule;
pub mod screen;
pub mod shard;
pub mod submission;
pub mod task;
pub mod token;
pub mod view;

pub use audit::{AuditFilter, AuditList};
pub use batch::{BatchAnswer, BatchRequest, BatchResult};
pub use bulk::{BulkAnswer, BulkCursor, BulkRequest, TaskFilter, ValidBulk};
pub use change::{ChangeRequest, ValidChange};
pub use check::{Limits, check_key};
pub use cluster::ClusterReport;
pub use export::{ExportEnd, ExportedTask};
pub use list::{Cursor, KeyQuery, ListAnswer, ListFilter};
pub use loss::AcceptedLoss;
pub use page::NamePage;
pub use problem::Problem;
pub use queue::{QueueRequest, QueueView};
pub use schedule::{NextQuery, ScheduleList, ScheduleRequest, ScheduleView};
pub use submission::{DelayRoute, Message};
pub use task::TaskRequest;
pub use token::{TokenList, TokenPage, TokenRequest, TokenView};
pub use view::{AttemptView, CancelAnswer, DependencyView, TaskReceipt, TaskView};
