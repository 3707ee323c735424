//! The node and the cluster: what an operator, a probe and Prometheus ask for.

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

/// The process answers: all that a liveness probe may ask, because a restart heals nothing else.
pub(super) async fn alive() -> Json<serde_json::Value> {
    Json(json!({ "status": "alive" }))
}

/// Whether requests should come here. Only a caller who may look at the cluster reads why not: the reasons name hosts.
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

/// Every queue is named in them.
pub(super) async fn metrics(asked: Asked, State(api): State<Api>) -> Result<Response, Refusal> {
    asked.desk.ask_for_everything()?;
    let text = TextEncoder::new()
        .encode_to_string(&api.registry.gather())
        .map_err(|error| internal::problem(Origin::Request, Some(&error), "the metrics cannot be written"))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}
