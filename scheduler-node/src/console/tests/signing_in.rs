//! Who is let in, and whose forms are taken.

use axum::http::{StatusCode, header};

use super::browser;
use crate::config::Role;

#[tokio::test]
async fn without_tokens_nobody_is_asked() {
    let browser = browser(&[], true).await;
    assert_eq!(browser.get("/").await.location.as_deref(), Some("/console"));
    assert!(browser.page("/console").await.contains("Overview"));
    assert_eq!(browser.get("/console/sign-in").await.location.as_deref(), Some("/console"));
    assert!(!browser.page("/console").await.contains("Sign out"));
}

#[tokio::test]
async fn with_tokens_every_page_asks_for_one_and_leads_back() {
    let mut browser = browser(&Role::ALL, true).await;
    for (method, path) in super::super::ROUTES {
        if method != "GET" || ["/", "/console/sign-in", "/console/assets/{hash}/{name}"].contains(path) {
            continue;
        }
        let answer = browser.get(&path.replace("{id}", "x")).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{path}");
        assert!(answer.location.expect("a place").starts_with("/console/sign-in?next=%2Fconsole"), "{path}");
    }
    let wrong = browser.post_bare("/console/sign-in", &[("token", "nobody")], "same-origin").await;
    assert_eq!((wrong.status, wrong.set_cookie), (StatusCode::UNAUTHORIZED, None));
    let next = [("token", "viewer"), ("next", "/console/help")];
    let right = browser.post_bare("/console/sign-in", &next, "same-origin").await;
    assert_eq!(right.location.as_deref(), Some("/console/help"));
    assert!(right.set_cookie.expect("a cookie").contains("HttpOnly; SameSite=Strict"));
    browser.sign_in("viewer").await;
    assert!(browser.page("/console").await.contains("the viewer"));
    let out = browser.post("/console/sign-out", &[]).await;
    assert!(out.set_cookie.expect("a cookie").starts_with("duetime_session=; Max-Age=0"));
}

#[tokio::test]
async fn a_form_without_its_token_or_from_elsewhere_is_refused() {
    let mut browser = browser(&Role::ALL, true).await;
    let elsewhere = browser.post_bare("/console/sign-in", &[("token", "viewer")], "cross-site").await;
    assert_eq!((elsewhere.status, elsewhere.set_cookie), (StatusCode::FORBIDDEN, None));
    browser.sign_in("operator").await;
    let theme = [("theme", "dark")];
    for (fields, site) in [
        (&theme[..], "same-origin"),
        (&[("theme", "dark"), ("form_token", "guessed")], "same-origin"),
        (&theme[..], "cross-site"),
    ] {
        let answer = browser.post_bare("/console/theme", fields, site).await;
        assert_eq!((answer.status, answer.set_cookie), (StatusCode::FORBIDDEN, None), "{fields:?} {site}");
    }
    let taken = browser.post("/console/theme", &[("theme", "dark"), ("back", "/console/help")]).await;
    assert_eq!(taken.location.as_deref(), Some("/console/help"));
    assert!(taken.set_cookie.expect("a cookie").starts_with("duetime_theme=dark"));
}

#[tokio::test]
async fn pages_run_nothing_and_are_not_kept_and_assets_are() {
    let browser = browser(&[Role::Viewer], true).await;
    let page = browser.get("/console/sign-in").await;
    let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers[header::CACHE_CONTROL], "no-store");
    assert_eq!(page.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert!(!page.html.contains("style="), "a style of its own would not be applied");
    let style = super::between(&page.html, "rel=\"stylesheet\" href=\"", "\"").expect("a stylesheet");
    let asset = browser.get(style).await;
    assert_eq!(asset.status, StatusCode::OK);
    assert!(asset.headers[header::CACHE_CONTROL].to_str().expect("text").contains("immutable"));
    let other = browser.get("/console/assets/0000000000000000/console.css").await;
    assert_eq!(other.headers[header::CACHE_CONTROL], "no-store");
    assert_eq!(browser.get("/console/assets/x/mod.rs").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_is_no_page_is_told_so() {
    let mut browser = browser(&[Role::Viewer], true).await;
    browser.sign_in("viewer").await;
    let answer = browser.get("/console/nowhere").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.html.contains("there is no page /console/nowhere"));
}
