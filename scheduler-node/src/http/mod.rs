//! Serves clients over HTTP: reads requests, asks the desk, writes answers. Every unsuccessful answer is a problem
//! (RFC 9457).
//!
//! `common` decides the meaning of a request, and the desk carries it out. The heap, the stores and the loops are
//! absent on purpose.

mod audit;
mod body;
mod bulk;
mod cluster;
#[cfg(any(test, feature = "failpoints"))]
pub mod fuzz;
mod keys;
mod metrics;
mod need;
mod openapi;
mod query;
mod queues;
mod rate;
mod refusal;
mod room;
mod routes;
mod schedules;
mod serve;
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
use common::{limit::Limit, task::report::MAX_RESULT_BYTES};
use prometheus::Registry;

pub(crate) use self::routes::routes;
pub use self::{
    auth::{Caller, Gate},
    metrics::{ConnectionMetrics, HttpMetrics},
    serve::{Certificate, CertificateFiles, ConnectionLimits, Server},
};
use self::{
    rate::Rates,
    refusal::Refusal,
    room::Room,
    scoped::{Asked, Front},
};
use crate::desk::Desk;

routes! { Api =>
    POST "/v1/tasks" => tasks::submit;
    GET "/v1/tasks" => tasks::list;
    POST "/v1/tasks/batch" => tasks::submit_batch;
    POST "/v1/tasks/bulk" => bulk::act;
    GET "/v1/tasks/export" => bulk::export;
    GET "/v1/tasks/{id}" => tasks::show;
    PATCH "/v1/tasks/{id}" => tasks::change;
    DELETE "/v1/tasks/{id}" => tasks::cancel;
    POST "/v1/tasks/{id}/stop" => tasks::stop;
    POST "/v1/tasks/{id}/run" => tasks::run;
    POST "/v1/tasks/{id}/retry" => tasks::retry;
    POST "/v1/tasks/{id}/result" => tasks::report;
    GET "/v1/queues" => queues::list;
    GET "/v1/queues/{queue}" => queues::show;
    PUT "/v1/queues/{queue}" => queues::put;
    DELETE "/v1/queues/{queue}" => queues::delete;
    POST "/v1/queues/{queue}/pause" => queues::pause;
    POST "/v1/queues/{queue}/resume" => queues::resume;
    GET "/v1/queues/{queue}/keys/{key}" => keys::show;
    PATCH "/v1/queues/{queue}/keys/{key}" => keys::change;
    DELETE "/v1/queues/{queue}/keys/{key}" => keys::cancel;
    GET "/v1/schedules" => schedules::list;
    GET "/v1/schedules/{name}" => schedules::show;
    PUT "/v1/schedules/{name}" => schedules::put;
    DELETE "/v1/schedules/{name}" => schedules::delete;
    POST "/v1/schedules/{name}/pause" => schedules::pause;
    POST "/v1/schedules/{name}/resume" => schedules::resume;
    POST "/v1/schedules/{name}/run" => schedules::run;
    GET "/v1/tokens" => tokens::list;
    POST "/v1/tokens" => tokens::add;
    DELETE "/v1/tokens/{name}" => tokens::revoke;
    GET "/v1/audit" => audit::list;
    GET "/v1/cluster" => cluster::show;
    POST "/v1/cluster/nodes/{name}/drain" => cluster::drain;
    POST "/v1/cluster/nodes/{name}/undrain" => cluster::undrain;
    GET "/healthz" => cluster::alive;
    GET "/readyz" => cluster::ready;
    GET "/metrics" => cluster::metrics;
    GET "/openapi.json" => openapi::show;
}

/// The names, times and headers of a request beside its payload; they are small.
const AROUND_PAYLOAD_BYTES: usize = 64 << 10;

/// Limits on the bodies and the rate of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of a request about one task: its payload in base64 and the JSON around it.
    pub single_bytes: usize,
    pub batch_bytes: usize,
    /// Of all bodies that are being read or stored at one time; a body beyond it waits.
    pub bodies_bytes: usize,
    /// Requests a second of each caller; 0: no limit.
    pub requests_per_second: u32,
}

impl Limits {
    /// The limits that match the largest payload the configuration allows.
    pub fn of_payload(max_payload_bytes: usize, requests_per_second: u32) -> Self {
        let largest = max_payload_bytes.max(MAX_RESULT_BYTES);
        Self {
            single_bytes: largest.div_ceil(3) * 4 + AROUND_PAYLOAD_BYTES,
            batch_bytes: 64 << 20,
            bodies_bytes: 160 << 20,
            requests_per_second,
        }
    }
}

/// The shared state of all handlers.
#[derive(Clone)]
struct Api {
    front: Front,
    gate: Arc<Gate>,
    limits: Limits,
    bodies: Arc<Room>,
    registry: Registry,
}

/// The router of the whole API, with `pages` for a person's browser beside it.
pub fn router(
    desk: Desk,
    gate: Arc<Gate>,
    limits: Limits,
    registry: Registry,
    metrics: HttpMetrics,
    pages: Router,
) -> Router {
    let bodies = Arc::new(Room::new(limits.bodies_bytes));
    let audit = desk.audit().clone();
    let metrics = metrics.counting(desk.limited(Limit::TokenRequests));
    let api = Api { front: Front::new(desk), gate: Arc::clone(&gate), limits, bodies, registry };
    let rates = Arc::new(Rates::new(limits.requests_per_second));
    shell::around(routes().with_state(api).merge(pages), gate, rates, audit, metrics)
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
mod auth;
mod scoped;
