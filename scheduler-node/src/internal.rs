//! Errors of our own: a statement that code and schema disagree about, an answer that cannot be read, a handler that panicked.
//!
//! Asking again does not help with any of them. Each gets an id, which is in the log and in the answer, and is counted.

use std::{error::Error, sync::LazyLock};

use common::wire::Problem;
use prometheus::{IntCounterVec, Opts, Registry};
use uuid::Uuid;

/// Where an error arose: the label of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A database refused a statement of ours, or answered what cannot be read.
    Database,
    Etcd,
    /// Everything else: a panic, an answer that cannot be written.
    Request,
}

impl Origin {
    const ALL: [Self; 3] = [Self::Database, Self::Etcd, Self::Request];

    const fn text(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Etcd => "etcd",
            Self::Request => "request",
        }
    }
}

/// One for the process: an error of our own can arise where no metrics are at hand.
static ERRORS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "duetime_internal_errors_total",
        "requests that failed by an error of Duetime's own (500), by where it arose; the log has each by its error_id",
    );
    let errors = IntCounterVec::new(opts, &["origin"]).expect("the name and the label are valid");
    for origin in Origin::ALL {
        let _ = errors.with_label_values(&[origin.text()]);
    }
    errors
});

pub fn register(registry: &Registry) -> prometheus::Result<()> {
    registry.register(Box::new(ERRORS.clone()))
}

/// How many there were since the process started.
pub fn count(origin: Origin) -> u64 {
    ERRORS.with_label_values(&[origin.text()]).get()
}

/// Logs and counts the error, and makes the answer to the client. `detail` says what was not done.
pub fn problem(origin: Origin, error: Option<&(dyn Error + 'static)>, detail: &str) -> Problem {
    let error_id = Uuid::now_v7().simple().to_string();
    ERRORS.with_label_values(&[origin.text()]).inc();
    tracing::error!(error_id, error, origin = origin.text(), "internal error: {detail}");
    Problem::internal(format!("{detail}; the log of this node has the reason under error_id {error_id}"))
        .with_error_id(error_id)
}
