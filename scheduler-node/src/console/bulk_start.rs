//! Many tasks at once, chosen by a filter alone: the start of a bulk operation, and the export.

use std::collections::BTreeSet;

use askama::Template;
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use common::{access::Permission, wire::Problem};

use super::{
    Console,
    frame::{Frame, PageProblem, show},
    task_query::{Input, TaskQuery},
    visitor::{self, Visitor},
};
use crate::http::while_allowed;

#[derive(Template)]
#[template(path = "bulk_start.html")]
struct BulkStartPage {
    frame: Frame,
    inputs: Vec<Input>,
    hidden: Vec<(&'static str, String)>,
    /// The same in the encoding of a URL.
    filter: String,
    /// The queues that a visitor of some queues may name.
    queues: BTreeSet<String>,
    /// The visitor has to name one of their queues first.
    must_choose: bool,
    /// The mistake in the filter.
    wrong: Option<String>,
    export: String,
    list: String,
    may_act: bool,
    may_export: bool,
}

/// The filter is in the URL. The page that the form leads to counts the tasks before any change.
pub(super) async fn page(State(console): State<Console>, visitor: Visitor, uri: Uri) -> Response {
    let query = visitor.completed(TaskQuery::of_uri(&uri));
    let wrong = query.task_filter().err().map(|problem| problem.detail);
    let status = if wrong.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let list = query.url();
    let page = BulkStartPage {
        frame: Frame::new("Bulk operations", &visitor),
        inputs: visitor.filters().map(|filter| Input::of(&query, *filter)).collect(),
        hidden: query.fields().to_vec(),
        filter: query.encoded(),
        queues: visitor.offered_queues(),
        must_choose: visitor.must_choose_queue(&query),
        wrong,
        export: list.replacen("/console/tasks", "/console/export", 1),
        list,
        may_act: visitor.may(Permission::Change),
        may_export: console.show_payloads && visitor.may(Permission::Payloads),
    };
    show(status, &page)
}

/// Sends a file of JSON, one task a line. The status is fixed once lines have been sent, so an export that fails ends
/// early, without its last line.
pub(super) async fn export(
    State(console): State<Console>,
    visitor: Visitor,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, PageProblem> {
    let as_page = |problem| PageProblem::at(&visitor, problem);
    if !console.show_payloads {
        let detail = "an export has payloads, but this console is configured to show none (`console.show_payloads`)";
        return Err(as_page(Problem::forbidden(detail)));
    }
    let filter = TaskQuery::of_uri(&uri).task_filter().map_err(as_page)?;
    let exported = match console.shares.reserve_export(&visitor.caller) {
        Ok(reserved) => visitor.desk.export(filter).await.map(|lines| (lines, reserved)),
        Err(problem) => Err(problem),
    };
    let target = uri.query().filter(|query| !query.is_empty()).unwrap_or("all");
    visitor.record(target, exported.as_ref().map(|_| "begun"));
    let (lines, reserved) = exported.map_err(as_page)?;
    let caller_now = move || visitor::caller(&headers, &console).ok().flatten().map(|(caller, _)| caller);
    let lines = while_allowed(lines, visitor.caller, caller_now);
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"duetime-tasks.ndjson\""),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok(reserved.until_sent((headers, Body::from_stream(lines)).into_response()))
}
