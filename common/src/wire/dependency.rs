//! The dependencies of a task in a request.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::{
    ids::QueueName,
    json::{self, AtMost},
    queue,
    task::{Dependency, dependency::MAX_DEPENDENCIES},
    wire::{Problem, check::check_key},
};

/// A dependency in a request: a key of the task's own queue, or queue and key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a key, or an object with `queue` and `key`")]
pub enum DependencyRequest {
    Key(String),
    #[serde(deserialize_with = "json::only_object")]
    Named(NamedDependency),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedDependency {
    pub queue: String,
    pub key: String,
}

pub(crate) type FirstDependencies = AtMost<DependencyRequest, MAX_DEPENDENCIES>;

/// Checks the dependencies in a request for a task of `queue` with `key`. A dependency that is named twice counts
/// once.
pub(crate) fn check_dependencies(
    requested: FirstDependencies,
    queue: &QueueName,
    key: Option<&str>,
) -> Result<Vec<Dependency>, Problem> {
    let refuse = |detail: String| Err(Problem::invalid_field("depends_on", detail));
    if requested.count > MAX_DEPENDENCIES {
        return refuse(format!("a task may depend on at most {MAX_DEPENDENCIES} others, not {}", requested.count));
    }
    let mut checked = BTreeSet::new();
    for one in requested.first {
        let (of, key) = match one {
            DependencyRequest::Key(key) => (queue.clone(), key),
            DependencyRequest::Named(named) => {
                queue::check_name(&named.queue).map_err(|error| in_list(error.to_string()))?;
                (QueueName::new(&named.queue), named.key)
            }
        };
        check_key("depends_on", &key)?;
        checked.insert(Dependency { queue: of, key });
    }
    if let Some(own) = key
        && checked.iter().any(|one| one.queue == *queue && one.key == own)
    {
        return refuse(format!("`{own}` is the key of the task itself: it would wait for itself"));
    }
    Ok(checked.into_iter().collect())
}

fn in_list(detail: String) -> Problem {
    Problem::invalid_field("depends_on", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(json: &str) -> Result<Vec<String>, String> {
        let requested = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let checked = check_dependencies(requested, &QueueName::new("mail"), Some("me")).map_err(|problem| {
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some("depends_on")));
            problem.detail
        })?;
        Ok(checked.iter().map(Dependency::name).collect())
    }

    #[test]
    fn a_key_alone_is_one_of_the_own_queue_and_named_twice_is_once() {
        assert_eq!(requested(r#"["a b", {"queue":"pay","key":"a"}, "a b"]"#).unwrap(), ["mail a b", "pay a"]);
        assert_eq!(requested("[]").unwrap(), Vec::<String>::new());
        assert_eq!(requested(r#"[{"queue":"pay","key":"me"}]"#).unwrap(), ["pay me"]);
    }

    #[test]
    fn what_cannot_be_waited_for_is_refused() {
        assert!(requested(r#"["me"]"#).unwrap_err().contains("wait for itself"));
        assert!(requested(r#"[""]"#).unwrap_err().contains("1 to 256"));
        assert!(requested(r#"[{"queue":"no blanks","key":"a"}]"#).unwrap_err().contains("queue"));
        assert!(requested(r#"[{"queue":"pay"}]"#).is_err());
        assert!(requested(r#"[{"queue":"pay","key":"a","shard":1}]"#).is_err());
        let many: Vec<String> = (0..=MAX_DEPENDENCIES).map(|n| format!("\"{n}\"")).collect();
        assert!(requested(&format!("[{}]", many.join(","))).unwrap_err().contains("100"));
    }
}
