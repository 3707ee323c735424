//! The pages without data, and the switch of the theme.

use askama::Template;
use axum::{
    http::{HeaderMap, StatusCode},
    response::{Redirect, Response},
};
use common::wire::Problem;

use super::{
    browser::{THEME, safe_next, with_cookie},
    extract::{AnyVisitor, PostedForm},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};

/// A year, in seconds.
const THEME_S: u32 = 365 * 24 * 60 * 60;

#[derive(Template)]
#[template(path = "help.html")]
struct HelpPage {
    frame: Frame,
}

pub(super) async fn help(visitor: Visitor) -> Response {
    show(StatusCode::OK, &HelpPage { frame: Frame::new("Help", &visitor) })
}

pub(super) async fn not_found(AnyVisitor(visitor): AnyVisitor) -> PageProblem {
    let detail = format!("there is no page {}", visitor.here);
    PageProblem::at(&visitor, Problem::not_found(detail))
}

/// Switches the theme and returns to the page.
pub(super) async fn theme(headers: HeaderMap, posted: PostedForm) -> Response {
    let theme = posted.field("theme").filter(|theme| ["dark", "light"].contains(theme)).unwrap_or("auto");
    with_cookie(&headers, Redirect::to(safe_next(posted.field("back"))), &format!("{THEME}={theme}; Max-Age={THEME_S}"))
}
