//! Fuzz targets of query strings and of the headers that identify the caller.

use axum::http::{HeaderValue, Uri};
use common::wire::Problem;

use super::{
    auth::{bearer, is_own},
    query,
};

/// A query string is accepted, or refused with a problem that blames the client.
pub(crate) fn query(text: &str) {
    let Ok(uri) = format!("/v1/tasks?{text}").parse::<Uri>() else { return };
    let refused = |problem: Problem| assert!((400..500).contains(&problem.status), "{problem:?}");
    let _ = query::filter(&uri).map(|filter| assert!((1..=1_000).contains(&filter.limit()))).map_err(refused);
    let _ = query::task_filter(&uri).map(drop).map_err(refused);
    let _ = query::partition_key(&uri).map(drop).map_err(refused);
    let _ = query::next(&uri).map(|count| assert!(count <= 100)).map_err(refused);
    let _ = query::name_page(&uri, common::queue::check_name).map(drop).map_err(refused);
    let _ = query::name_page(&uri, common::schedule::check_name).map(drop).map_err(refused);
    let _ = query::audit_filter(&uri).map(drop).map_err(refused);
    let _ = query::token_page(&uri).map(drop).map_err(refused);
}

/// Reads the value as `authorization` and as `host`.
pub(crate) fn header(data: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(data)
        && let Some(token) = bearer(&value)
    {
        assert!(token.len() + "Bearer ".len() <= data.len());
    }
    if let Ok(host) = std::str::from_utf8(data) {
        assert!(!is_own(host) || !host.contains('/'), "{host:?} is a name, not a path");
    }
}
