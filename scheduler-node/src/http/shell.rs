//! The layers around every handler: authentication, metrics, logs, and the answers where there is no handler.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use common::{
    access::{Caller, Permission},
    wire::Problem,
};
use futures::FutureExt;

use super::{
    Requirement, Shares,
    audit::{AuditDraft, PageNote},
    auth::{Authenticator, check_permission},
    body::{DRAIN_BYTES, STRANGERS_DRAIN_BYTES, drain_request},
    metrics::HttpMetrics,
    reached::authority,
    refusal::Refusal,
    requirement::requirement,
};
use crate::{
    audit::Audit,
    internal::{self, Origin},
};

#[derive(Clone)]
struct Shell {
    authenticator: Arc<Authenticator>,
    shares: Shares,
    audit: Audit,
    metrics: HttpMetrics,
}

/// Puts the shell around `routes`.
pub(super) fn around(
    routes: Router,
    authenticator: Arc<Authenticator>,
    shares: Shares,
    audit: Audit,
    metrics: HttpMetrics,
) -> Router {
    routes
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(Shell { authenticator, shares, audit, metrics }, pass))
}

impl Shell {
    /// The caller of a request, which may go on to its handler; `None` on a route that is open to all.
    fn admit(&self, request: &Request, required: Requirement, now: Instant) -> Result<Option<Caller>, Refusal> {
        self.authenticator.check_host(authority(request.headers(), request.uri()))?;
        let permission = match required {
            Requirement::Open => return Ok(None),
            Requirement::AnyToken => None,
            Requirement::May(permission) => Some(permission),
        };
        self.authenticator.check_site(request.headers(), request.uri())?;
        let caller = self.authenticator.identify(request.headers())?;
        // Requests without the permission count against their caller's rate too.
        let within_rate = self.shares.check_rate(&caller, now);
        let permitted = within_rate.and_then(|()| check_permission(&caller, permission));
        match permitted.and_then(|()| self.shares.check_answers(&caller)) {
            Ok(()) => Ok(Some(caller)),
            Err(problem) => Err(Refusal::from(problem).to(caller)),
        }
    }
}

async fn pass(State(shell): State<Shell>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let path = tracing::enabled!(tracing::Level::DEBUG).then(|| request.uri().path().to_owned());
    let page = PageNote::of(&request);
    let draft = Some(AuditDraft::of(&request, route));
    let mut underway = Underway { shell: &shell, method: &method, route, caller: None, draft };
    let required = requirement(&method, route);
    let mut refused = None;
    // A page of metrics is large, and needed most while other callers take much: only its own caller's share binds it.
    let may_refuse = method.is_safe() && required != Requirement::May(Permission::Metrics);
    let response = match shell.admit(&request, required, started) {
        Ok(caller) => {
            match &caller {
                Some(caller) => drop(request.extensions_mut().insert(caller.clone())),
                None => drop(request.extensions_mut().insert(page.clone())),
            }
            underway.caller = caller;
            let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            let answer = answer.unwrap_or_else(|_| after_panic(&method, route));
            match underway.caller.as_ref().or_else(|| page.caller()) {
                Some(caller) => shell.shares.reserve_answer(caller, may_refuse, answer),
                None => answer,
            }
        }
        Err(refusal) => {
            underway.caller = refusal.caller().cloned();
            let drained = if refusal.caller().is_some() { DRAIN_BYTES } else { STRANGERS_DRAIN_BYTES };
            refused = Some((request, drained));
            refusal.into_response()
        }
    };
    let took = started.elapsed();
    underway.answered(&page, &response, took);
    tracing::debug!(%method, path, status = response.status().as_u16(), took_ms = took.as_secs_f64() * 1e3, "answered");
    if let Some((request, most)) = refused {
        // After the note in the audit, which a client that hangs up cannot prevent.
        drain_request(request, most).await;
    }
    response
}

/// A request that has no answer yet. Dropped without one, as when its client hangs up, it leaves its note and its count
/// all the same, because the desk's writes run to their end.
struct Underway<'a> {
    shell: &'a Shell,
    method: &'a Method,
    route: Option<&'a str>,
    caller: Option<Caller>,
    /// `None` once the request is answered.
    draft: Option<AuditDraft>,
}

