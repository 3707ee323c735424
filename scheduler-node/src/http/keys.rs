//! Tasks by their business key: the same calls as by id, once it is known which task that is.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, Uri},
};
use common::{
    ids::TaskId,
    wire::{CancelAnswer, ChangeRequest, TaskView},
};

use super::{Api, body, query, refusal::Refusal};

type Place = Path<(String, String)>;

pub(super) async fn show(State(api): State<Api>, Path(place): Place, uri: Uri) -> Result<Json<TaskView>, Refusal> {
    let id = find(&api, &place, &uri).await?;
    Ok(Json(api.desk.get(id).await?))
}

pub(super) async fn change(
    State(api): State<Api>,
    Path(place): Place,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<TaskView>, Refusal> {
    let text = body::text(&headers, body, api.limits.single_bytes).await?;
    let change = ChangeRequest::parse(text.as_str())?;
    let id = find(&api, &place, &uri).await?;
    Ok(Json(api.desk.change(id, change).await?))
}

pub(super) async fn cancel(
    State(api): State<Api>,
    Path(place): Place,
    uri: Uri,
) -> Result<Json<CancelAnswer>, Refusal> {
    let id = find(&api, &place, &uri).await?;
    Ok(Json(api.desk.cancel(id).await?))
}

async fn find(api: &Api, (queue, key): &(String, String), uri: &Uri) -> Result<TaskId, Refusal> {
    let partition_key = query::partition_key(uri)?;
    Ok(api.desk.find(queue, partition_key.as_deref(), key).await?)
}
