//! Duetime's own errors: a statement that does not fit the schema, an unreadable answer, a panic in a handler.
//!
//! A retry helps with none of them. Each gets an id, which appears in the log and in the answer, and each is
//! counted.

use std::{error::Error, sync::LazyLock};

use common::wire::Problem;
use prometheus::{IntCounterVec, Opts, Registry};
use uuid::Uuid;

common::labelled! {
    /// The place where an error arose; the label of its counter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Origin {
        /// A database refused one of Duetime's statements, or its answer cannot be read.
        Database = "database",
        Etcd = "etcd",
        /// Everything else: a panic, or an answer that cannot be written.
        Request = "request",
    }
}

/// One counter for the whole process, because such an error can arise in code that has no metrics.
static ERRORS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "duetime_internal_errors_total",
        "requests that failed with an internal error (500), by its origin; the log has each under its error_id",
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

/// The number of errors of this origin since the process started.
#[cfg(test)]
pub fn count(origin: Origin) -> u64 {
    ERRORS.with_label_values(&[origin.text()]).get()
}

/// Logs and counts the error, and builds the answer to the client. `detail` says what was not done.
pub fn problem(origin: Origin, error: Option<&(dyn Error + 'static)>, detail: &str) -> Problem {
    let error_id = Uuid::now_v7().simple().to_string();
    ERRORS.with_label_values(&[origin.text()]).inc();
    tracing::error!(error_id, error, origin = origin.text(), "internal error: {detail}");
    Problem::internal(format!("{detail}; this node's log has the reason under error_id {error_id}"))
        .with_error_id(error_id)
}
