//! Queues: their policies and counts, pause and resume.

use axum::{
    Json,
    http::{StatusCode, Uri},
};
use common::{
    ids::QueueName,
    queue,
    wire::{Problem, QueueRequest, QueueView, queue::QueueList},
};

use super::{AROUND_PAYLOAD_BYTES, Asked, Named, body::Sent, query, refusal::Refusal};

pub(super) async fn list(asked: Asked, uri: Uri) -> Result<Json<QueueList>, Refusal> {
    Ok(Json(asked.desk.queue_list(&query::queue_page(&uri)?).await?))
}

pub(super) async fn show(asked: Asked, Named(name): Named) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(asked.desk.queue_get(named(&name)?).await?))
}

pub(super) async fn put(asked: Asked, Named(name): Named, sent: Sent) -> Result<Json<QueueView>, Refusal> {
    let name = named(&name)?;
    let text = sent.text(AROUND_PAYLOAD_BYTES).await?;
    Ok(Json(asked.desk.queue_put(name, QueueRequest::parse(text.or_empty_object())?).await?))
}

pub(super) async fn delete(asked: Asked, Named(name): Named) -> Result<StatusCode, Refusal> {
    asked.desk.queue_delete(named(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(asked: Asked, Named(name): Named) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(asked.desk.queue_pause(named(&name)?, true).await?))
}

pub(super) async fn resume(asked: Asked, Named(name): Named) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(asked.desk.queue_pause(named(&name)?, false).await?))
}

fn named(name: &str) -> Result<QueueName, Problem> {
    queue::check_name(name)?;
    Ok(QueueName::new(name))
}
