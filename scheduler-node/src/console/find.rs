//! The search box in the head of every page.

use axum::{
    http::Uri,
    response::{IntoResponse, Redirect, Response},
};
use common::ids::TaskId;

use super::door::Visitor;

/// An id leads to its task; everything else is taken for a business key.
pub(super) async fn find(_visitor: Visitor, uri: Uri) -> Response {
    let sought = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .find(|(name, _)| name == "q")
        .map(|(_, text)| text.trim().to_owned())
        .unwrap_or_default();
    if let Ok(id) = sought.parse::<TaskId>() {
        return Redirect::to(&format!("/console/tasks/{id}")).into_response();
    }
    let mut query = form_urlencoded::Serializer::new(String::new());
    if !sought.is_empty() {
        query.append_pair("key", &sought);
    }
    Redirect::to(&format!("/console/tasks?{}", query.finish())).into_response()
}
