//! Serves a person's browser: pages rendered here, whose data comes from the desk as the API's does. Everything works
//! without a script, and every state of a page is in its URL. The heap, the stores and the loops are absent on
//! purpose.
//!
//! A page is a template under `templates/` and a handler that fills it. A change is a form, taken by a handler with a
//! [`Posted`](visitor::Posted), and noted by [`acted`](actor::acted).

mod actor;
mod assets;
mod audit;
mod bulk;
mod bulk_start;
mod cluster;
mod dead;
mod find;
mod form;
mod format;
mod frame;
#[cfg(any(test, feature = "failpoints"))]
pub mod fuzz;
mod json;
mod oidc;
mod overview;
mod queue;
mod queues;
mod schedule;
mod schedules;
mod session;
mod task;
mod task_query;
mod tasks;
#[cfg(test)]
mod tests;
mod tokens;
mod visitor;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    handler::Handler,
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};

use self::session::Sessions;
use crate::{
    config,
    desk::Desk,
    http::{Gate, routes},
    oidc::Provider,
    receipt::Receipts,
};

routes! { Console =>
    GET "/" => async || Redirect::to("/console");
    GET "/console" => overview::overview;
    GET "/console/sign-in" => visitor::sign_in_page;
    POST "/console/sign-in" => visitor::sign_in;
    GET "/console/sign-in/oidc" => oidc::begin;
    GET "/console/sign-in/oidc/callback" => oidc::callback;
    POST "/console/sign-out" => visitor::sign_out;
    POST "/console/theme" => frame::theme;
    GET "/console/help" => frame::help;
    GET "/console/find" => find::find;
    GET "/console/tasks" => tasks::list;
    POST "/console/tasks/bulk" => bulk::bulk;
    GET "/console/tasks/{id}" => task::task;
    POST "/console/tasks/{id}" => task::act;
    GET "/console/tasks/{id}/cancel" => task::cancel_page;
    GET "/console/dead" => dead::list;
    GET "/console/queues" => queues::list;
    GET "/console/queues/{queue}" => queue::queue;
    POST "/console/queues/{queue}" => queue::act;
    GET "/console/queues/{queue}/delete" => queue::delete_page;
    GET "/console/schedules" => schedules::list;
    GET "/console/schedules/{name}" => schedule::schedule;
    POST "/console/schedules/{name}" => schedule::act.layer(DefaultBodyLimit::max(SCHEDULE_BYTES));
    GET "/console/schedules/{name}/delete" => schedule::delete_page;
    GET "/console/cluster" => cluster::cluster;
    POST "/console/cluster" => cluster::act;
    GET "/console/audit" => audit::list;
    GET "/console/tokens" => tokens::list;
    POST "/console/tokens" => tokens::act;
    GET "/console/bulk" => bulk_start::page;
    GET "/console/export" => bulk_start::export;
    GET "/console/assets/{hash}/{name}" => assets::asset;
}

/// The shared state of all handlers.
#[derive(Clone)]
struct Console {
    desk: Desk,
    gate: Arc<Gate>,
    /// The identity provider that signs people in, beside the tokens.
    oidc: Option<Arc<Provider>>,
    sessions: Sessions,
    show_payloads: bool,
}

/// The router of all pages.
pub fn router(desk: Desk, gate: Arc<Gate>, oidc: Option<Provider>, keys: Receipts, config: &config::Console) -> Router {
    let (oidc, sessions) = (oidc.map(Arc::new), Sessions::new(keys));
    let console = Console { desk, gate, oidc, sessions, show_payloads: config.show_payloads };
    routes()
        .route("/console/", get(async || Redirect::to("/console")))
        .route("/console/{*rest}", get(frame::nothing_here))
        .layer(DefaultBodyLimit::max(FORM_BYTES))
        .layer(middleware::from_fn(in_time))
        .with_state(console)
}

/// The largest form is a page of selected ids with a filter.
const FORM_BYTES: usize = 64 << 10;

/// The largest payload of a schedule in a form's encoding, and the other fields.
const SCHEDULE_BYTES: usize = 256 << 10;

/// Longer than any page takes. A client that has not sent its form within this time has gone.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

async fn in_time(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(ANSWERED_WITHIN, next.run(request)).await;
    answered.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
}
