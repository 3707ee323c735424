//! Tokens and the audit are for operators only.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::{Body, Bytes},
    http::{Request, StatusCode},
};
use futures::{StreamExt, stream};

use super::{between, browser};
use crate::config::Role;

#[tokio::test]
async fn a_token_is_made_shown_once_and_revoked_and_all_of_it_is_noted() {
    let mut browser = browser(&[Role::Operator], true).await;
    browser.sign_in("operator").await;
    let fields =
        [("action", "create"), ("name", "shop"), ("role", "producer"), ("queues", "orders, shop.*"), ("days", "30")];
    let made = browser.post("/console/tokens", &fields).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.html);
    let again = browser.post("/console/tokens", &fields).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.html);
    let token = between(&made.html, "<pre id=\"made\">", "</pre>").expect("told").to_owned();
    assert!(token.starts_with("duetime_"), "{token}");
    let list = browser.page("/console/tokens").await;
    assert!(list.contains("orders, shop.*") && !list.contains(&token), "{list}");
    let revoked = browser.post("/console/tokens", &[("action", "revoke"), ("name", "shop")]).await;
    assert_eq!(revoked.location.as_deref(), Some("/console/tokens"), "{}", revoked.html);
    assert!(browser.page("/console/tokens").await.contains("revoked"));
    let mut noted = Vec::new();
    while let Ok(note) = browser.counter.notes.try_recv() {
        noted.push((note.event.action.text(), note.event.target, note.event.status, note.event.detail));
    }
    let deeds: Vec<_> = noted.iter().map(|(action, target, status, _)| (*action, target.as_str(), *status)).collect();
    assert_eq!(
        deeds,
        [
            ("console.sign_in", "console", 200),
            ("token.create", "shop", 200),
            ("token.create", "shop", 409),
            ("token.revoke", "shop", 200)
        ]
    );
    assert_eq!(noted[1].3.as_deref(), Some("console: producer, orders, shop.*"), "what was granted");
}

#[tokio::test]
async fn a_page_that_shows_an_old_token_revokes_no_newer_one_of_its_name() {
    let mut browser = browser(&[Role::Operator], true).await;
    browser.sign_in("operator").await;
    let (path, make) = ("/console/tokens", [("action", "create"), ("name", "shop"), ("role", "producer")]);
    browser.post(path, &make).await;
    let page = browser.page(path).await;
    let old = between(&page, "name=\"id\" value=\"", "\"").expect("an id");
    let revoke = [("action", "revoke"), ("name", "shop"), ("id", old)];
    assert_eq!(browser.post(path, &revoke).await.status, StatusCode::SEE_OTHER);
    browser.post(path, &make).await;
    let refused = browser.post(path, &revoke).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.html);
    assert!(browser.page(path).await.contains("Revoke shop"), "the new token is valid");
}

#[tokio::test]
async fn a_new_token_is_shown_even_where_the_list_of_tokens_cannot_be_read() {
    let mut browser = browser(&[Role::Operator], true).await;
    browser.sign_in("operator").await;
    let unreadable = "INSERT INTO duetime.token (name, role, sha256, created_by, limits)
        VALUES ('odd', 'viewer', sha256('odd'), 'a test', '5')";
    sqlx::query(unreadable).execute(&browser.test.pool).await.expect("written");
    assert_eq!(browser.get("/console/tokens").await.status, StatusCode::INTERNAL_SERVER_ERROR);
    let made = browser.post("/console/tokens", &[("action", "create"), ("name", "shop"), ("role", "producer")]).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.html);
    let token = between(&made.html, "<pre id=\"made\">", "</pre>").expect("shown").to_owned();
    assert!(made.html.contains("the list of tokens cannot be read"), "{}", made.html);
    assert!(!made.html.contains("There are no tokens"), "{}", made.html);
    let stored = "SELECT name FROM duetime.token WHERE sha256 = sha256(convert_to($1, 'UTF8'))";
    let name: String =
        sqlx::query_scalar(stored).bind(token).fetch_one(&browser.test.pool).await.expect("it is stored");
    assert_eq!(name, "shop");
}

#[tokio::test]
async fn neither_page_is_for_anybody_but_operators() {
    let mut browser = browser(&Role::ALL, true).await;
    browser.sign_in("producer").await;
    assert!(!browser.page("/console").await.contains("/console/audit"));
    for path in ["/console/audit", "/console/tokens"] {
        assert_eq!(browser.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(
        browser.post("/console/tokens", &[("action", "revoke"), ("name", "x")]).await.status,
        StatusCode::FORBIDDEN
    );
    browser.sign_in("operator").await;
    assert!(browser.page("/console").await.contains("/console/audit"));
}

#[tokio::test]
async fn a_form_that_is_refused_by_its_head_is_read_all_the_same_so_that_its_browser_sees_the_answer() {
    let mut browser = browser(&Role::ALL, true).await;
    for (token, site, status) in [
        (None, "same-origin", StatusCode::SEE_OTHER),
        (Some("operator"), "cross-site", StatusCode::FORBIDDEN),
        (Some("viewer"), "same-origin", StatusCode::FORBIDDEN),
    ] {
        if let Some(token) = token {
            browser.sign_in(token).await;
        }
        let read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&read);
        let pieces = stream::iter((0..1 << 10).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1 << 10]))));
        let form = pieces.inspect(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let request = Request::post("/console/tokens").header("sec-fetch-site", site).body(Body::from_stream(form));
        let answer = browser.send(request.expect("a request")).await;
        assert_eq!(answer.status, status, "{}", answer.html);
        assert_eq!(read.load(Ordering::Relaxed), 1 << 10, "{token:?} from {site}");
    }
}

#[tokio::test]
async fn the_audit_is_found_by_what_is_asked_for_and_hostile_text_is_text() {
    let browser = browser(&[], true).await;
    sqlx::query(
        "INSERT INTO duetime.audit (id, at, who, what, target, status, node) SELECT gen_random_uuid(), now(), 'ann', what, '<b>x', 200, 'n' FROM unnest(ARRAY['queue.pause', 'queue.put']) AS what",
    )
    .execute(&browser.test.pool)
    .await
    .expect("written");
    let page = browser.page("/console/audit?what=queue.pause").await;
    let rows = page.split_once("<tbody>").expect("a table").1;
    assert_eq!(rows.matches("<tr data-row>").count(), 1, "{rows}");
    assert!(rows.contains("&#60;b&#62;x") && !rows.contains("<b>x"), "{rows}");
    assert_eq!(browser.get("/console/audit?cursor=x").await.status, StatusCode::UNPROCESSABLE_ENTITY);
}
