//! Which visitors are let in, and whose forms are accepted.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{HeaderValue, Request, StatusCode, header},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::{
    access::{Caller, Scope},
    limit::TokenLimits,
};
use futures::{StreamExt, stream};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::{Answer, Browser, between, browser, browser_at_start, keys};
use crate::{
    access::{Token, TokenBook},
    config::Role,
    http::Route,
};

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
    for Route { method, path, .. } in super::super::ROUTES {
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

/// Follows a link. `site` is what the browser states of the page that led there.
async fn follow(browser: &Browser, path: &str, site: &str) -> Answer {
    browser.send(Request::get(path).header("sec-fetch-site", site).body(Body::empty()).expect("a request")).await
}

#[tokio::test]
async fn a_link_on_another_site_opens_its_page_with_a_session_and_else_the_form() {
    let mut browser = browser(&Role::ALL, true).await;
    browser.sign_in("viewer").await;
    // A browser keeps a strict cookie back from a link on another site.
    let session = browser.cookie.take();
    let path = "/console/tasks?state=dead";
    let led = follow(&browser, path, "cross-site").await.location.expect("to sign in");
    let page = follow(&browser, &led, "cross-site").await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.html);
    assert!(!page.html.contains("name=\"token\""), "{}", page.html);
    let again = page.headers[header::REFRESH].to_str().expect("text");
    let again = again.strip_prefix("0; url=").expect("at once").to_owned();
    assert!(page.html.contains(&again.replace('&', "&#38;")), "{}", page.html);
    // A browser that names the other site again is not led round in a circle.
    for site in ["same-origin", "cross-site"] {
        let form = follow(&browser, &again, site).await;
        assert!(form.html.contains("name=\"token\"") && form.html.contains("tasks?state=dead"), "{}", form.html);
        assert_eq!(form.headers.get(header::REFRESH), None, "{site}");
    }
    browser.cookie = session;
    for at in [again.as_str(), led.as_str()] {
        assert_eq!(follow(&browser, at, "same-origin").await.location.as_deref(), Some(path), "{at}");
    }
}

#[tokio::test]
async fn a_page_that_leads_on_leads_to_no_other_site() {
    let mut browser = browser(&Role::ALL, true).await;
    let path = "/console/sign-in?next=https%3A%2F%2Fevil.example";
    let page = follow(&browser, path, "cross-site").await;
    assert_eq!(page.headers[header::REFRESH], "0; url=/console/sign-in?next=%2Fconsole&from_here=yes");
    browser.cookie = Some("duetime_session=token.guessed".to_owned());
    assert_eq!(browser.get(path).await.status, StatusCode::OK, "the form");
    browser.sign_in("viewer").await;
    assert_eq!(browser.get(path).await.location.as_deref(), Some("/console"));
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

#[tokio::test]
async fn the_cookie_of_a_session_opens_the_console_and_not_the_api() {
    let mut browser = browser(&Role::ALL, true).await;
    browser.sign_in("operator").await;
    browser.page("/console/audit").await;
    let cookie = browser.cookie.take().expect("signed in");
    let session = cookie.strip_prefix("duetime_session=").expect("the session").to_owned();
    let mut found: Vec<Vec<u8>> = vec![session.clone().into()];
    for part in session.split('.') {
        found.extend([part.into(), URL_SAFE_NO_PAD.decode(part).unwrap_or_default()]);
    }
    for bearer in found {
        assert!(!bearer.windows(8).any(|bytes| bytes == b"operator"), "the token is in {cookie}");
        let Ok(sent) = HeaderValue::from_bytes(&[b"Bearer ", &bearer[..]].concat()) else { continue };
        let request = Request::get("/v1/queues").header(header::AUTHORIZATION, sent).body(Body::empty());
        assert_eq!(browser.send(request.expect("a request")).await.status, StatusCode::UNAUTHORIZED, "{bearer:?}");
    }
    for made_by_hand in [URL_SAFE_NO_PAD.encode("operator"), format!("token.{}", URL_SAFE_NO_PAD.encode("operator"))] {
        browser.cookie = Some(format!("duetime_session={made_by_hand}"));
        assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER, "{made_by_hand}");
    }
}

