//! Speaks to clients over HTTP: reads requests, asks the desk, writes answers. Every answer that is not what was asked for is a
//! problem (RFC 9457).
//!
//! What a request means is decided in `common` and done by the desk. The heap, the stores and the loops are absent on purpose.

mod body;
mod bulk;
mod cluster;
mod gate;
mod keys;
mod metrics;
mod query;
mod queues;
mod refusal;
mod schedules;
mod serve;
mod shell;
mod tasks;

use std::sync::Arc;

use axum::{
    Router,
    extract::{FromRequestParts, Path},
    http::{Method, request::Parts},
    routing::{get, post},
};
use common::wire::report::MAX_RESULT_BYTES;
use prometheus::Registry;

use self::{body::Room, refusal::Refusal};
pub use self::{
    gate::{Caller, Gate},
    metrics::HttpMetrics,
    serve::serve,
};
use crate::desk::Desk;

/// Every route there is, as it is matched and as it is counted.
const ROUTES: &[(Method, &str)] = &[
    (Method::POST, "/v1/tasks"),
    (Method::GET, "/v1/tasks"),
    (Method::POST, "/v1/tasks/batch"),
    (Method::POST, "/v1/tasks/bulk"),
    (Method::GET, "/v1/tasks/export"),
    (Method::GET, "/v1/tasks/{id}"),
    (Method::PATCH, "/v1/tasks/{id}"),
    (Method::DELETE, "/v1/tasks/{id}"),
    (Method::POST, "/v1/tasks/{id}/run"),
    (Method::POST, "/v1/tasks/{id}/retry"),
    (Method::POST, "/v1/tasks/{id}/result"),
    (Method::GET, "/v1/queues"),
    (Method::GET, "/v1/queues/{queue}"),
    (Method::PUT, "/v1/queues/{queue}"),
    (Method::DELETE, "/v1/queues/{queue}"),
    (Method::POST, "/v1/queues/{queue}/pause"),
    (Method::POST, "/v1/queues/{queue}/resume"),
    (Method::GET, "/v1/queues/{queue}/keys/{key}"),
    (Method::PATCH, "/v1/queues/{queue}/keys/{key}"),
    (Method::DELETE, "/v1/queues/{queue}/keys/{key}"),
    (Method::GET, "/v1/schedules"),
    (Method::GET, "/v1/schedules/{name}"),
    (Method::PUT, "/v1/schedules/{name}"),
    (Method::DELETE, "/v1/schedules/{name}"),
    (Method::POST, "/v1/schedules/{name}/pause"),
    (Method::POST, "/v1/schedules/{name}/resume"),
    (Method::POST, "/v1/schedules/{name}/run"),
    (Method::GET, "/v1/cluster"),
    (Method::GET, "/healthz"),
    (Method::GET, "/readyz"),
    (Method::GET, "/metrics"),
];

/// Beside the payload a request has names, times and headers; they are small.
const AROUND_PAYLOAD_BYTES: usize = 64 << 10;

/// How large bodies may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of a request about one task: its payload in base64 and everything around it.
    pub single_bytes: usize,
    pub batch_bytes: usize,
    /// Of all batches that are being read at one time; what does not fit waits.
    pub batches_bytes: usize,
}

impl Limits {
    /// The limits that go with the largest payload the configuration allows.
    pub fn of_payload(max_payload_bytes: usize) -> Self {
        let largest = max_payload_bytes.max(MAX_RESULT_BYTES);
        Self {
            single_bytes: largest.div_ceil(3) * 4 + AROUND_PAYLOAD_BYTES,
            batch_bytes: 64 << 20,
            batches_bytes: 128 << 20,
        }
    }
}

/// What every handler needs.
#[derive(Clone)]
struct Api {
    desk: Desk,
    gate: Arc<Gate>,
    limits: Limits,
    batches: Arc<Room>,
    registry: Registry,
}

/// All of the API, and beside it `pages`, for a person's browser.
pub fn router(
    desk: Desk,
    gate: Arc<Gate>,
    limits: Limits,
    registry: Registry,
    metrics: HttpMetrics,
    pages: Router,
) -> Router {
    let batches = Arc::new(Room::new(limits.batches_bytes));
    let api = Api { desk, gate: Arc::clone(&gate), limits, batches, registry };
    shell::around(routes().with_state(api).merge(pages), gate, metrics)
}

fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/tasks", post(tasks::submit).get(tasks::list))
        .route("/v1/tasks/batch", post(tasks::submit_batch))
        .route("/v1/tasks/bulk", post(bulk::act))
        .route("/v1/tasks/export", get(bulk::export))
        .route("/v1/tasks/{id}", get(tasks::show).patch(tasks::change).delete(tasks::cancel))
        .route("/v1/tasks/{id}/stop", post(tasks::stop))
        .route("/v1/tasks/{id}/run", post(tasks::run))
        .route("/v1/tasks/{id}/retry", post(tasks::retry))
        .route("/v1/tasks/{id}/result", post(tasks::report))
        .route("/v1/queues", get(queues::list))
        .route("/v1/queues/{queue}", get(queues::show).put(queues::put).delete(queues::delete))
        .route("/v1/queues/{queue}/pause", post(queues::pause))
        .route("/v1/queues/{queue}/resume", post(queues::resume))
        .route("/v1/queues/{queue}/keys/{key}", get(keys::show).patch(keys::change).delete(keys::cancel))
        .route("/v1/schedules", get(schedules::list))
        .route("/v1/schedules/{name}", get(schedules::show).put(schedules::put).delete(schedules::delete))
        .route("/v1/schedules/{name}/pause", post(schedules::pause))
        .route("/v1/schedules/{name}/resume", post(schedules::resume))
        .route("/v1/schedules/{name}/run", post(schedules::run))
        .route("/v1/cluster", get(cluster::show))
        .route("/healthz", get(cluster::alive))
        .route("/readyz", get(cluster::ready))
        .route("/metrics", get(cluster::metrics))
}

/// The one variable part of a path.
struct Named(String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(name) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(Self(name))
    }
}
