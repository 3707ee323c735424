//! Many tasks at once: bulk operations, and the export of all matching tasks, one a line.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, Uri, header},
    response::{IntoResponse, Response},
};
use common::{
    access::{Caller, Permission},
    wire::{BulkAnswer, BulkRequest, Problem},
};
use futures::{Stream, StreamExt};

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
pub(super) async fn export(
    scoped: Scoped,
    State(api): State<Api>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let filter = query::task_filter(&uri)?;
    let reserved = api.shares.reserve_export(&scoped.caller)?;
    let authenticator = Arc::clone(&api.authenticator);
    let caller_now = move || authenticator.authorize(&headers, Some(Permission::Payloads)).ok();
    let lines = while_allowed(scoped.desk.export(filter).await?, scoped.caller, caller_now);
    Ok(reserved.until_sent(([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response()))
}

/// An export may go on for hours. Before each piece of it goes out, its token or session has to open the same as it did
/// for `caller` when it began.
pub(crate) fn while_allowed(
    lines: impl Stream<Item = Result<Vec<u8>, Problem>>,
    caller: Caller,
    caller_now: impl Fn() -> Option<Caller>,
) -> impl Stream<Item = Result<Vec<u8>, Problem>> {
    let opens_the_same = move |now: Caller| (now.id, now.role, &now.queues) == (caller.id, caller.role, &caller.queues);
    lines.map(move |piece| {
        if caller_now().is_some_and(&opens_the_same) {
            return piece;
        }
        Err(Problem::forbidden("the token or session of the export is no longer in force, or opens something else"))
    })
}
