//! Tasks that wait for tasks outside the file: where these are in no other one either, they wait for ever.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use common::{ids::QueueName, task::Dependency, wire::ExportedTask};

/// This many names are remembered, as hashes: 70 MB at most. A file with more is not judged.
const NAMES_MAX: usize = 2_000_000;

/// The names of the file's tasks so far, and the tasks that wait for other names.
#[derive(Debug, Default)]
pub(super) struct Dependencies {
    /// Only tasks with a key and a partition key can be waited for.
    seen: HashSet<u64>,
    /// The number of a task, and a name that it waits for and that no task before it has.
    waiting: Vec<(u64, u64)>,
    /// The number of tasks that wait for others.
    tasks: u64,
    is_full: bool,
}

impl Dependencies {
    /// Notes a task that is submitted.
    pub(super) fn note(&mut self, task: &ExportedTask) {
        let Some(partition) = &task.partition_key else { return };
        self.tasks += u64::from(!task.depends_on.is_empty());
        if self.is_full {
            return;
        }
        for Dependency { queue, key } in &task.depends_on {
            let name = name(queue, key, partition);
            if !self.seen.contains(&name) {
                self.waiting.push((self.tasks, name));
            }
        }
        if let Some(key) = &task.key {
            self.seen.insert(name(&task.queue, key, partition));
        }
        if self.seen.len() + self.waiting.len() > NAMES_MAX {
            *self = Self { tasks: self.tasks, is_full: true, ..Self::default() };
        }
    }

    /// A warning about tasks that wait for tasks outside the file, at its end.
    pub(super) fn warning(&self) -> Option<String> {
        if self.is_full && self.tasks > 0 {
            return Some(format!("{} tasks wait for others, and the file is too long to look for those", self.tasks));
        }
        let outside = self.waiting.iter().filter(|(_, name)| !self.seen.contains(name)).map(|(task, _)| task);
        let tasks: HashSet<&u64> = outside.collect();
        (!tasks.is_empty()).then(|| {
            format!(
                "{} tasks wait for tasks that are not in this file, until these are submitted and succeed",
                tasks.len()
            )
        })
    }
}

/// The hash of a task's name. Two names with one hash would hide a warning; among so many that is unlikely.
fn name(queue: &QueueName, key: &str, partition: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (queue.as_str(), key, partition).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(key: Option<&str>, partition: &str, depends_on: &[&str]) -> ExportedTask {
        let depends_on: Vec<_> = depends_on.iter().map(|key| json!({ "queue": "q", "key": key })).collect();
        let task = json!({
            "id": "00000000-0000-0000-0000-00000abc0005", "queue": "q", "state": "waiting", "due_at": 0,
            "created_at": 0, "attempt": 0, "priority": 3, "payload": 1, "content_type": "application/json",
            "key": key, "partition_key": partition, "depends_on": depends_on,
        });
        serde_json::from_str(&task.to_string()).expect("a task")
    }

    fn noted(tasks: &[ExportedTask]) -> Option<String> {
        let mut dependencies = Dependencies::default();
        tasks.iter().for_each(|task| dependencies.note(task));
        dependencies.warning()
    }

    #[test]
    fn only_tasks_that_wait_for_others_outside_the_file_are_counted() {
        let waits = || task(Some("b"), "p", &["a"]);
        assert_eq!(noted(&[task(Some("a"), "p", &[]), waits()]), None);
        assert_eq!(noted(&[waits(), task(Some("a"), "p", &[])]), None, "in either order");
        let warning = noted(&[waits(), task(None, "p", &["b", "x", "y"]), task(Some("a"), "another", &[])]);
        assert!(warning.is_some_and(|text| text.starts_with("2 tasks wait for tasks that are not in this file")));
    }

    #[test]
    fn a_file_with_too_many_names_is_not_judged() {
        let mut dependencies = Dependencies { seen: (0..NAMES_MAX as u64).collect(), ..Dependencies::default() };
        dependencies.note(&task(Some("a"), "p", &["x"]));
        dependencies.note(&task(Some("b"), "p", &["x"]));
        assert!(dependencies.is_full && dependencies.seen.is_empty());
        assert!(dependencies.warning().is_some_and(|text| text.starts_with("2 tasks wait for others, and")));
    }
}
