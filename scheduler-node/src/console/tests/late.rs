//! Answers in the place of pages that take very long.

use std::future::pending;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
    middleware,
    routing::{get, post},
};
use tower::ServiceExt;

use crate::console::in_time;

async fn never() -> StatusCode {
    pending().await
}

#[tokio::test(start_paused = true)]
async fn a_form_that_takes_very_long_says_that_it_goes_on_and_makes_no_browser_send_it_again() {
    let pages: Router = Router::new()
        .route("/console/tasks/bulk", post(never))
        .route("/console/sign-in", post(never))
        .route("/console/tasks", get(never))
        .layer(middleware::from_fn(in_time));
    for (method, path, said) in [
        ("POST", "/console/tasks/bulk", "still being carried out"),
        ("POST", "/console/sign-in", "not ready in time"),
        ("GET", "/console/tasks", "not ready in time"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
        let answer = pages.clone().oneshot(request).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let page = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        let page = String::from_utf8_lossy(&page);
        assert!(page.contains(said), "{path}: {page}");
    }
}
