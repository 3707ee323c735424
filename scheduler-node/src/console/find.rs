//! The search box at the top of every page.

use axum::{
    http::Uri,
    response::{IntoResponse, Redirect, Response},
};
use common::ids::TaskId;

use super::{browser::parameter, visitor::Visitor};

/// An id leads to its task; anything else is searched as a business key.
pub(super) async fn find(_visitor: Visitor, uri: Uri) -> Response {
    let sought = parameter(&uri, "q").unwrap_or_default();
    let sought = sought.trim();
    if let Ok(id) = sought.parse::<TaskId>() {
        return Redirect::to(&format!("/console/tasks/{id}")).into_response();
    }
    let mut query = form_urlencoded::Serializer::new(String::new());
    if !sought.is_empty() {
        query.append_pair("key", sought);
    }
    Redirect::to(&format!("/console/tasks?{}", query.finish())).into_response()
}
