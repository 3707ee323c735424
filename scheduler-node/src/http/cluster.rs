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

use super::{
    Api, PathPart, Scoped,
    extract::{NoInput, NoQuery},
    refusal::Refusal,
};
use crate::internal::{self, Origin};

pub(super) async fn show(scoped: Scoped, _: NoQuery) -> Result<Json<ClusterReport>, Refusal> {
    Ok(Json(scoped.desk.cluster().await?))
}

pub(super) async fn drain(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<NodeReport>, Refusal> {
    Ok(Json(scoped.desk.node_drain(&name, true, &scoped.caller.name).await?))
}

pub(super) async fn undrain(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<NodeReport>, Refusal> {
    Ok(Json(scoped.desk.node_drain(&name, false, &scoped.caller.name).await?))
}

/// Says that the process answers. A liveness probe must ask no more, because a restart heals nothing else. It and
/// [`ready`] take any query: a refusal would restart the node, or take it out of service.
pub(super) async fn alive() -> Json<serde_json::Value> {
    Json(json!({ "status": "alive" }))
}

/// Whether this node should get requests, and what it lacks in words that anyone may read. Only a caller who may look
/// at the cluster reads the reasons, because they name hosts.
pub(super) async fn ready(State(api): State<Api>, headers: HeaderMap) -> Response {
    let looker = api.authenticator.looker(&headers);
    let readiness = api.desk.readiness(looker.as_ref());
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let missing: Vec<&str> = readiness.missing.iter().map(|lack| lack.text()).collect();
    let mut answer = json!({ "ready": readiness.ready, "missing": missing });
    if looker.is_some() {
        answer["reasons"] = json!(readiness.reasons);
    }
    (status, Json(answer)).into_response()
}

/// The metrics name every queue, so the caller must be allowed all of them.
pub(super) async fn metrics(scoped: Scoped, State(api): State<Api>, _: NoQuery) -> Result<Response, Refusal> {
    scoped.desk.require_all_queues()?;
    let text = TextEncoder::new()
        .encode_to_string(&api.registry.gather())
        .map_err(|error| internal::problem(Origin::Request, Some(&error), "the metrics cannot be rendered"))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}
