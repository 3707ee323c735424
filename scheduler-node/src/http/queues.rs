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

use super::{
    AROUND_PAYLOAD_BYTES, PathPart, Scoped,
    extract::{BodyAlone, NoInput, NoQuery},
    query,
    refusal::Refusal,
};

pub(super) async fn list(scoped: Scoped, uri: Uri) -> Result<Json<QueueList>, Refusal> {
    Ok(Json(scoped.desk.queue_list(&query::name_page(&uri, queue::check_name)?).await?))
}

pub(super) async fn show(scoped: Scoped, PathPart(name): PathPart, _: NoQuery) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(scoped.desk.queue_get(queue_name(&name)?).await?))
}

pub(super) async fn put(
    scoped: Scoped,
    PathPart(name): PathPart,
    BodyAlone(body): BodyAlone,
) -> Result<Json<QueueView>, Refusal> {
    let text = body.text(AROUND_PAYLOAD_BYTES).await?;
    Ok(Json(scoped.desk.queue_put(queue_name(&name)?, QueueRequest::parse(text.or_empty_object())?).await?))
}

pub(super) async fn delete(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<StatusCode, Refusal> {
    scoped.desk.queue_delete(queue_name(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(scoped.desk.queue_pause(queue_name(&name)?, true).await?))
}

pub(super) async fn resume(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<QueueView>, Refusal> {
    Ok(Json(scoped.desk.queue_pause(queue_name(&name)?, false).await?))
}

fn queue_name(name: &str) -> Result<QueueName, Problem> {
    queue::check_name(name)?;
    Ok(QueueName::new(name))
}
