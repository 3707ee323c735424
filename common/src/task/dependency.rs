//! Dependencies of a task: other tasks, by queue and business key, in its own partition.

use serde::{Deserialize, Serialize};

use crate::{field::FieldError, ids::QueueName, queue::Placement};

/// The most dependencies of one task: each is looked up at every check of the task.
pub(crate) const MAX_DEPENDENCIES: usize = 100;

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

/// Refuses a task whose dependencies may live on other shards than its own: their success would not reach it there.
pub fn check_colocated(
    depends_on: &[Dependency],
    queue: &QueueName,
    partition_key: Option<&str>,
    placement: impl Fn(&QueueName) -> Placement,
) -> Result<(), FieldError> {
    let own = placement(queue);
    for Dependency { queue: other, .. } in depends_on {
        let detail = match (own, placement(other)) {
            (Placement::Single, Placement::Single) if other == queue => continue,
            (Placement::Spread, Placement::Spread) if partition_key.is_some() => continue,
            (Placement::Spread, Placement::Spread) => {
                "a task that depends on others needs the same `partition_key` as they have".to_owned()
            }
            _ => format!(
                "a task of `{queue}` cannot depend on one of `{other}`: a queue with `placement` = `single` keeps its tasks on one shard"
            ),
        };
        return Err(in_list(detail));
    }
    Ok(())
}

fn in_list(detail: String) -> FieldError {
    FieldError::new("depends_on", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
