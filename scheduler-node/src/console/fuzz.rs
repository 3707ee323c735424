//! Fuzz targets of the console: forms, the addresses of pages, and cookies.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use common::{
    time::UnixMicros,
    wire::{Limits, QueueRequest, ScheduleRequest},
};
use serde_json::Value;
use tokio::sync::watch;

use super::{browser, form, queue, schedule, session::Sessions, task_query::TaskQuery};
use crate::receipt::ReceiptKeys;

const NOW: UnixMicros = UnixMicros::new(1_800_000_000_000_000);

/// Reads a form, as a browser sends it, as that of a queue, of a schedule and of a list of tasks.
pub(crate) fn form(data: &[u8]) {
    let fields: Vec<(String, String)> =
        form_urlencoded::parse(data).map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let one = |name: &str| {
        fields.iter().find(|(field, text)| field == name && !text.is_empty()).map(|(_, text)| text.as_str())
    };
    if let Ok(body) = form::read_fields(&queue::specs(), one)
        && let Ok(policy) = QueueRequest::parse(&Value::Object(body).to_string()).and_then(QueueRequest::into_policy)
    {
        assert!(policy.max_attempts >= 1 && policy.max_length >= 1);
    }
    if let Ok(body) = form::read_fields(&schedule::specs(true), one) {
        let request = ScheduleRequest::parse(&Value::Object(body).to_string());
        let _ = request.and_then(|request| request.validate(NOW, &Limits::default()));
    }
    page(&TaskQuery::of_pairs(fields.iter().map(|(name, value)| (name, value))));
}

/// Checks that a page's address holds the whole state of the page.
fn page(task_query: &TaskQuery) {
    let url = task_query.url();
    let (_, query) = url.split_once('?').expect("it has a query");
    assert_eq!(TaskQuery::of_pairs(form_urlencoded::parse(query.as_bytes())), *task_query);
    let _ = task_query.list_filter();
    let _ = task_query.task_filter();
    if let Some(previous) = task_query.next("c".to_owned()).previous() {
        assert_eq!(previous.cursor.as_deref().unwrap_or("first"), task_query.cursor.as_deref().unwrap_or("first"));
    }
}

/// Reads the value as `cookie`, as `origin`, and as the path to open after a sign-in.
pub(crate) fn cookies(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(header::COOKIE, value.clone());
    headers.insert(header::HOST, HeaderValue::from_static("node:8080"));
    headers.insert(header::ORIGIN, value);
    let keys = ReceiptKeys { making: None, accepted: vec![vec![7; 32].into()] };
    let sessions = Sessions::new(watch::channel(Some(Arc::new(keys))).1);
    let session = browser::cookie(&headers, browser::SESSION).unwrap_or_default();
    let sealed = session.strip_prefix(browser::BY_TOKEN).unwrap_or(session);
    assert_eq!(sessions.open(sealed, NOW).expect("the keys are read"), None, "only a node seals a session");
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(!browser::is_from_here(&headers, &Uri::from_static("/console")) || text.ends_with("://node:8080"));
        let next = browser::safe_next(Some(text));
        assert!(next.starts_with("/console") && HeaderValue::from_str(next).is_ok());
    }
}
