//! The console on a real database, driven as a browser drives it.

mod access;
mod cluster;
mod databases;
mod late;
mod oidc;
mod queues;
mod roles;
mod schedules;
mod signing_in;
mod tasks;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use common::{access::Scope, limit::Limit};
use prometheus::Registry;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::{
    access::{Access, TokenBook},
    config::{self, Auth, Role, Token},
    desk::tests::{Counter, fresh},
    http::{self, Authenticator, HttpMetrics, Shares},
    oidc::Provider,
    receipt::{ReceiptKey, ReceiptKeys},
    store::tests::fixture::TestDatabase,
};

/// A browser at a console, with the API beside it.
struct Browser {
    router: Router,
    counter: Counter,
    /// The host by which it knows the console.
    host: &'static str,
    cookie: Option<String>,
    access: Arc<Access>,
    /// The cluster's keys as the node knows them.
    keys: watch::Sender<Option<Arc<ReceiptKeys>>>,
    shares: Shares,
    test: TestDatabase,
}

struct Answer {
    status: StatusCode,
    location: Option<String>,
    set_cookie: Option<String>,
    headers: axum::http::HeaderMap,
    html: String,
}

/// Each token is the name of its role. Without roles there is no authentication.
async fn browser(roles: &[Role], show_payloads: bool) -> Browser {
    browser_with(roles, show_payloads, None).await
}

/// Like `browser`, with an identity provider beside the tokens.
async fn browser_with(roles: &[Role], show_payloads: bool, oidc: Option<config::Oidc>) -> Browser {
    let (counter, test) = fresh().await;
    browser_at(counter, test, roles, show_payloads, oidc)
}

fn browser_at(
    counter: Counter,
    test: TestDatabase,
    roles: &[Role],
    show_payloads: bool,
    oidc: Option<config::Oidc>,
) -> Browser {
    let browser = browser_before(counter, test, roles, show_payloads, oidc);
    browser.access.put_in_force(TokenBook::default());
    browser
}

/// A browser at a node that has not read the tokens made over the API.
async fn browser_at_start(roles: &[Role]) -> Browser {
    let (counter, test) = fresh().await;
    browser_before(counter, test, roles, true, None)
}

fn browser_before(
    counter: Counter,
    test: TestDatabase,
    roles: &[Role],
    show_payloads: bool,
    oidc: Option<config::Oidc>,
) -> Browser {
    let token = |role: &Role| Token {
        name: format!("the {role}"),
        role: *role,
        queues: Scope::ALL,
        limits: Default::default(),
        sha256: Sha256::digest(role.text()).into(),
    };
    let access = Access::new(&Auth { token: roles.iter().map(token).collect(), oidc: oidc.clone() });
    let access = Arc::new(access);
    let authenticator = Arc::new(Authenticator::new(Arc::clone(&access)));
    let keys = watch::channel(keys(&[1])).0;
    let registry = Registry::new();
    let metrics = HttpMetrics::register(&registry, super::ROUTES).expect("registered once");
    let oidc = oidc.map(|oidc| Provider::new(oidc).expect("a client"));
    let config = config::Console { show_payloads };
    let shares = Shares::new(http::Limits::of_payload(1_000, 0), counter.desk.limited(Limit::TokenRequests));
    let (desk, receipts) = (counter.desk.clone(), keys.subscribe());
    let pages = super::router(desk.clone(), Arc::clone(&authenticator), oidc, receipts, shares.clone(), &config);
    let router = http::router(desk, authenticator, shares.clone(), registry, metrics, pages);
    Browser { router, counter, host: "localhost:8080", cookie: None, access, keys, shares, test }
}

/// The keys as every node of one cluster reads them, the newest first.
fn keys(bytes: &[u8]) -> Option<Arc<ReceiptKeys>> {
    let key = |byte: &u8| ReceiptKey::from(vec![*byte; 32]);
    Some(Arc::new(ReceiptKeys { making: bytes.first().map(key), accepted: bytes.iter().map(key).collect() }))
}

impl Browser {
    async fn send(&self, mut request: Request<Body>) -> Answer {
        request.headers_mut().insert(header::HOST, self.host.parse().expect("a header"));
        if let Some(cookie) = &self.cookie {
            request.headers_mut().insert(header::COOKIE, cookie.parse().expect("a header"));
        }
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let text = |name| response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        let (status, location, set_cookie) = (response.status(), text(header::LOCATION), text(header::SET_COOKIE));
        let headers = response.headers().clone();
        let bytes = to_bytes(response.into_body(), 1 << 22).await.expect("a body");
        let html = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        Answer { status, location, set_cookie, headers, html }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request")).await
    }

    /// The page, which must exist.
    async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.html);
        answer.html
    }

    /// Sends a form as a page of the console would, without its token.
    async fn post_bare(&self, path: &str, fields: &[(&str, &str)], site: &str) -> Answer {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = Request::post(path)
            .header("sec-fetch-site", site)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(body));
        self.send(request.expect("a request")).await
    }

    /// Sends a form as a page of the console would.
    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let help = self.page("/console/help").await;
        let token = between(&help, "name=\"form_token\" value=\"", "\"").expect("every page carries it").to_owned();
        let fields: Vec<_> = fields.iter().copied().chain([("form_token", token.as_str())]).collect();
        self.post_bare(path, &fields, "same-origin").await
    }

    async fn sign_in(&mut self, token: &str) {
        let answer = self.post_bare("/console/sign-in", &[("token", token)], "same-origin").await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.html);
        let cookie = answer.set_cookie.expect("a cookie");
        self.cookie = cookie.split(';').next().map(str::to_owned);
    }
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    text.split_once(start)?.1.split_once(end).map(|(found, _)| found)
}
