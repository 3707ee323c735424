//! Requests that are refused before their bodies are read.

use common::access::Scope;
use prometheus::IntCounter;
use sha2::{Digest, Sha256};

use super::*;
use crate::{
    access::{Access, TokenBook},
    audit::{Audit, AuditMetrics},
    config::{Auth, Role, Token},
    http::{Authenticator, HttpMetrics, Limits, Shares, extract::without_query, refusal::Refusal, shell},
};

const TOKEN: &str = "shop";

/// The token and the type of a refused request, and the answer's status.
const REFUSED: [(&str, &str, &str); 3] =
    [("wrong", "application/json", "401"), (TOKEN, "text/plain", "415"), (TOKEN, "application/json", "413")];

/// A route inside of the shell that takes JSON of up to 1,000 bytes and no parameters.
pub(super) fn routes() -> Router {
    let beyond_rate = IntCounter::new("beyond_rate", "none").expect("a counter");
    let shares = Shares::new(Limits::of_payload(1_000, 0), beyond_rate);
    let of_handler = shares.clone();
    let read = move |request: Request| {
        let shares = of_handler.clone();
        async move {
            let (parts, body) = without_query(request).await?.into_parts();
            let unread = shares.body(parts, body, TOKEN.into());
            unread.text(1_000).await.map(|_| "read").map_err(Refusal::from)
        }
    };
    let (queues, limits) = (Scope::ALL, Default::default());
    let sha256 = Sha256::digest(TOKEN).into();
    let token = Token { name: TOKEN.to_owned(), role: Role::Operator, queues, limits, sha256 };
    let access = Access::new(&Auth { token: vec![token], oidc: None });
    access.put_in_force(TokenBook::default());
    let authenticator = Arc::new(Authenticator::new(Arc::new(access)));
    let registry = Registry::new();
    let metrics = HttpMetrics::register(&registry, &[]).expect("registered once");
    let (audit, _) = Audit::new(AuditMetrics::register(&registry).expect("registered once"));
    shell::around(Router::new().route("/v1/tasks", post(read)), authenticator, shares, audit, metrics)
}

/// The answer to a request whose body is sent in one piece with its head.
async fn answer(server: &Running, headers: &str, body: &[u8]) -> String {
    answer_to("POST /v1/tasks", server, headers, body).await
}

async fn answer_to(asked: &str, server: &Running, headers: &str, body: &[u8]) -> String {
    let head = format!("{asked} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n\r\n");
    let mut client = server.sent(&[head.as_bytes(), body].concat()).await;
    rest(&mut client).await
}

#[tokio::test]
async fn a_client_whose_request_is_refused_can_send_it_to_its_end_and_sees_the_answer() {
    let server = running(generous(), LONG).await;
    let body = vec![b'x'; 4 << 20];
    for (token, kind, status) in REFUSED {
        let headers =
            format!("Authorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {}", body.len());
        let answer = answer(&server, &headers, &body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer:.200}");
    }
}

#[tokio::test]
async fn what_is_no_request_and_too_large_a_head_get_a_bare_status() {
    let server = running(generous(), LONG).await;
    let head = |headers: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    // The server has read all of it when it refuses. With unread bytes the connection would be reset.
    let large = head(&format!("X-Much: {}\r\n", "x".repeat(64 << 10)));
    let many = head(&"X-Many: x\r\n".repeat(100));
    for (sent, status) in [("no request at all\r\n\r\n", "400"), (&large[..64 << 10], "431"), (many.as_str(), "431")] {
        let answer = rest(&mut server.sent(sent.as_bytes()).await).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer:.200}");
        assert!(answer.ends_with("\r\n\r\n") && !answer.contains("problem"), "{status}: {answer:.200}");
    }
}

#[tokio::test]
async fn a_client_that_sends_much_to_a_wrong_place_sees_the_answer() {
    let server = running(generous(), LONG).await;
    let body = vec![b'x'; 4 << 20];
    let headers = format!("Authorization: Bearer {TOKEN}\r\nContent-Length: {}", body.len());
    for (asked, status) in [("POST /nothing", "404"), ("PUT /v1/tasks", "405"), ("POST /v1/tasks?x=1", "422")] {
        let answer = answer_to(asked, &server, &headers, &body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{asked}: {answer:.200}");
    }
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_its_body_is_refused_without_it() {
    let server = running(generous(), LONG).await;
    for (token, kind, status) in REFUSED {
        let headers = format!(
            "Authorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: 2000000\r\nExpect: 100-continue"
        );
        let answer = answer(&server, &headers, b"").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer:.200}");
    }
}
