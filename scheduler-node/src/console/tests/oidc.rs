//! Signing in with an identity provider, as a browser does it.

use axum::http::{StatusCode, header};
use common::{
    access::{Role, Scope},
    grant::{Grant, Grants},
};
use integration_tests::identity_provider::{CLIENT_ID, CLIENT_SECRET, IdentityProvider, Lie};
use serde_json::json;

use super::{Answer, Browser, between, browser_with};
use crate::config::{Oidc, oidc::CALLBACK};

const OPERATORS: &str = "duetime operators";

fn config(issuer: &str, redirect: &str) -> Oidc {
    let grant = Grant { value: OPERATORS.to_owned(), role: Role::Operator, queues: Scope::ALL };
    Oidc {
        issuer: issuer.to_owned(),
        client_id: CLIENT_ID.to_owned(),
        client_secret: CLIENT_SECRET.into(),
        scopes: vec!["openid".to_owned()],
        redirect_url: format!("{redirect}{CALLBACK}"),
        grants: Grants { claim: "groups".to_owned(), grants: vec![grant] },
    }
}

async fn browser(idp: &IdentityProvider) -> Browser {
    browser_of(&[], idp.issuer()).await
}

/// A browser at the console's own host.
async fn browser_of(roles: &[Role], issuer: &str) -> Browser {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let browser = browser_with(roles, true, Some(config(issuer, "https://console.test"))).await;
    Browser { host: "console.test", ..browser }
}

/// Goes to the provider and comes back; returns the console's answer.
async fn there_and_back(browser: &mut Browser, next: &str) -> Answer {
    let begun = browser.get(&super::super::sign_in::begin_url(next)).await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.html);
    let flow = begun.set_cookie.expect("a cookie");
    assert!(flow.ends_with("; Path=/console; HttpOnly; SameSite=Lax; Secure"), "{flow}");
    browser.cookie = flow.split(';').next().map(str::to_owned);
    let back = visit(&begun.location.expect("a place")).await;
    browser.get(back.strip_prefix("https://console.test").expect("to the console")).await
}

/// The URL to which the provider sends the browser back.
async fn visit(url: &str) -> String {
    let answer = integration_tests::http::stepwise().get(url).send().await.expect("answered");
    answer.headers()["location"].to_str().expect("text").to_owned()
}

fn cookies(answer: &Answer) -> Vec<&str> {
    answer.headers.get_all(header::SET_COOKIE).iter().map(|cookie| cookie.to_str().expect("text")).collect()
}

#[tokio::test]
async fn a_person_signs_in_acts_under_his_name_and_signs_out() {
    let idp = IdentityProvider::start().await.expect("a provider");
    idp.person(json!({ "sub": "ann-7", "email": "ann@a.example", "groups": [OPERATORS] }));
    let mut browser = browser(&idp).await;
    assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER, "no browser gets in without a sign-in");
    let page = browser.page("/console/sign-in?next=/console/queues").await;
    let link = between(&page, "href=\"/console/sign-in/oidc", "\"").expect("a link");
    assert!(link.contains("next=%2Fconsole%2Fqueues"), "{link}");
    let answer = there_and_back(&mut browser, "/console/queues").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.html);
    assert_eq!(answer.headers[header::REFRESH], "0; url=/console/queues");
    let [session, flow] = cookies(&answer)[..] else { panic!("{:?}", cookies(&answer)) };
    assert!(session.contains("; HttpOnly; SameSite=Strict; Secure"), "{session}");
    assert!(flow.starts_with("duetime_sign_in=; Max-Age=0;"), "{flow}");
    browser.cookie = session.split(';').next().map(str::to_owned);
    assert!(browser.page("/console/queues").await.contains("oidc:ann-7"));
    let made = browser.post("/console/tokens", &[("action", "create"), ("name", "shop"), ("role", "viewer")]).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.html);
    let out = browser.post("/console/sign-out", &[]).await;
    assert!(out.set_cookie.expect("a cookie").starts_with("duetime_session=; Max-Age=0"));
    let mut noted = Vec::new();
    while let Ok(note) = browser.counter.notes.try_recv() {
        noted.push((note.event.caller.to_string(), note.event.action.text(), note.event.detail.unwrap_or_default()));
    }
    assert!(noted.iter().all(|(who, ..)| who == "oidc:ann-7"), "{noted:?}");
    let deeds: Vec<_> = noted.iter().map(|(_, action, _)| *action).collect();
    assert_eq!(deeds, ["console.sign_in", "token.create", "console.sign_out"]);
    assert!(noted[0].2.contains("ann@a.example"), "{noted:?}");
}