impl Underway<'_> {
    fn answered(mut self, page: &PageNote, response: &Response, took: Duration) {
        if let Some(draft) = self.draft.take() {
            draft.record(&self.shell.audit, self.caller.as_ref(), page, response);
        }
        self.shell.metrics.answered(self.route, self.method, response.status(), took);
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            draft.record_unanswered(&self.shell.audit, self.caller.as_ref());
            self.shell.metrics.unanswered(self.route, self.method);
        }
    }
}

/// The answer after a panic, which has been logged where it happened.
fn after_panic(method: &Method, route: Option<&str>) -> Response {
    tracing::error!(%method, route, "a handler panicked");
    Refusal::from(internal::problem(Origin::Request, None, "the request caused a panic and may have taken effect"))
        .into_response()
}

/// Lets the client send its body, so that it sees the answer. Strangers reach open paths with a wrong method.
async fn drain_unhandled(request: Request) {
    let is_known = request.extensions().get::<Caller>().is_some();
    drain_request(request, if is_known { DRAIN_BYTES } else { STRANGERS_DRAIN_BYTES }).await;
}

async fn not_found(request: Request) -> Refusal {
    let detail = format!(
        "there is no resource at {}; /openapi.json describes the API, and the console is at /console",
        request.uri().path()
    );
    drain_unhandled(request).await;
    Problem::not_found(detail).into()
}

/// Refuses an unsupported method; the router adds the header that lists the supported ones.
async fn method_not_allowed(request: Request) -> Refusal {
    let detail = format!(
        "{} is not allowed for {}; the header Allow names the allowed methods",
        request.method(),
        request.uri().path()
    );
    drain_unhandled(request).await;
    Problem::method_not_allowed(detail).into()
}

#[cfg(test)]
mod tests {
    use axum::{
        body::{Body, to_bytes},
        http::{StatusCode, header},
        routing::{get, patch, post},
    };
    use common::access::Scope;
    use futures::StreamExt;
    use prometheus::{IntCounter, Registry};
    use serde_json::Value;
    use sha2::{Digest, Sha256};
    use tower::ServiceExt;

    use super::*;
    use crate::{
        access::{Access, TokenBook},
        audit::{AuditAction, AuditMetrics},
        config::{Auth, Role, Token},
        http::Limits,
    };

    fn audit() -> Audit {
        Audit::new(AuditMetrics::register(&Registry::new()).expect("registered once")).0
    }

    fn shares(per_second: u32) -> Shares {
        Shares::new(Limits::of_payload(1_000, per_second), IntCounter::new("beyond_rate", "none").expect("a counter"))
    }

    fn authenticator(auth: &Auth) -> Arc<Authenticator> {
        let access = Access::new(auth);
        access.put_in_force(TokenBook::default());
        Arc::new(Authenticator::new(Arc::new(access)))
    }

    fn router(roles: &[Role]) -> Router {
        router_with(roles, 0)
    }

    fn router_with(roles: &[Role], per_second: u32) -> Router {
        let routes = Router::new()
            .route("/v1/tasks", post(|| async { "submitted" }).get(|| async { "listed" }))
            .route("/v1/tasks/{id}", get(|name: super::super::PathPart| async move { name.0 }))
            .route("/v1/queues/{queue}/keys/{key}", get(|_: super::super::PathPart<(String, String)>| async {}))
            .route("/v1/queues/{queue}/pause", post(|| async { "paused" }))
            .route("/v1/cluster", get(broken_handler))
            .route("/healthz", get(|| async { "alive" }));
        router_of(roles, routes, shares(per_second))
    }

    fn router_of(roles: &[Role], routes: Router, shares: Shares) -> Router {
        let token = |role: &Role| Token {
            name: role.text().to_owned(),
            role: *role,
            queues: Scope::ALL,
            limits: Default::default(),
            sha256: Sha256::digest(role.text()).into(),
        };
        let authenticator = authenticator(&Auth { token: roles.iter().map(token).collect(), oidc: None });
        let metrics = HttpMetrics::register(&Registry::new(), &[]).expect("registered once");
        around(routes, authenticator, shares, audit(), metrics)
    }

