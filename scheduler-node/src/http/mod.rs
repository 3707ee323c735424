//! Serves clients over HTTP: reads requests, asks the desk, writes answers. Every unsuccessful answer is a problem
//! (RFC 9457).
//!
//! `common` decides the meaning of a request, and the desk carries it out. The heap, the stores and the loops are
//! absent on purpose.

mod answers;
mod audit;
mod auth;
mod batch;
mod body;
mod bulk;
mod cluster;
mod extract;
#[cfg(any(test, feature = "failpoints"))]
pub(crate) mod fuzz;
mod keys;
mod loss;
mod memory;
mod metrics;
mod openapi;
mod places;
mod query;
mod queues;
mod rate;
mod reached;
mod refusal;
mod requirement;
mod routes;
mod schedules;
mod scoped;
mod serve;
mod shards;
mod shares;
mod shell;
mod tasks;
#[cfg(test)]
mod tests;
mod tokens;

use std::sync::Arc;

use axum::{
    Router,
    extract::{FromRequestParts, Path},
    http::request::Parts,
};
use common::task::report::MAX_RESULT_BYTES;
use prometheus::Registry;
use serde::de::DeserializeOwned;

pub(crate) use self::routes::{Audited, Requirement, routes};
pub(crate) use self::{
    audit::{AuditDetails, PageNote, task_target},
    auth::{Authenticator, Caller},
    body::{STRANGERS_DRAIN_BYTES, drain_request},
    bulk::while_allowed,
    memory::Reservation,
    metrics::{ConnectionMetrics, HttpMetrics},
    reached::{authority, is_encrypted, is_own_origin},
    routes::Route,
    serve::{Certificate, CertificateFiles, ConnectionLimits, Server},
    shares::Shares,
};
use self::{
    refusal::Refusal,
    scoped::{Scoped, UnrestrictedDesk},
};
use crate::desk::Desk;

routes! { Api =>
    POST "/v1/tasks" => tasks::submit, May(Submit), No;
    GET "/v1/tasks" => tasks::list, May(Look), No;
    POST "/v1/tasks/batch" => batch::submit_batch, May(Submit), No;
    POST "/v1/tasks/bulk" => bulk::act, May(Change), As(TaskBulk);
    GET "/v1/tasks/export" => bulk::export, May(Payloads), As(TaskExport);
    GET "/v1/tasks/{id}" => tasks::show, May(Look), No;
    PATCH "/v1/tasks/{id}" => tasks::change, May(Change), As(TaskChange);
    DELETE "/v1/tasks/{id}" => tasks::cancel, May(Change), As(TaskCancel);
    POST "/v1/tasks/{id}/stop" => tasks::stop, May(Change), As(TaskStop);
    POST "/v1/tasks/{id}/run" => tasks::run, May(Change), As(TaskRun);
    POST "/v1/tasks/{id}/retry" => tasks::retry, May(Change), As(TaskRetry);
    POST "/v1/tasks/{id}/result" => tasks::report, May(Report), No;
    GET "/v1/queues" => queues::list, May(Look), No;
    GET "/v1/queues/{queue}" => queues::show, May(Look), No;
    PUT "/v1/queues/{queue}" => queues::put, May(Operate), As(QueuePut);
    DELETE "/v1/queues/{queue}" => queues::delete, May(Operate), As(QueueDelete);
    POST "/v1/queues/{queue}/pause" => queues::pause, May(Operate), As(QueuePause);
    POST "/v1/queues/{queue}/resume" => queues::resume, May(Operate), As(QueueResume);
    GET "/v1/queues/{queue}/keys/{key}" => keys::show, May(Look), No;
    PATCH "/v1/queues/{queue}/keys/{key}" => keys::change, May(Change), As(TaskChange);
    DELETE "/v1/queues/{queue}/keys/{key}" => keys::cancel, May(Change), As(TaskCancel);
    GET "/v1/schedules" => schedules::list, May(Look), No;
    GET "/v1/schedules/{name}" => schedules::show, May(Look), No;
    PUT "/v1/schedules/{name}" => schedules::put, May(Operate), As(SchedulePut);
    DELETE "/v1/schedules/{name}" => schedules::delete, May(Operate), As(ScheduleDelete);
    POST "/v1/schedules/{name}/pause" => schedules::pause, May(Operate), As(SchedulePause);
    POST "/v1/schedules/{name}/resume" => schedules::resume, May(Operate), As(ScheduleResume);
    POST "/v1/schedules/{name}/run" => schedules::run, May(Operate), As(ScheduleRun);
    GET "/v1/tokens" => tokens::list, May(Operate), No;
    POST "/v1/tokens" => tokens::add, May(Operate), As(TokenCreate);
    DELETE "/v1/tokens/{name}" => tokens::revoke, May(Operate), As(TokenRevoke);
    GET "/v1/audit" => audit::list, May(Operate), No;
    GET "/v1/cluster" => cluster::show, May(Look), No;
    POST "/v1/cluster/nodes/{name}/drain" => cluster::drain, May(Operate), As(NodeDrain);
    POST "/v1/cluster/nodes/{name}/undrain" => cluster::undrain, May(Operate), As(NodeUndrain);
    GET "/v1/shards" => shards::list, May(Look), No;
    GET "/v1/shards/moves" => shards::moves, May(Look), No;
    POST "/v1/shards/moves" => shards::add_moves, May(Operate), As(ShardMove);
    DELETE "/v1/shards/moves" => shards::call_off, May(Operate), As(ShardCallOff);
    POST "/v1/shards/rebalance" => shards::rebalance, May(Operate), As(ShardRebalance);
    GET "/v1/databases" => shards::databases, May(Look), No;
    POST "/v1/databases/{name}/drain" => shards::drain, May(Operate), As(DatabaseDrain);
    POST "/v1/databases/{name}/undrain" => shards::undrain, May(Operate), As(DatabaseUndrain);
    DELETE "/v1/databases/{name}" => shards::remove, May(Operate), As(DatabaseRemove);
    POST "/v1/databases/{name}/accept-loss" => loss::accept, May(Operate), As(DatabaseAcceptLoss);
    GET "/healthz" => cluster::alive, Open, No;
    GET "/readyz" => cluster::ready, Open, No;
    GET "/metrics" => cluster::metrics, May(Metrics), No;
    GET "/openapi.json" => openapi::show, AnyToken, No;
}