#[tokio::test]
async fn a_sign_in_at_another_host_begins_at_the_one_where_it_can_end() {
    let idp = IdentityProvider::start().await.expect("a provider");
    let mut browser = browser(&idp).await;
    browser.host = "node-1.test:8080";
    let led = browser.get(&super::super::sign_in::begin_url("/console/queues")).await;
    assert_eq!((led.status, led.set_cookie), (StatusCode::SEE_OTHER, None));
    let place = led.location.expect("a place");
    let path = place.strip_prefix("https://console.test").expect("to the right host").to_owned();
    assert!(path.contains("next=%2Fconsole%2Fqueues"), "{path}");
    // A proxy that names the node in `Host` leads there again.
    for (host, path) in [
        ("node-1.test:8080", path.as_str()),
        ("console.test", "/console/sign-in/oidc"),
        ("Console.TEST:443", "/console/sign-in/oidc"),
        ("console.test:8080", "/console/sign-in/oidc"),
    ] {
        browser.host = host;
        let begun = browser.get(path).await;
        assert!(begun.location.expect("a place").starts_with(idp.issuer()) && begun.set_cookie.is_some(), "{host}");
    }
}

#[tokio::test]
async fn a_session_of_a_person_is_no_token_and_a_flow_no_session() {
    let idp = IdentityProvider::start().await.expect("a provider");
    idp.person(json!({ "sub": "ann", "groups": [OPERATORS] }));
    let mut browser = browser(&idp).await;
    let answer = there_and_back(&mut browser, "/console").await;
    let session = between(cookies(&answer)[0], "duetime_session=", ";").expect("a session").to_owned();
    for bearer in [session.as_str(), session.strip_prefix("oidc.").expect("sealed")] {
        let request = axum::http::Request::get("/v1/queues").header(header::AUTHORIZATION, format!("Bearer {bearer}"));
        let answer = browser.send(request.body(axum::body::Body::empty()).expect("a request")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{}", answer.html);
    }
    let flow = browser.cookie.clone().expect("it began").replace("duetime_sign_in=", "duetime_session=oidc.");
    for cookie in
        [flow, format!("duetime_session={}", &session[..session.len() - 1]), "duetime_session=oidc.".to_owned()]
    {
        browser.cookie = Some(cookie);
        assert_eq!(browser.get("/console").await.status, StatusCode::SEE_OTHER);
    }
}

#[tokio::test]
async fn what_went_wrong_is_said_where_one_may_try_again() {
    let idp = IdentityProvider::start().await.expect("a provider");
    idp.person(json!({ "sub": "bob", "groups": ["others"] }));
    let mut browser = browser(&idp).await;
    let refused = there_and_back(&mut browser, "/console").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.html.contains("claim `groups`") && !refused.html.contains("others"), "{}", refused.html);
    assert!(refused.html.contains("Sign in with localhost"), "{}", refused.html);
    let noted = browser.counter.notes.try_recv().expect("noted").event;
    assert_eq!((&*noted.caller, noted.action.text(), noted.status), ("oidc:bob", "console.sign_in", 403));
    assert!(browser.counter.notes.try_recv().is_err(), "once");
    idp.lie(Lie::Refuses);
    let refused = there_and_back(&mut browser, "/console").await;
    assert!(refused.html.contains("access_denied") && !refused.html.contains("<b>no"), "{}", refused.html);
    assert!(cookies(&refused)[0].starts_with("duetime_sign_in=; Max-Age=0"), "this sign-in has ended");
    let strange = browser.get(&format!("{CALLBACK}?state=guessed&code=x")).await;
    assert_eq!((strange.status, cookies(&strange).len()), (StatusCode::BAD_REQUEST, 0));
    assert!(strange.html.contains("sign in again"), "{}", strange.html);
    assert_eq!(idp.given(), 1, "only bob's");
}

#[tokio::test]
async fn a_return_while_the_provider_is_away_ends_no_sign_in() {
    let idp = IdentityProvider::start().await.expect("a provider");
    let (begins, mut ends) = (browser(&idp).await, browser(&idp).await);
    let begun = begins.get(&super::super::sign_in::begin_url("/console/queues")).await;
    ends.cookie = begun.set_cookie.and_then(|flow| flow.split(';').next().map(str::to_owned));
    let back = visit(&begun.location.expect("a place")).await;
    // The second node has not asked it before.
    idp.lie(Lie::Away);
    let away = ends.get(back.strip_prefix("https://console.test").expect("to the console")).await;
    assert_eq!((away.status, cookies(&away).len()), (StatusCode::SERVICE_UNAVAILABLE, 0), "{}", away.html);
    assert!(away.html.contains("/console/sign-in/oidc?next=%2Fconsole%2Fqueues"), "{}", away.html);
}

#[tokio::test]
async fn while_the_provider_is_away_the_page_says_so_and_a_token_still_opens() {
    let mut browser = browser_of(&[Role::Viewer], "http://127.0.0.1:9").await;
    let answer = browser.get("/console/sign-in/oidc?next=//evil.example").await;
    assert_eq!((answer.status, answer.location), (StatusCode::SERVICE_UNAVAILABLE, None));
    assert!(answer.html.contains("cannot be reached") && !answer.html.contains("evil"), "{}", answer.html);
    browser.sign_in("viewer").await;
    browser.page("/console").await;
}
