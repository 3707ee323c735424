//! Tasks by business key: looks up the id, then does the same as the routes by id.

use axum::{
    Json,
    extract::{Path, State},
    http::Uri,
    response::Response,
};
use common::{
    ids::TaskId,
    wire::{CancelAnswer, ChangeRequest, TaskView},
};

use super::{Api, Asked, audit, body::Sent, query, refusal::Refusal};

type Place = Path<(String, String)>;

pub(super) async fn show(asked: Asked, Path(place): Place, uri: Uri) -> Result<Response, Refusal> {
    let id = find(&asked, &place, &uri).await?;
    Ok(audit::task(asked.desk.get(id).await?))
}

pub(super) async fn change(
    asked: Asked,
    State(api): State<Api>,
    Path(place): Place,
    uri: Uri,
    sent: Sent,
) -> Result<Json<TaskView>, Refusal> {
    let text = sent.text(api.limits.single_bytes).await?;
    let change = ChangeRequest::parse(text.as_str())?;
    let id = find(&asked, &place, &uri).await?;
    Ok(Json(asked.desk.change(id, change).await?))
}

pub(super) async fn cancel(asked: Asked, Path(place): Place, uri: Uri) -> Result<Json<CancelAnswer>, Refusal> {
    let id = find(&asked, &place, &uri).await?;
    Ok(Json(asked.desk.cancel(id).await?))
}

async fn find(asked: &Asked, (queue, key): &(String, String), uri: &Uri) -> Result<TaskId, Refusal> {
    let partition_key = query::partition_key(uri)?;
    Ok(asked.desk.find(queue, partition_key.as_deref(), key).await?)
}