#[tokio::test]
async fn a_session_is_good_on_every_node_while_its_key_is() {
    let (mut one, mut other) = (browser(&Role::ALL, true).await, browser(&Role::ALL, true).await);
    one.sign_in("viewer").await;
    other.cookie.clone_from(&one.cookie);
    assert!(other.page("/console").await.contains("the viewer"));
    other.keys.send_replace(keys(&[2, 1]));
    let theme = other.post("/console/theme", &[("theme", "dark")]).await;
    assert_eq!(theme.status, StatusCode::SEE_OTHER, "{}", theme.html);
    other.keys.send_replace(keys(&[3, 2]));
    assert_eq!(other.get("/console").await.status, StatusCode::SEE_OTHER, "two changes of the key end it");
}

#[tokio::test]
async fn a_node_that_has_not_read_the_keys_says_so_and_signs_nobody_out() {
    let mut browser = browser(&Role::ALL, true).await;
    browser.sign_in("viewer").await;
    browser.keys.send_replace(None);
    let page = browser.get("/console").await;
    assert_eq!((page.status, page.set_cookie), (StatusCode::SERVICE_UNAVAILABLE, None));
    assert!(page.html.contains("has not read the cluster&#39;s keys"), "{}", page.html);
    let again = browser.post_bare("/console/sign-in", &[("token", "viewer")], "same-origin").await;
    assert_eq!((again.status, again.set_cookie), (StatusCode::SERVICE_UNAVAILABLE, None));
    browser.keys.send_replace(keys(&[1]));
    browser.page("/console").await;
}

#[tokio::test]
async fn a_node_that_has_not_read_the_tokens_calls_none_of_them_wrong() {
    let mut browser = browser(&Role::ALL, true).await;
    let caller =
        Caller { id: None, name: "ann".into(), role: Role::Viewer, queues: Scope::ALL, limits: TokenLimits::NONE };
    let token = Token::new(caller, Sha256::digest("hers").into(), Instant::now(), None);
    browser.access.put_in_force(TokenBook { revision: 1, tokens: vec![token] });
    browser.sign_in("hers").await;
    // The same cluster, and a node that has just started.
    let mut starting = browser_at_start(&Role::ALL).await;
    starting.cookie.clone_from(&browser.cookie);
    for answer in [
        starting.get("/console").await,
        starting.post_bare("/console/sign-in", &[("token", "hers")], "same-origin").await,
    ] {
        assert_eq!((answer.status, answer.set_cookie), (StatusCode::SERVICE_UNAVAILABLE, None), "{}", answer.html);
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
    }
    assert!(starting.counter.notes.try_recv().is_err(), "nothing was refused");
    starting.sign_in("viewer").await;
    starting.page("/console").await;
}

#[tokio::test]
async fn a_person_beyond_the_rate_of_their_token_reads_when_to_come_again() {
    let mut browser = browser(&[Role::Operator], true).await;
    let limits = TokenLimits { requests_per_second: Some(5), ..TokenLimits::NONE };
    let caller = Caller { id: None, name: "ann".into(), role: Role::Viewer, queues: Scope::ALL, limits };
    let token = Token::new(caller.clone(), Sha256::digest("hers").into(), Instant::now(), None);
    browser.access.put_in_force(TokenBook { revision: 1, tokens: vec![token] });
    browser.sign_in("hers").await;
    let help = browser.page("/console/help").await;
    let form_token = between(&help, "name=\"form_token\" value=\"", "\"").expect("every page carries it");
    // Requests of a later time leave nothing for those before it.
    let later = Instant::now() + Duration::from_secs(60 * 60);
    while browser.shares.check_rate(&caller, later).is_ok() {}
    for answer in [
        browser.get("/console").await,
        browser.get("/console/nowhere").await,
        browser.post_bare("/console/theme", &[], "same-origin").await,
        browser.post_bare("/console/sign-in", &[("token", "hers")], "same-origin").await,
    ] {
        assert_eq!((answer.status, answer.set_cookie), (StatusCode::TOO_MANY_REQUESTS, None), "{}", answer.html);
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
        assert!(answer.html.contains("may send 5 requests a second"), "{}", answer.html);
    }
    let out = browser.post_bare("/console/sign-out", &[("form_token", form_token)], "same-origin").await;
    assert_eq!(out.status, StatusCode::SEE_OTHER, "{}", out.html);
    browser.sign_in("operator").await;
    browser.page("/console").await;
}