/// The names, times and headers of a request beside its payload; they are small.
const AROUND_PAYLOAD_BYTES: usize = 64 << 10;
/// 100 dependencies: each a queue's name, and a key of 256 characters that JSON may escape in 12 bytes each.
const DEPENDENCIES_BYTES: usize = 320 << 10;

/// Limits on the bodies and the rate of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of a request about one task: its payload in base64 and the JSON around it, with all dependencies it may have.
    pub(crate) single_bytes: usize,
    pub(crate) batch_bytes: usize,
    /// Of all bodies that are being read or stored at one time; a body beyond it waits.
    pub(crate) bodies_bytes: usize,
    /// Of all answers that clients have not taken, where an export counts as 8 MiB; beyond it, requests are refused.
    pub(crate) answers_bytes: usize,
    /// Requests a second of each caller; 0: no limit.
    pub(crate) requests_per_second: u32,
}

impl Limits {
    /// The limits that match the largest payload the configuration allows.
    pub(crate) fn of_payload(max_payload_bytes: usize, requests_per_second: u32) -> Self {
        let largest = max_payload_bytes.max(MAX_RESULT_BYTES);
        Self {
            single_bytes: largest.div_ceil(3) * 4 + DEPENDENCIES_BYTES + AROUND_PAYLOAD_BYTES,
            batch_bytes: 64 << 20,
            bodies_bytes: 160 << 20,
            // One caller's half is a dozen of the largest pages of tasks, and thousands of usual answers.
            answers_bytes: 128 << 20,
            requests_per_second,
        }
    }
}

/// The shared state of all handlers.
#[derive(Clone)]
struct Api {
    desk: UnrestrictedDesk,
    authenticator: Arc<Authenticator>,
    limits: Limits,
    shares: Shares,
    registry: Registry,
}

/// The router of the whole API, with `pages` for a person's browser beside it.
pub(crate) fn router(
    desk: Desk,
    authenticator: Arc<Authenticator>,
    shares: Shares,
    registry: Registry,
    metrics: HttpMetrics,
    pages: Router,
) -> Router {
    let limits = shares.limits;
    let audit = desk.audit().clone();
    let api = Api {
        desk: UnrestrictedDesk::new(desk),
        authenticator: Arc::clone(&authenticator),
        limits,
        shares: shares.clone(),
        registry,
    };
    shell::around(routes().with_state(api).merge(pages), authenticator, shares, audit, metrics)
}

/// The variable part of a path, or a tuple of several. Handlers take this instead of axum's `Path`, which refuses with
/// plain text.
struct PathPart<T = String>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathPart<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(part) = Path::<T>::from_request_parts(parts, state).await?;
        Ok(Self(part))
    }
}
