//! Queues: their policies and counts, pause and resume.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use common::{
    ids::QueueName,
    queue,
    wire::{Problem, QueueRequest, QueueView, queue::QueueList},
};

use super::{AROUND_PAYLOAD_BYTES, Api, Named, body, refusal::Refusal};

pub(super) async fn list(State(api): State<Api>) -> Result<Json<QueueList>, Refusal> {
    Ok(Json(QueueList { queues: api.desk.queue_list().await? }))
}

pub(super) async fn show(State(api): State<Api>, Named(name): Named) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(api.desk.queue_get(named(&name)?).await?))
}

pub(super) async fn put(
    State(api): State<Api>,
    Named(name): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<QueueView>, Refusal> {
    let name = named(&name)?;
    let text = body::text(&headers, body, AROUND_PAYLOAD_BYTES).await?;
    Ok(Json(api.desk.queue_put(name, QueueRequest::parse(text.or_empty_object())?).await?))
}

pub(super) async fn delete(State(api): State<Api>, Named(name): Named) -> Result<StatusCode, Refusal> {
    api.desk.queue_delete(named(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(State(api): State<Api>, Named(name): Named) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(api.desk.queue_pause(named(&name)?, true).await?))
}

pub(super) async fn resume(State(api): State<Api>, Named(name): Named) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(api.desk.queue_pause(named(&name)?, false).await?))
}

fn named(name: &str) -> Result<QueueName, Problem> {
    queue::check_name(name)?;
    Ok(QueueName::new(name))
}
