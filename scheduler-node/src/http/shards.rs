//! Shards and databases: show, move, call off, rebalance, drain, remove.

use axum::{
    Extension, Json,
    http::Uri,
    response::{IntoResponse, Response},
};
use common::wire::shard::{DatabaseList, DatabaseView, MoveList, MoveRequest, RebalanceRequest, ShardList};

use super::{
    AROUND_PAYLOAD_BYTES, PathPart, Scoped,
    audit::AuditDetails,
    extract::{BodyAlone, NoFields, NoInput, NoQuery},
    query,
    refusal::Refusal,
};

pub(super) async fn list(scoped: Scoped, uri: Uri) -> Result<Json<ShardList>, Refusal> {
    Ok(Json(scoped.desk.shard_list(query::estimates(&uri)?).await?))
}

pub(super) async fn moves(scoped: Scoped, _: NoQuery) -> Result<Json<MoveList>, Refusal> {
    Ok(Json(scoped.desk.move_list().await?))
}

pub(super) async fn add_moves(scoped: Scoped, BodyAlone(body): BodyAlone) -> Result<Response, Refusal> {
    let text = body.text(AROUND_PAYLOAD_BYTES).await?;
    let answer = scoped.desk.shards_move(MoveRequest::parse(text.as_str())?, &scoped.caller.name).await?;
    Ok((Extension(AuditDetails::of_move(&answer)), Json(answer)).into_response())
}

pub(super) async fn call_off(scoped: Scoped, uri: Uri, _: NoFields) -> Result<Response, Refusal> {
    let answer = scoped.desk.shards_call_off(query::call_off(&uri)?, &scoped.caller.name).await?;
    let details = AuditDetails { target: answer.called_off.to_string(), detail: None };
    Ok((Extension(details), Json(answer)).into_response())
}

pub(super) async fn rebalance(scoped: Scoped, BodyAlone(body): BodyAlone) -> Result<Response, Refusal> {
    let text = body.text(AROUND_PAYLOAD_BYTES).await?;
    let request = RebalanceRequest::parse(text.or_empty_object())?;
    let answer = scoped.desk.shards_rebalance(request, &scoped.caller.name).await?;
    Ok((Extension(AuditDetails::of_rebalance(&answer)), Json(answer)).into_response())
}

pub(super) async fn databases(scoped: Scoped, uri: Uri) -> Result<Json<DatabaseList>, Refusal> {
    Ok(Json(scoped.desk.database_list(query::estimates(&uri)?).await?))
}

pub(super) async fn drain(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<DatabaseView>, Refusal> {
    Ok(Json(scoped.desk.database_drain(&name, &scoped.caller.name).await?))
}

pub(super) async fn undrain(
    scoped: Scoped,
    PathPart(name): PathPart,
    _: NoInput,
) -> Result<Json<DatabaseView>, Refusal> {
    Ok(Json(scoped.desk.database_undrain(&name, &scoped.caller.name).await?))
}

pub(super) async fn remove(
    scoped: Scoped,
    PathPart(name): PathPart,
    _: NoInput,
) -> Result<Json<DatabaseView>, Refusal> {
    Ok(Json(scoped.desk.database_remove(&name, &scoped.caller.name).await?))
}
