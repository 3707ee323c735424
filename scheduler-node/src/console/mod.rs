//! Speaks to a person's browser: pages made here, asked of the desk as the API asks it. Everything works without a script, and
//! every state of a page is in its URL. The heap, the stores and the loops are absent on purpose.
//!
//! A page is a template under `templates/` and a handler that fills it; what changes something is a form, taken by a handler
//! with a [`Posted`](door::Posted), and told to [`acted`](act::acted).

mod act;
mod assets;
mod audit;
mod bulk;
mod cluster;
mod dead;
mod door;
mod find;
mod form;
mod frame;
mod json;
mod many;
mod oidc;
mod overview;
mod queue;
mod queues;
mod schedule;
mod schedules;
mod task;
mod tasks;
#[cfg(test)]
mod tests;
mod tokens;
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

use crate::{config, desk::Desk, http::Gate, oidc::Provider};

/// Every route there is, as it is matched and as it is counted.
pub const ROUTES: &[(Method, &str)] = &[
    (Method::GET, "/"),
    (Method::GET, "/console"),
    (Method::GET, "/console/sign-in"),
    (Method::POST, "/console/sign-in"),
    (Method::GET, "/console/sign-in/oidc"),
    (Method::GET, "/console/sign-in/oidc/callback"),
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
    (Method::GET, "/console/queues"),
    (Method::GET, "/console/queues/{queue}"),
    (Method::POST, "/console/queues/{queue}"),
    (Method::GET, "/console/queues/{queue}/delete"),
    (Method::GET, "/console/schedules"),
    (Method::GET, "/console/schedules/{name}"),
    (Method::POST, "/console/schedules/{name}"),
    (Method::GET, "/console/schedules/{name}/delete"),
    (Method::GET, "/console/cluster"),
    (Method::GET, "/console/audit"),
    (Method::GET, "/console/tokens"),
    (Method::POST, "/console/tokens"),
    (Method::GET, "/console/bulk"),
    (Method::GET, "/console/export"),
    (Method::GET, "/console/assets/{hash}/{name}"),
];

/// What every page needs.
#[derive(Clone)]
struct Console {
    desk: Desk,
    gate: Arc<Gate>,
    /// Who signs people in beside the tokens.
    oidc: Option<Arc<Provider>>,
    show_payloads: bool,
}

/// All pages.
pub fn router(desk: Desk, gate: Arc<Gate>, oidc: Option<Provider>, config: &config::Console) -> Router {
    let console = Console { desk, gate, oidc: oidc.map(Arc::new), show_payloads: config.show_payloads };
    routes().layer(DefaultBodyLimit::max(FORM_BYTES)).layer(middleware::from_fn(in_time)).with_state(console)
}

/// The largest form is a page of selected ids with a filter.
const FORM_BYTES: usize = 64 << 10;

/// The largest payload of a schedule, written as forms are, and what is around it.
const SCHEDULE_BYTES: usize = 256 << 10;

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
        .route("/console/sign-in/oidc", get(oidc::begin))
        .route(config::oidc::CALLBACK, get(oidc::callback))
        .route("/console/sign-out", post(door::sign_out))
        .route("/console/theme", post(frame::theme))
        .route("/console/help", get(frame::help))
        .route("/console/find", get(find::find))
        .route("/console/tasks", get(tasks::list))
        .route("/console/tasks/bulk", post(bulk::bulk))
        .route("/console/tasks/{id}", get(task::task).post(task::act))
        .route("/console/tasks/{id}/cancel", get(task::cancel_page))
        .route("/console/dead", get(dead::list))
        .route("/console/queues", get(queues::list))
        .route("/console/queues/{queue}", get(queue::queue).post(queue::act))
        .route("/console/queues/{queue}/delete", get(queue::delete_page))
        .route("/console/schedules", get(schedules::list))
        .route(
            "/console/schedules/{name}",
            get(schedule::schedule).post(schedule::act).layer(DefaultBodyLimit::max(SCHEDULE_BYTES)),
        )
        .route("/console/schedules/{name}/delete", get(schedule::delete_page))
        .route("/console/cluster", get(cluster::cluster))
        .route("/console/audit", get(audit::list))
        .route("/console/tokens", get(tokens::list).post(tokens::act))
        .route("/console/bulk", get(many::page))
        .route("/console/export", get(many::export))
        .route("/console/assets/{hash}/{name}", get(assets::asset))
        .route("/console/{*rest}", get(frame::nothing_here))
}
