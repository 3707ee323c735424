//! The tasks to come and the tasks that failed for good, for a person who wants to see both at one glance.

use std::{collections::BTreeMap, time::Duration};

use common::{time::UnixMicros, wire::Problem};

use super::{Desk, refusal::is_ours};
use crate::store::{
    self,
    outlook::{DEAD_QUEUES, DeadGroup, DeadGroups, SPAN_LOOK},
};

pub(crate) use crate::store::outlook::{DEAD_GROUPS, DEAD_LOOK};

/// The number of tasks that come due in one span of time, over all databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) starts_at: UnixMicros,
    pub(crate) tasks: i64,
    /// Whether the number is a lower bound.
    pub(crate) at_least: bool,
}

/// The numbers of tasks to come, one span after another.
pub(crate) type Outlook = Vec<Bucket>;

impl Desk {
    /// Counts the tasks that come due in each of `count` spans of `length` from now on. A database that does not answer
    /// makes each number a lower bound.
    pub(crate) async fn outlook(&self, length: Duration, count: i32) -> Result<Outlook, Problem> {
        self.require_all_queues()?;
        let now = self.now();
        let parts = self.parts().store.databases().iter().map(|database| database.task_outlook(now, length, count));
        let (parts, is_partial) = answered(futures::future::join_all(parts).await)?;
        let mut buckets = Vec::new();
        let mut starts_at = now;
        for nth in 0..usize::try_from(count).unwrap_or(0) {
            let spans = parts.iter().filter_map(|spans| spans.get(nth));
            let (tasks, at_least) =
                spans.fold((0, is_partial), |(tasks, at_least), span| (tasks + span.tasks, at_least || span.at_least));
            // One bound for all databases together.
            let at_least = at_least || tasks >= SPAN_LOOK;
            buckets.push(Bucket { starts_at, tasks: tasks.min(SPAN_LOOK - 1), at_least });
            starts_at = starts_at.plus(length);
        }
        Ok(buckets)
    }

    /// The dead tasks of the caller's queues by queue and error, over all databases, the largest group first. A
    /// caller who may not see errors has one group for each queue. A database that does not answer makes each number a
    /// lower bound.
    pub(crate) async fn dead_groups(&self) -> Result<DeadGroups, Problem> {
        let queues: Option<Vec<String>> = self.own_queues(DEAD_QUEUES + 1).map(|names| names.into_iter().collect());
        let names = queues.as_deref().map(|names| &names[..names.len().min(DEAD_QUEUES)]);
        let parts = self.parts().store.databases().iter().map(|database| database.dead_groups(names));
        let (parts, is_partial) = answered(futures::future::join_all(parts).await)?;
        let is_cut = queues.is_some_and(|queues| queues.len() > DEAD_QUEUES);
        let at_least = is_cut || is_partial || parts.iter().any(|part| part.at_least);
        let cut = parts.iter().any(|part| part.cut);
        let mut groups: BTreeMap<_, DeadGroup> = BTreeMap::new();
        for mut group in parts.into_iter().flat_map(|part| part.groups) {
            if !self.shows_data {
                group.error.clear();
            }
            let name = (group.queue.clone(), group.error.clone());
            match groups.get_mut(&name) {
                Some(so_far) => {
                    so_far.tasks += group.tasks;
                    so_far.newest_at = so_far.newest_at.max(group.newest_at);
                    so_far.oldest_at = so_far.oldest_at.min(group.oldest_at);
                }
                None => drop(groups.insert(name, group)),
            }
        }
        let mut groups: Vec<DeadGroup> = groups.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.tasks), std::cmp::Reverse(group.newest_at)));
        Ok(DeadGroups { groups, at_least, cut })
    }
}

/// The answers of the databases, and whether some are missing. Without any there is nothing to show, and an error of
/// ours is no outage.
fn answered<T>(parts: Vec<Result<T, store::Error>>) -> Result<(Vec<T>, bool), Problem> {
    let (mut answers, mut missing) = (Vec::with_capacity(parts.len()), None);
    for part in parts {
        match part {
            Ok(answer) => answers.push(answer),
            Err(error) if is_ours(&error) => return Err(error.into()),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "figures lack a database");
                missing = Some(error);
            }
        }
    }
    match missing {
        Some(error) if answers.is_empty() => Err(error.into()),
        missing => Ok((answers, missing.is_some())),
    }
}
