//! Serves a person's browser: pages rendered here, whose data comes from the desk as the API's does. Everything works
//! without a script, and every state of a page is in its URL. The heap, the stores and the loops are absent on
//! purpose.
//!
//! A page is a template under `templates/` and a handler that fills it. A change is a form: a handler takes it as a
//! [`PostedForm`](extract::PostedForm), and [`Actor::record`](actor::Actor::record) records it. The table of routes
//! names the permission for each page and form, and its action in the audit log.

mod actor;
mod assets;
mod audit;
mod browser;
mod bulk;
mod bulk_start;
mod cluster;
mod databases;
mod dead;
mod extract;
mod find;
mod form;
mod format;
mod frame;
#[cfg(any(test, feature = "failpoints"))]
pub(crate) mod fuzz;
mod help;
mod json;
mod oidc;
mod overview;
mod queue;
mod queues;
mod schedule;
mod schedules;
mod session;
mod sign_in;
mod task;
mod task_query;
mod tasks;
#[cfg(test)]
mod tests;
mod tokens;
mod visitor;

use std::{panic, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{MatchedPath, Request},
    handler::Handler,
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use common::wire::Problem;

use self::{
    browser::Theme,
    extract::FormLimit,
    frame::{Frame, PageProblem},
    session::Sessions,
};
use crate::{
    config,
    desk::Desk,
    http::{Authenticator, Requirement, Route, Shares, routes},
    oidc::Provider,
    receipt::Receipts,
    supervise::spawn_child,
};

routes! { Console =>
    GET "/" => async || Redirect::to("/console"), Open, No;
    GET "/console" => overview::overview, May(Look), No;
    GET "/console/sign-in" => sign_in::sign_in_page, Open, No;
    POST "/console/sign-in" => sign_in::sign_in, Open, As(ConsoleSignIn);
    GET "/console/sign-in/oidc" => oidc::begin, Open, No;
    GET "/console/sign-in/oidc/callback" => oidc::callback, Open, As(ConsoleSignIn);
    POST "/console/sign-out" => sign_in::sign_out, May(Look), As(ConsoleSignOut);
    POST "/console/theme" => help::theme, May(Look), No;
    GET "/console/help" => help::help, May(Look), No;
    GET "/console/find" => find::find, May(Look), No;
    GET "/console/tasks" => tasks::list, May(Look), No;
    POST "/console/tasks/bulk" => bulk::bulk, May(Change), As(TaskBulk);
    GET "/console/tasks/{id}" => task::task, May(Look), As(TaskRead);
    POST "/console/tasks/{id}" => task::act, May(Change), ByForm(&[
        ("cancel", TaskCancel), ("stop", TaskStop), ("run", TaskRun), ("retry", TaskRetry), ("move", TaskChange),
    ]);
    GET "/console/tasks/{id}/cancel" => task::cancel_page, May(Look), No;
    GET "/console/dead" => dead::list, May(Look), No;
    GET "/console/queues" => queues::list, May(Look), No;
    GET "/console/queues/{queue}" => queue::queue, May(Look), No;
    POST "/console/queues/{queue}" => queue::act, May(Operate), ByForm(&[
        ("set", QueuePut), ("pause", QueuePause), ("resume", QueueResume), ("delete", QueueDelete),
    ]);
    GET "/console/queues/{queue}/delete" => queue::delete_page, May(Operate), No;
    GET "/console/schedules" => schedules::list, May(Look), No;
    GET "/console/schedules/{name}" => schedule::schedule, May(Look), As(ScheduleRead);
    POST "/console/schedules/{name}" => schedule::act.layer(Extension(FormLimit(SCHEDULE_BYTES))), May(Operate), ByForm(&[
        ("set", SchedulePut), ("pause", SchedulePause), ("resume", ScheduleResume), ("run", ScheduleRun),
        ("delete", ScheduleDelete),
    ]);
    GET "/console/schedules/{name}/delete" => schedule::delete_page, May(Operate), No;
    GET "/console/cluster" => cluster::cluster, May(Look), No;
    POST "/console/cluster" => cluster::act, May(Operate), ByForm(&[("drain", NodeDrain), ("undrain", NodeUndrain)]);
    GET "/console/databases" => databases::databases, May(Look), No;
    POST "/console/databases" => databases::act, May(Operate), ByForm(&[
        ("move", ShardMove), ("call_off", ShardCallOff), ("rebalance", ShardRebalance), ("drain", DatabaseDrain),
        ("undrain", DatabaseUndrain), ("remove", DatabaseRemove),
    ]);
    GET "/console/audit" => audit::list, May(Operate), No;
    GET "/console/tokens" => tokens::list, May(Operate), No;
    POST "/console/tokens" => tokens::act, May(Operate), ByForm(&[("create", TokenCreate), ("revoke", TokenRevoke)]);
    GET "/console/bulk" => bulk_start::page, May(Look), No;
    GET "/console/export" => bulk_start::export, May(Look), As(TaskExport);
    GET "/console/assets/{hash}/{name}" => assets::asset, Open, No;
}

/// The shared state of all handlers.
#[derive(Clone)]
struct Console {
    desk: Desk,
    authenticator: Arc<Authenticator>,
    /// The identity provider that signs people in, beside the tokens.
    oidc: Option<Arc<Provider>>,
    sessions: Sessions,
    /// The memory of forms and the rates of callers.
    shares: Shares,
    show_payloads: bool,
}

/// The router of all pages.
pub(crate) fn router(
    desk: Desk,
    authenticator: Arc<Authenticator>,
    oidc: Option<Provider>,
    keys: Receipts,
    shares: Shares,
    config: &config::Console,
) -> Router {
    let (oidc, sessions) = (oidc.map(Arc::new), Sessions::new(keys));
    let console = Console { desk, authenticator, oidc, sessions, shares, show_payloads: config.show_payloads };
    routes()
        .route("/console/", get(async || Redirect::to("/console")))
        .route("/console/{*rest}", get(help::not_found))
        .layer(middleware::from_fn(in_time))
        .with_state(console)
}

/// The largest payload of a schedule in a form's encoding, and the other fields.
const SCHEDULE_BYTES: usize = 256 << 10;

/// Longer than any page takes, and longer than the body of a form may.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Answers within [`ANSWERED_WITHIN`]. The form of a visitor runs to its end even without an answer, as the desk's
/// writes do, and records what it did. Signing in changes nothing. Late answers are no 408: after one, a browser may
/// send its form a second time by itself.
async fn in_time(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let route = path.and_then(|path| Route::find(ROUTES, request.method(), path.as_str()));
    let runs_to_end = !request.method().is_safe() && route.is_some_and(|route| route.requirement != Requirement::Open);
    let theme = Theme::of(request.headers());
    let running = next.run(request);
    let answered = if runs_to_end {
        let child = tokio::time::timeout(ANSWERED_WITHIN, spawn_child(running)).await;
        child.map(|answered| answered.unwrap_or_else(|error| panic::resume_unwind(error.into_panic())))
    } else {
        tokio::time::timeout(ANSWERED_WITHIN, running).await
    };
    answered.unwrap_or_else(|_| late(theme, runs_to_end))
}

fn late(theme: Theme, goes_on: bool) -> Response {
    let problem = Problem::unavailable(if goes_on {
        "the change is still being carried out; look at what it did before you send the form again"
    } else {
        "the page was not ready in time; try again"
    });
    PageProblem::outside(Frame::outside(problem.title.to_string(), theme), problem).into_response()
}
