//! Tasks by business key.

use axum::{Json, extract::State, http::Uri, response::Response};
use common::wire::{CancelAnswer, ChangeRequest, TaskView};

use super::{Api, PathPart, Scoped, audit, body::UnreadBody, extract::NoFields, query, refusal::Refusal};

/// A queue, and a business key in it.
type Place = PathPart<(String, String)>;

pub(super) async fn show(scoped: Scoped, PathPart((queue, key)): Place, uri: Uri) -> Result<Response, Refusal> {
    let partition_key = query::partition_key(&uri)?;
    Ok(audit::task(scoped.desk.get_by_key(&queue, partition_key.as_deref(), &key).await?))
}

pub(super) async fn change(
    scoped: Scoped,
    State(api): State<Api>,
    PathPart((queue, key)): Place,
    uri: Uri,
    body: UnreadBody,
) -> Result<Json<TaskView>, Refusal> {
    let text = body.text(api.limits.single_bytes).await?;
    let change = ChangeRequest::parse(text.as_str())?;
    let partition_key = query::partition_key(&uri)?;
    Ok(Json(scoped.desk.change_by_key(&queue, partition_key.as_deref(), &key, change).await?))
}

pub(super) async fn cancel(
    scoped: Scoped,
    PathPart((queue, key)): Place,
    uri: Uri,
    _: NoFields,
) -> Result<Json<CancelAnswer>, Refusal> {
    let partition_key = query::partition_key(&uri)?;
    Ok(Json(scoped.desk.cancel_by_key(&queue, partition_key.as_deref(), &key).await?))
}
