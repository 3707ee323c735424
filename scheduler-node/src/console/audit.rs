//! The page of the audit: who did what, newest first.

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::Response,
};
use common::{
    time::UnixMicros,
    wire::{AuditFilter, Problem, audit::AuditEventView},
};

use super::{
    browser::parameter,
    format::{When, when},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};

/// Deeds on one page.
const PAGE: u32 = 100;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    who: String,
    what: String,
    target: String,
    rows: Vec<Row>,
    next: Option<String>,
}

struct Row {
    at: When,
    deed: AuditEventView,
}

pub(super) async fn list(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    let as_page = |problem| PageProblem::at(&visitor, problem);
    let filter = filter(&uri).map_err(as_page)?;
    let (who, what, target) = (filter.who.clone(), filter.what.clone(), filter.target.clone());
    let listed = visitor.desk.audit_list(filter).await.map_err(as_page)?;
    let now = visitor.desk.now();
    let next = listed.next_cursor.map(|cursor| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in [("who", &who), ("what", &what), ("target", &target)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        format!("/console/audit?{}", query.append_pair("cursor", &cursor.to_string()).finish())
    });
    let page = AuditPage {
        frame: Frame::new("Audit", &visitor),
        who: who.unwrap_or_default(),
        what: what.unwrap_or_default(),
        target: target.unwrap_or_default(),
        rows: listed.deeds.into_iter().map(|deed| row(deed, now)).collect(),
        next,
    };
    Ok(show(StatusCode::OK, &page))
}

fn filter(uri: &Uri) -> Result<AuditFilter, Problem> {
    let cursor = parameter(uri, "cursor").map(|text| text.parse()).transpose();
    Ok(AuditFilter {
        who: parameter(uri, "who"),
        what: parameter(uri, "what"),
        target: parameter(uri, "target"),
        limit: Some(PAGE),
        cursor: cursor.map_err(|error| Problem::invalid_field("cursor", format!("`cursor`: {error}")))?,
        ..AuditFilter::default()
    })
}

fn row(deed: AuditEventView, now: UnixMicros) -> Row {
    Row { at: when(deed.at, now), deed }
}
