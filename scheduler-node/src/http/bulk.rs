//! Many tasks at once: bulk operations, and the export of all matching tasks, one a line.

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{Uri, header},
    response::{IntoResponse, Response},
};
use common::wire::{BulkAnswer, BulkRequest};

use super::{Api, Scoped, audit::AuditDetails, extract::BodyAlone, query, refusal::Refusal};

/// JSON, one value a line.
const LINES: &str = "application/x-ndjson";

pub(super) async fn act(
    scoped: Scoped,
    State(api): State<Api>,
    BodyAlone(body): BodyAlone,
) -> Result<(Extension<AuditDetails>, Json<BulkAnswer>), Refusal> {
    let text = body.text(api.limits.single_bytes).await?;
    let answer = scoped.desk.bulk(BulkRequest::parse(text.as_str())?).await?;
    let details = AuditDetails::of_bulk(answer.matched, answer.done, text.as_str());
    Ok((Extension(details), Json(answer)))
}

/// Sends the lines of an export. The status is fixed once lines have been sent, so an export that fails ends early,
/// without its last line.
pub(super) async fn export(scoped: Scoped, State(api): State<Api>, uri: Uri) -> Result<Response, Refusal> {
    let filter = query::task_filter(&uri)?;
    let held = api.shares.export(&scoped.caller)?;
    let lines = scoped.desk.export(filter).await?;
    Ok(held.until_sent(([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response()))
}
