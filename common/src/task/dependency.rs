//! Dependencies of a task: other tasks, by queue and business key, in its own partition.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    ids::QueueName,
    queue::{self, Placement},
    wire::{Problem, check_key, read},
};

/// The most dependencies of one task: each is looked up at every check of the task.
pub const MAX_DEPENDENCIES: usize = 100;

/// A task that has to succeed first. It need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dependency {
    pub queue: QueueName,
    pub key: String,
}

impl Dependency {
    /// The stored form. A queue's name has no blank, so the first blank ends it.
    pub fn name(&self) -> String {
        format!("{} {}", self.queue, self.key)
    }

    /// Reads a stored name.
    pub fn of_name(name: &str) -> Option<Self> {
        let (queue, key) = name.split_once(' ')?;
        Some(Self { queue: QueueName::new(queue), key: key.to_owned() })
    }
}

/// A dependency in a request: a key of the task's own queue, or queue and key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a key, or an object with `queue` and `key`")]
pub enum DependencyRequest {
    Key(String),
    #[serde(deserialize_with = "read::only_object")]
    Named(Named),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    pub queue: String,
    pub key: String,
}

/// Checks the dependencies in a request for a task of `queue` with `key`. A dependency that is named twice counts
/// once.
pub fn check_dependencies(
    asked: Vec<DependencyRequest>,
    queue: &QueueName,
    key: Option<&str>,
) -> Result<Vec<Dependency>, Problem> {
    let refuse = |detail: String| Err(Problem::invalid_field("depends_on", detail));
    if asked.len() > MAX_DEPENDENCIES {
        return refuse(format!("a task may depend on at most {MAX_DEPENDENCIES} others, not {}", asked.len()));
    }
    let mut checked = BTreeSet::new();
    for one in asked {
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

/// Refuses a task whose dependencies may live on other shards than its own: their success would not reach it there.
pub fn check_colocated(
    depends_on: &[Dependency],
    queue: &QueueName,
    partition_key: Option<&str>,
    placement: impl Fn(&QueueName) -> Placement,
) -> Result<(), Problem> {
    let own = placement(queue);
    for Dependency { queue: other, .. } in depends_on {
        let detail = match (own, placement(other)) {
            (Placement::Single, Placement::Single) if other == queue => continue,
            (Placement::Spread, Placement::Spread) if partition_key.is_some() => continue,
            (Placement::Spread, Placement::Spread) => {
                "a task that depends on others needs the same `partition_key` as they have".to_owned()
            }
            _ => format!(
                "a task of `{queue}` cannot depend on one of `{other}`: a queue with `placement` = `single` keeps its \
                 tasks on one shard"
            ),
        };
        return Err(in_list(detail));
    }
    Ok(())
}

fn in_list(detail: String) -> Problem {
    Problem::invalid_field("depends_on", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(json: &str) -> Result<Vec<String>, String> {
        let asked: Vec<DependencyRequest> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let checked = check_dependencies(asked, &QueueName::new("mail"), Some("me")).map_err(|problem| {
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some("depends_on")));
            problem.detail
        })?;
        Ok(checked.iter().map(Dependency::name).collect())
    }

    #[test]
    fn a_key_alone_is_one_of_the_own_queue_and_named_twice_is_once() {
        assert_eq!(asked(r#"["a b", {"queue":"pay","key":"a"}, "a b"]"#).unwrap(), ["mail a b", "pay a"]);
        assert_eq!(asked("[]").unwrap(), Vec::<String>::new());
        assert_eq!(asked(r#"[{"queue":"pay","key":"me"}]"#).unwrap(), ["pay me"]);
    }

    #[test]
    fn dependencies_are_of_the_own_partition_or_the_own_single_queue() {
        let single = |queue: &QueueName| {
            if queue.as_str() == "one" { Placement::Single } else { Placement::Spread }
        };
        let met = |own: &str, other: &str, partition_key: Option<&str>| {
            let on = [Dependency { queue: QueueName::new(other), key: "a".into() }];
            check_colocated(&on, &QueueName::new(own), partition_key, single).is_ok()
        };
        assert!(met("mail", "mail", Some("p")) && met("mail", "pay", Some("p")));
        assert!(!met("mail", "mail", None) && !met("mail", "pay", None));
        assert!(met("one", "one", None) && met("one", "one", Some("p")));
        assert!(!met("one", "mail", Some("p")) && !met("mail", "one", Some("p")));
    }

    #[test]
    fn what_cannot_be_waited_for_is_refused() {
        assert!(asked(r#"["me"]"#).unwrap_err().contains("wait for itself"));
        assert!(asked(r#"[""]"#).unwrap_err().contains("1 to 256"));
        assert!(asked(r#"[{"queue":"no blanks","key":"a"}]"#).unwrap_err().contains("queue"));
        assert!(asked(r#"[{"queue":"pay"}]"#).is_err());
        assert!(asked(r#"[{"queue":"pay","key":"a","shard":1}]"#).is_err());
        let many: Vec<String> = (0..=MAX_DEPENDENCIES).map(|n| format!("\"{n}\"")).collect();
        assert!(asked(&format!("[{}]", many.join(","))).unwrap_err().contains("100"));
    }
}
