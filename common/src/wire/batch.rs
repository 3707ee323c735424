//! Many tasks in one request, each with its own answer.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    json::AtMost,
    wire::{Problem, TaskReceipt, read},
};

pub const MAX_TASKS: usize = 10_000;

/// The tasks of a batch, still unparsed: a task that cannot be read does not fail the others.
#[derive(Debug)]
pub struct BatchRequest<'a> {
    pub tasks: Vec<&'a RawValue>,
}

impl<'a> BatchRequest<'a> {
    /// Splits `{"tasks": [...]}` or a bare array. [`crate::wire::TaskRequest::parse`] reads each element.
    pub fn split(raw: &'a str) -> Result<Self, Problem> {
        let list: FirstTasks<'a> =
            if raw.trim_start().starts_with('[') { read::json(raw)? } else { read::json::<Wrapped<'a>>(raw)?.tasks };
        if list.count > MAX_TASKS {
            let detail = format!("a batch may have {MAX_TASKS} tasks, not {}", list.count);
            return Err(Problem::invalid_field("tasks", detail));
        }
        Ok(Self { tasks: list.first })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrapped<'a> {
    #[serde(borrow)]
    tasks: FirstTasks<'a>,
}

type FirstTasks<'a> = AtMost<&'a RawValue, MAX_TASKS>;

/// The answers, in the order of the request.
#[derive(Debug, Serialize, Deserialize)]
pub struct BatchAnswer {
    pub results: Vec<BatchResult>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchResult {
    Refused { error: Problem },
    Accepted(TaskReceipt),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(raw: &str) -> Result<Vec<&str>, Problem> {
        BatchRequest::split(raw).map(|batch| batch.tasks.into_iter().map(RawValue::get).collect())
    }

    #[test]
    fn a_batch_is_a_list_of_tasks_bare_or_under_its_name() {
        assert_eq!(split(r#"{"tasks":[{"a": 1}, 5]}"#).unwrap(), [r#"{"a": 1}"#, "5"]);
        assert_eq!(split(" \n[ {\"a\": 1},null ]").unwrap(), [r#"{"a": 1}"#, "null"]);
        assert!(split("[]").unwrap().is_empty());
    }

    #[test]
    fn what_is_not_a_batch_is_refused() {
        for (raw, status, field) in [
            ("", 400, None),
            ("[1,", 400, None),
            ("5", 422, None),
            ("{}", 422, Some("tasks")),
            (r#"{"tasks":5}"#, 422, Some("tasks")),
            (r#"{"tasks":[],"dry_run":true}"#, 422, Some("dry_run")),
        ] {
            let problem = split(raw).unwrap_err();
            assert_eq!((problem.status, problem.field.as_deref()), (status, field), "{raw}");
        }
    }

    #[test]
    fn a_batch_has_ten_thousand_tasks_at_most() {
        let batch = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(split(&batch(MAX_TASKS)).unwrap().len(), MAX_TASKS);
        for count in [MAX_TASKS + 1, 100_000] {
            let list = batch(count);
            for raw in [format!(r#"{{"tasks":{list}}}"#), list] {
                let problem = split(&raw).unwrap_err();
                assert_eq!((problem.status, problem.field.as_deref()), (422, Some("tasks")));
                assert!(problem.detail.ends_with(&format!("not {count}")), "{problem}");
            }
        }
    }

    #[test]
    fn tasks_beyond_the_most_are_counted_and_not_kept() {
        let list = format!("[{}]", vec!["0"; 100_000].join(","));
        let read: FirstTasks<'_> = read::json(&list).unwrap();
        assert_eq!(read.count, 100_000);
        assert!(read.first.len() == MAX_TASKS && read.first.capacity() < 2 * MAX_TASKS);
    }

    #[test]
    fn each_result_is_a_receipt_or_an_error() {
        let error = BatchResult::Refused { error: Problem::invalid_field("queue", "no").at(1) };
        let json = serde_json::to_value(BatchAnswer { results: vec![error] }).unwrap();
        assert_eq!(json["results"][0]["error"]["index"], 1);
        let answer: BatchAnswer = serde_json::from_value(json).unwrap();
        assert!(matches!(&answer.results[0], BatchResult::Refused { error } if error.index == Some(1)));
    }
}
