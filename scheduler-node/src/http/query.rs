//! Query strings.

use std::collections::BTreeSet;

use axum::{extract::Query, http::Uri};
use common::{
    field::FieldError,
    shard::ShardSet,
    wire::{
        AuditFilter, KeyQuery, ListFilter, NamePage, NextQuery, Problem, TaskFilter, TokenPage, read,
        shard::{CallOffQuery, EstimatesQuery},
    },
};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

/// The text that axum puts before the reason.
const PREAMBLE: &str = "Failed to deserialize query string: ";

/// The filter of a list; the problem names the parameter to blame.
pub(super) fn filter(uri: &Uri) -> Result<ListFilter, Problem> {
    let filter: ListFilter = parameters(uri)?;
    filter.validate().map(|()| filter)
}

/// The filter of an export; the problem names the parameter to blame.
pub(super) fn task_filter(uri: &Uri) -> Result<TaskFilter, Problem> {
    let filter: TaskFilter = parameters(uri)?;
    filter.validate().map(|()| filter)
}

/// The partition key beside a business key.
pub(super) fn partition_key(uri: &Uri) -> Result<Option<String>, Problem> {
    parameters::<KeyQuery>(uri).map(|query| query.partition_key)
}

/// The number of a schedule's next fire times to show.
pub(super) fn next(uri: &Uri) -> Result<usize, Problem> {
    Ok(parameters::<NextQuery>(uri)?.count()?)
}

/// Which page of a list that is in the order of its names.
pub(super) fn name_page(uri: &Uri, check_name: impl Fn(&str) -> Result<(), FieldError>) -> Result<NamePage, Problem> {
    let page: NamePage = parameters(uri)?;
    page.validate(check_name)?;
    Ok(page)
}

/// Which deeds of the audit.
pub(super) fn audit_filter(uri: &Uri) -> Result<AuditFilter, Problem> {
    let filter: AuditFilter = parameters(uri)?;
    filter.validate().map(|()| filter)
}

/// Which page of tokens.
pub(super) fn token_page(uri: &Uri) -> Result<TokenPage, Problem> {
    let page: TokenPage = parameters(uri)?;
    page.validate()?;
    Ok(page)
}

/// Whether a list shows estimates of the load.
pub(super) fn estimates(uri: &Uri) -> Result<bool, Problem> {
    Ok(parameters::<EstimatesQuery>(uri)?.estimates.unwrap_or(false))
}

/// The shards whose moves are called off.
pub(super) fn call_off(uri: &Uri) -> Result<ShardSet, Problem> {
    Ok(parameters::<CallOffQuery>(uri)?.shards)
}

/// The parameters of a query; the problem names the one to blame.
pub(super) fn parameters<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    check_utf8(uri.query().unwrap_or_default())?;
    let problem = match Query::<T>::try_from_uri(uri) {
        Ok(Query(read)) => return Ok(read),
        Err(rejection) => rejection.body_text(),
    };
    let reason = problem.strip_prefix(PREAMBLE).unwrap_or(&problem);
    let names: BTreeSet<&str> =
        uri.query().unwrap_or_default().split('&').map(|pair| pair.split('=').next().unwrap_or_default()).collect();
    Err(match reason.split_once(": ") {
        Some((name, reason)) if names.contains(name) && !reason.starts_with("unknown field") => {
            Problem::invalid_field(name.to_owned(), format!("`{name}`: {reason}"))
        }
        Some((name, reason)) if names.contains(name) => read::explain_text(reason),
        _ => read::explain_text(reason),
    })
}

/// Refuses what is not UTF-8. It would be read with U+FFFD in its place, as another value than the client's.
fn check_utf8(query: &str) -> Result<(), Problem> {
    let Some(pair) = query.split('&').find(|pair| percent_decode_str(pair).decode_utf8().is_err()) else {
        return Ok(());
    };
    let name = pair.split('=').next().unwrap_or_default();
    Err(Problem::invalid_field(name.to_owned(), format!("`{name}`: invalid UTF-8 in the query")))
}

#[cfg(test)]
mod tests {
    use common::schedule;

    use super::*;

    fn read(query: &str) -> Result<ListFilter, Problem> {
        filter(&format!("/v1/tasks?{query}").parse().expect("a path"))
    }

    #[test]
    fn every_parameter_is_read() {
        let filter = read(
            "queue=mail&state=scheduled&partition_key=a%20b&due_after=2030-01-01T00:00:00Z&due_before=1900000000000&limit=7",
        )
        .expect("read");
        assert_eq!(filter.queue.expect("given").as_str(), "mail");
        assert_eq!(filter.partition_key.as_deref(), Some("a b"));
        assert_eq!(filter.due_before.expect("given").millis(), 1_900_000_000_000);
        assert_eq!(filter.limit, Some(7));
        assert_eq!(read("").expect("read"), ListFilter::default());
    }

    #[test]
    fn how_many_fire_times_and_which_page_of_schedules_is_read() {
        let uri = |query: &str| format!("/v1/schedules/s?{query}").parse().expect("a path");
        assert_eq!((next(&uri("")), next(&uri("next=0"))), (Ok(5), Ok(0)));
        for query in ["next=101", "next=-1", "next=all"] {
            assert_eq!(next(&uri(query)).expect_err("refused").field.as_deref(), Some("next"), "{query}");
        }
        let page = name_page(&uri("limit=2&cursor=a.b"), schedule::check_name).expect("read");
        assert_eq!((page.limit(), page.cursor.as_deref()), (2, Some("a.b")));
        assert_eq!(
            name_page(&uri("cursor=a%20b"), schedule::check_name).expect_err("refused").field.as_deref(),
            Some("cursor")
        );
    }

    #[test]
    fn shards_and_estimates_are_read() {
        let uri = |query: &str| format!("/v1/shards?{query}").parse().expect("a path");
        assert_eq!(call_off(&uri("shards=0-3,7")).expect("read").to_string(), "0-3,7");
        assert_eq!((estimates(&uri("")), estimates(&uri("estimates=true"))), (Ok(false), Ok(true)));
        for (query, field) in [("", "shards"), ("shards=a", "shards"), ("shards=1&force=1", "force")] {
            let problem = call_off(&uri(query)).expect_err("refused");
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{query}: {problem:?}");
        }
        assert_eq!(estimates(&uri("estimates=maybe")).expect_err("refused").status, 422);
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        for (query, field) in [
            ("limit=many", "limit"),
            ("limit=1001", "limit"),
            ("state=done", "state"),
            ("due_after=tomorrow", "due_after"),
            ("cursor=xyz", "cursor"),
            ("colour=red", "colour"),
            ("queue=a&queue=b", "queue"),
            ("queue=a%2Fb", "queue"),
            ("key=", "key"),
            ("queue=mail&key=%ff", "key"),
            ("partition_key=M%FCller", "partition_key"),
            ("%e4=a", "%e4"),
        ] {
            let problem = read(query).expect_err("refused");
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{query}: {problem:?}");
        }
    }
}