    async fn broken_handler() -> &'static str {
        panic!("a handler that breaks")
    }

    async fn ask(router: &Router, method: &str, path: &str, token: Option<&str>) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        router.clone().oneshot(request.body(Body::empty()).expect("a request")).await.expect("an answer")
    }

    /// Checks that the answer is a problem, and returns its detail.
    async fn detail(response: Response) -> String {
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        let problem: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["type"].as_str().is_some_and(|kind| kind.starts_with("urn:duetime:problem:")), "{problem}");
        assert!(problem["title"].is_string(), "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    }

    #[tokio::test]
    async fn what_is_not_there_is_a_problem() {
        let router = router(&[]);
        let missing = ask(&router, "GET", "/v1/taks", None).await;
        assert_eq!(missing.status(), StatusCode::NOT_FOUND);
        assert!(detail(missing).await.contains("/v1/taks"));
    }

    #[tokio::test]
    async fn a_caller_beyond_its_rate_is_told_when_to_come_again_and_probes_are_not_counted() {
        let router = router_with(&[Role::Viewer, Role::Producer], 1);
        assert_eq!(ask(&router, "GET", "/v1/tasks", Some("viewer")).await.status(), StatusCode::OK);
        let refused = ask(&router, "GET", "/v1/tasks", Some("viewer")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        assert_eq!(ask(&router, "GET", "/v1/tasks", Some("producer")).await.status(), StatusCode::OK, "another caller");
        assert_eq!(ask(&router, "GET", "/healthz", None).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_request_without_the_permission_counts_against_its_callers_rate() {
        let router = router_with(&[Role::Submitter], 1);
        for status in [StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS] {
            assert_eq!(ask(&router, "GET", "/v1/tasks", Some("submitter")).await.status(), status);
        }
    }

    #[tokio::test]
    async fn answers_that_are_not_taken_take_memory_and_further_reads_are_refused() {
        let limits = Limits { answers_bytes: 16 << 20, ..Limits::of_payload(1_000, 0) };
        let shares = Shares::new(limits, IntCounter::new("beyond_rate", "none").expect("a counter"));
        let much = || async { "x".repeat(3 << 20) };
        let routes = Router::new()
            .route("/v1/tasks", get(much).post(much))
            .route("/v1/cluster", get(|| async { "small" }))
            .route("/metrics", get(much))
            .route("/healthz", get(|| async { "alive" }));
        let router = router_of(&Role::ALL, routes, shares);
        let mut kept = Vec::new();
        for (method, path, token, status) in [
            ("GET", "/v1/tasks", "viewer", 200),
            ("GET", "/v1/tasks", "viewer", 200),
            ("GET", "/v1/tasks", "viewer", 429),
            ("GET", "/v1/cluster", "viewer", 200),
            ("GET", "/v1/tasks", "operator", 200),
            // A change has happened, so its answer passes and takes more than the share, but nothing of others.
            ("POST", "/v1/tasks", "operator", 200),
            ("POST", "/v1/tasks", "operator", 200),
            ("GET", "/v1/cluster", "operator", 429),
            ("POST", "/v1/tasks", "operator", 429),
            ("GET", "/v1/tasks", "producer", 200),
            ("GET", "/v1/tasks", "producer", 503),
            // Pages of metrics pass the whole, and the share of their caller until it has no room for a small one.
            ("GET", "/metrics", "metrics", 200),
            ("GET", "/metrics", "metrics", 200),
            ("GET", "/metrics", "metrics", 200),
            ("GET", "/metrics", "metrics", 429),
            ("GET", "/healthz", "viewer", 200),
        ] {
            let answer = ask(&router, method, path, Some(token)).await;
            assert_eq!(answer.status(), status, "{method} {path} as {token}");
            assert_eq!(answer.headers().contains_key(header::RETRY_AFTER), status > 200);
            kept.push(answer);
        }
        let again = async || ask(&router, "GET", "/v1/tasks", Some("viewer")).await.status();
        let mut first = kept.swap_remove(0).into_body().into_data_stream();
        let piece = first.next().await.expect("a frame").expect("bytes").slice(..1);
        drop((first, kept.split_off(3)));
        assert_eq!(again().await, StatusCode::TOO_MANY_REQUESTS, "one piece keeps the memory of all");
        drop(piece);
        assert_eq!(again().await, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_wrong_method_is_a_problem_that_names_the_right_ones() {
        let response = ask(&router(&[]), "PUT", "/v1/tasks", None).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        let allowed = response.headers()[header::ALLOW].to_str().expect("text").to_owned();
        assert!(allowed.contains("POST") && allowed.contains("GET"), "{allowed}");
        assert!(detail(response).await.contains("PUT"));
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_read_is_a_problem() {
        for path in ["/v1/tasks/%ff", "/v1/queues/mail/keys/%ff", "/v1/queues/%ff/keys/k"] {
            let response = ask(&router(&[]), "GET", path, None).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
            detail(response).await;
        }
    }

    #[tokio::test]
    async fn a_handler_that_breaks_answers_with_a_problem() {
        let response = ask(&router(&[]), "GET", "/v1/cluster", None).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        detail(response).await;
    }

    #[tokio::test]
    async fn each_role_reaches_its_routes_and_no_others() {
        let router = router(&Role::ALL);
        let cases = [
            ("GET", "/v1/tasks", [401, 403, 403, 403, 200, 200, 200, 200]),
            ("POST", "/v1/tasks", [401, 403, 200, 403, 403, 403, 200, 200]),
            ("POST", "/v1/queues/mail/pause", [401, 403, 403, 403, 403, 403, 403, 200]),
            ("GET", "/healthz", [200; 8]),
            ("GET", "/v1/nothing", [401, 404, 404, 404, 404, 404, 404, 404]),
        ];
        for (method, path, statuses) in cases {
            let tokens = std::iter::once(None).chain(Role::ALL.map(|role| Some(role.text())));
            for (token, status) in tokens.zip(statuses) {
                let response = ask(&router, method, path, token).await;
                assert_eq!(response.status(), status, "{method} {path} as {token:?}");
                if status == 401 {
                    assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer realm=\"duetime\"");
                }
                if status >= 400 {
                    detail(response).await;
                }
            }
        }
    }

    #[tokio::test]
    async fn without_tokens_a_strangers_name_leads_nowhere() {
        let request = |host: &str| {
            let request = Request::builder().uri("/v1/tasks").header(header::HOST, host);
            request.body(Body::empty()).expect("a request")
        };
        let there = router(&[]).oneshot(request("localhost:8080")).await.expect("an answer");
        assert_eq!(there.status(), StatusCode::OK);
        let refused = router(&[]).oneshot(request("evil.example:8080")).await.expect("an answer");
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert!(detail(refused).await.contains("localhost"));
    }

    #[tokio::test]
    async fn a_caller_who_hangs_up_leaves_a_note_of_the_change_and_a_count() {
        let registry = Registry::new();
        let metrics = HttpMetrics::register(&registry, &[]).expect("registered once");
        let (audit, mut notes) = Audit::new(AuditMetrics::register(&registry).expect("registered once"));
        let slow = || std::future::pending::<&'static str>();
        let routes = Router::new().route("/v1/tasks/{id}", patch(slow).get(slow));
        let router = around(routes, authenticator(&Auth::default()), shares(0), audit, metrics);
        for method in [Method::PATCH, Method::GET] {
            let request = Request::builder().method(method).uri("/v1/tasks/7").body(Body::empty());
            let mut asked = Box::pin(router.clone().oneshot(request.expect("a request")));
            assert!(futures::poll!(&mut asked).is_pending());
        }
        let note = notes.try_recv().expect("noted").event;
        assert_eq!((note.action, note.target.as_str(), note.status), (AuditAction::TaskChange, "7", 499));
        assert!(notes.try_recv().is_err(), "a read that was not answered has shown nothing");
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        for method in ["PATCH", "GET"] {
            let line =
                format!(r#"duetime_http_requests_total{{method="{method}",route="/v1/tasks/{{id}}",status="499"}} 1"#);
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_route_and_not_by_path() {
        let registry = Registry::new();
        let metrics = HttpMetrics::register(&registry, &[]).expect("registered once");
        let routes = Router::new().route("/v1/tasks/{id}", get(|| async { "shown" }));
        let router = around(routes, authenticator(&Auth::default()), shares(0), audit(), metrics);
        for path in ["/v1/tasks/1", "/v1/tasks/2", "/nothing/1", "/nothing/2"] {
            ask(&router, "GET", path, None).await;
        }
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        let counted = |route: &str, status: &str, count: u32| {
            let line =
                format!(r#"duetime_http_requests_total{{method="GET",route="{route}",status="{status}"}} {count}"#);
            assert!(text.contains(&line), "{line} is not in {text}");
        };
        counted("/v1/tasks/{id}", "2xx", 2);
        counted("none", "4xx", 2);
        counted("/v1/cluster", "5xx", 0);
    }
}