#[tokio::test]
async fn the_form_of_a_sign_in_is_small_and_takes_memory_that_is_bounded() {
    let browser = browser(&Role::ALL, true).await;
    let long = "x".repeat(8 << 10);
    let answer = browser.post_bare("/console/sign-in", &[("token", long.as_str())], "same-origin").await;
    assert_eq!((answer.status, answer.set_cookie), (StatusCode::PAYLOAD_TOO_LARGE, None), "{}", answer.html);
    // A form that never ends.
    let (arrived, form) = endless_form();
    let mut waiting = Box::pin(browser.send(posted("/console/sign-in", "same-origin", form)));
    tokio::select! {
        answer = &mut waiting => panic!("the form has not come yet: {}", answer.status),
        () = arrived.notified() => {}
    }
    assert_ne!(browser.shares.reserved_bytes(), 0, "what has arrived takes its memory");
    drop(waiting);
    assert_eq!(browser.shares.reserved_bytes(), 0);
}

#[tokio::test]
async fn no_form_is_read_before_its_sender_is_known() {
    let mut browser = browser(&Role::ALL, true).await;
    let strangers = [("/console/sign-in", "cross-site", 403), ("/console/theme", "same-origin", 303)];
    for (path, site, status) in strangers {
        let answer = browser.send(posted(path, site, endless_form().1)).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
    }
    browser.sign_in("viewer").await;
    for (path, site) in [("/console/theme", "cross-site"), ("/console/tokens", "same-origin")] {
        assert_eq!(browser.send(posted(path, site, endless_form().1)).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    let (arrived, form) = endless_form();
    let mut waiting = Box::pin(browser.send(posted("/console/theme", "same-origin", form)));
    tokio::select! {
        answer = &mut waiting => panic!("the form has not come yet: {}", answer.status),
        () = arrived.notified() => {}
    }
    assert_ne!(
        browser.shares.reserved_bytes(),
        0,
        "the form of a person who signed in takes memory of the bodies' too"
    );
}

/// A form that never ends, and the signal that its first piece was read.
fn endless_form() -> (Arc<Notify>, Body) {
    let arrived = Arc::new(Notify::new());
    let read = Arc::clone(&arrived);
    let first = stream::once(async { Ok::<_, Infallible>("token=") });
    let rest = stream::once(async move {
        read.notify_one();
        std::future::pending().await
    });
    (arrived, Body::from_stream(first.chain(rest)))
}

fn posted(path: &str, site: &str, form: Body) -> Request<Body> {
    let request = Request::post(path)
        .header("sec-fetch-site", site)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(form);
    request.expect("a request")
}

#[tokio::test]
async fn a_token_that_was_revoked_ends_its_session_at_the_next_click() {
    let mut browser = browser(&[Role::Operator], true).await;
    let caller =
        Caller { id: None, name: "ann".into(), role: Role::Viewer, queues: Scope::ALL, limits: Default::default() };
    let token = Token::new(caller, Sha256::digest("hers").into(), Instant::now(), None);
    browser.access.put_in_force(TokenBook { revision: 1, tokens: vec![token] });
    browser.sign_in("hers").await;
    assert!(browser.page("/console").await.contains("ann"));
    browser.access.put_in_force(TokenBook { revision: 2, tokens: Vec::new() });
    assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER);
}
