//! Speaks to a person's browser: pages made here, asked of the desk as the API asks it. Everything works without a script, and
//! every state of a page is in its URL. The heap, the stores and the loops are absent on purpose.
//!
//! A page is a template under `templates/` and a handler that fills it; what changes something is a form, taken by a handler
//! with a [`Posted`](door::Posted), and told to [`acted`](act::acted).

mod act;
mod assets;
mod bulk;
mod dead;
mod door;
mod find;
mod frame;
mod json;
mod overview;
mod task;
mod tasks;
#[cfg(test)]
mod tests;
mod told;
mod wanted;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::{Method, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};

use crate::{config, desk::Desk, http::Gate};

/// Every route there is, as it is matched and as it is counted.
pub const ROUTES: &[(Method, &str)] = &[
    (Method::GET, "/"),
    (Method::GET, "/console"),
    (Method::GET, "/console/sign-in"),
    (Method::POST, "/console/sign-in"),
    (Method::POST, "/console/sign-out"),
    (Method::POST, "/console/theme"),
    (Method::GET, "/console/help"),
    (Method::GET, "/console/find"),
    (Method::GET, "/console/tasks"),
    (Method::POST, "/console/tasks/bulk"),
    (Method::GET, "/console/tasks/{id}"),
    (Method::POST, "/console/tasks/{id}"),
    (Method::GET, "/console/tasks/{id}/cancel"),
    (Method::GET, "/console/dead"),
    (Method::GET, "/console/assets/{hash}/{name}"),
];

/// What every page needs.
#[derive(Clone)]
struct Console {
    desk: Desk,
    gate: Arc<Gate>,
    show_payloads: bool,
}

/// All pages.
pub fn router(desk: Desk, gate: Arc<Gate>, config: &config::Console) -> Router {
    let console = Console { desk, gate, show_payloads: config.show_payloads };
    routes().layer(DefaultBodyLimit::max(FORM_BYTES)).layer(middleware::from_fn(in_time)).with_state(console)
}

/// The largest form is a page of selected ids with a filter.
const FORM_BYTES: usize = 64 << 10;

/// Longer than anything a page asks for; whoever has not sent his form by then has gone.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

async fn in_time(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(ANSWERED_WITHIN, next.run(request)).await;
    answered.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
}

fn routes() -> Router<Console> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/console") }))
        .route("/console/", get(|| async { Redirect::to("/console") }))
        .route("/console", get(overview::overview))
        .route("/console/sign-in", get(door::sign_in_page).post(door::sign_in))
        .route("/console/sign-out", post(door::sign_out))
        .route("/console/theme", post(frame::theme))
        .route("/console/help", get(frame::help))
        .route("/console/find", get(find::find))
        .route("/console/tasks", get(tasks::list))
        .route("/console/tasks/bulk", post(bulk::bulk))
        .route("/console/tasks/{id}", get(task::task).post(task::act))
        .route("/console/tasks/{id}/cancel", get(task::cancel_page))
        .route("/console/dead", get(dead::list))
        .route("/console/assets/{hash}/{name}", get(assets::asset))
        .route("/console/{*rest}", get(frame::nothing_here))
}
