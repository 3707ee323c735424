//! The node and the cluster: the routes of operators, probes and Prometheus.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use common::wire::{ClusterReport, cluster::NodeReport};
use prometheus::TextEncoder;
use serde_json::json;

use super::{Api, Asked, Named, refusal::Refusal};
use crate::internal::{self, Origin};

pub(super) async fn show(asked: Asked) -> Result<Json<ClusterReport>, Refusal> {
    Ok(Json(asked.desk.cluster().await?))
}

pub(super) async fn drain(asked: Asked, Named(name): Named) -> Result<Json<NodeReport>, Refusal> {
    Ok(Json(asked.desk.node_drain(&name, true, &asked.caller.name).await?))
}

pub(super) async fn undrain(asked: Asked, Named(name): Named) -> Result<Json<NodeReport>, Refusal> {
    Ok(Json(asked.desk.node_drain(&name, false, &asked.caller.name).await?))
}

/// Says that the process answers. A liveness probe must ask no more, because a restart heals nothing else.
pub(super) async fn alive() -> Json<serde_json::Value> {
    Json(json!({ "status": "alive" }))
}

/// Whether this node should get requests. Only a caller who may look at the cluster reads the reasons, because they
/// name hosts.
pub(super) async fn ready(State(api): State<Api>, headers: HeaderMap) -> Response {
    let readiness = api.front.readiness();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let answer = if api.gate.may_look(&headers) {
        json!({ "ready": readiness.ready, "reasons": readiness.reasons })
    } else {
        json!({ "ready": readiness.ready })
    };
    (status, Json(answer)).into_response()
}

/// The metrics name every queue, so the caller must be allowed all of them.
pub(super) async fn metrics(asked: Asked, State(api): State<Api>) -> Result<Response, Refusal> {
    asked.desk.ask_for_everything()?;
    let text = TextEncoder::new()
        .encode_to_string(&api.registry.gather())
        .map_err(|error| internal::problem(Origin::Request, Some(&error), "the metrics cannot be rendered"))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}
