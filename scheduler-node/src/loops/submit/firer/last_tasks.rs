//! What the databases tell about the last tasks of due schedules.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{DatabaseIndex, DatabaseName, ShardId, TaskId},
    schedule::{Overlap, overlaps},
};
use futures::{
    Stream, StreamExt,
    stream::{self, FuturesUnordered},
};
use parking_lot::Mutex;

use super::{Firer, UNREADABLE_OVER_AFTER};
use crate::{
    store::{Database, Error, Fault, schedules::DueSchedule},
    working_set::failures::Failures,
};

/// The longest wait for the states of last tasks. The schedules whose last tasks are elsewhere do not wait for them,
/// but the next look does.
const HEAR_WITHIN: Duration = Duration::from_secs(1);

/// How long a database that was silent is not asked again. Otherwise very many schedules with last tasks there would
/// make each look wait.
const SILENT_FOR: Duration = super::POSTPONE;

/// Where a database tells nothing of so many last tasks, as for unreadable blocks, it counts as silent. The search for
/// those that can be read takes a look's time, and likely ends in the same way for those of the next look.
const NONE_OF: usize = 16;

/// The reason why the states of last tasks are unknown.
#[derive(Debug, thiserror::Error)]
enum LastTaskUnknown {
    #[error("their database does not answer")]
    Silent,
    #[error(transparent)]
    Failed(#[from] Error),
}

/// What is remembered of the databases that have last tasks.
#[derive(Clone, Debug)]
pub(super) struct LastTasks {
    /// Those that told nothing, and when they are asked again.
    silent: Arc<Mutex<BTreeMap<DatabaseName, Instant>>>,
    /// Their last tasks that cannot be read.
    unreadable: Failures,
}

impl Default for LastTasks {
    fn default() -> Self {
        Self { silent: Arc::default(), unreadable: Failures::over_after(UNREADABLE_OVER_AFTER) }
    }
}

/// The schedules whose last tasks one database has.
type Question = (Arc<Database>, Vec<(DueSchedule, TaskId)>);

impl Firer {
    /// Adds to each schedule whether a new task would overlap its last one. `None`: this is unknown. Each database
    /// answers for all of its tasks at once, so a silent one delays the schedules of no other.
    pub(super) fn with_last_tasks(&self, due: Vec<DueSchedule>) -> impl Stream<Item = (DueSchedule, Option<bool>)> {
        let mut known = Vec::new();
        let mut asked: BTreeMap<DatabaseName, Question> = BTreeMap::new();
        for schedule in due {
            let may_overlap = schedule.record.rules.overlap == Overlap::Allow;
            let Some(last) = schedule.record.last_task.filter(|_| !may_overlap) else {
                known.push((schedule, Some(false)));
                continue;
            };
            if schedule.pending {
                known.push((schedule, Some(true)));
            } else if let Some(database) = self.fit(last).filter(|database| !self.is_silent(database.name())) {
                let group = asked.entry(database.name().clone());
                group.or_insert_with(|| (Arc::clone(database), Vec::new())).1.push((schedule, last));
            } else {
                known.push((schedule, None));
            }
        }
        let asking =
            asked.into_values().map(|(database, schedules)| async move { self.ask(&database, schedules).await });
        stream::select(stream::iter(known), asking.collect::<FuturesUnordered<_>>().flat_map(stream::iter))
    }

    /// The shards whose tasks this node cannot learn of now: their database is away from it or silent, their place is
    /// unknown, or they are closed there.
    pub(super) fn unknown_shards(&self) -> Vec<ShardId> {
        let (places, fitness) = (self.store.places(), self.fitness.borrow());
        let tells = |name: &DatabaseName| fitness.is_fit(name) && !self.is_silent(name);
        let telling = self.store.databases().indexed().filter(|(_, database)| tells(database.name()));
        let telling: BTreeSet<DatabaseIndex> = telling.map(|(index, _)| index).collect();
        let (map, shard_count) = (places.load(), places.shard_count().unwrap_or(0));
        // A shard that is closed for a move, or was left closed by one, fails the statement.
        let is_known = |shard: &ShardId| {
            map.of(*shard).is_some_and(|place| place.status.is_open() && telling.contains(&place.database))
        };
        (0..shard_count).map(ShardId::new).filter(|shard| !is_known(shard)).collect()
    }

    fn note_silent(&self, database: &DatabaseName) {
        self.last_tasks.silent.lock().insert(database.clone(), Instant::now() + SILENT_FOR);
    }

    fn is_silent(&self, database: &DatabaseName) -> bool {
        self.last_tasks.silent.lock().get(database).is_some_and(|until| Instant::now() < *until)
    }

    async fn ask(
        &self,
        database: &Database,
        schedules: Vec<(DueSchedule, TaskId)>,
    ) -> Vec<(DueSchedule, Option<bool>)> {
        let last: Vec<TaskId> = schedules.iter().map(|(_, last)| *last).collect();
        let mut known = BTreeMap::new();
        let (mut groups, began) = (vec![last], Instant::now());
        while let Some(group) = groups.pop() {
            match self.unfinished(database, &group).await {
                Ok(unfinished) => known.extend(group.into_iter().map(|last| (last, unfinished.contains(&last)))),
                // The statement fails where one of the shards has moved, or one of the rows cannot be read. The other
                // tasks have answers. Where no row can be read, the time ends the search for those that can.
                Err(LastTaskUnknown::Failed(error))
                    if group.len() > 1
                        && (error.is_moved() || (is_unreadable(&error) && began.elapsed() < HEAR_WITHIN)) =>
                {
                    groups.extend(group.chunks(group.len().div_ceil(2)).map(<[_]>::to_vec));
                }
                Err(error) => {
                    let (name, schedules) = (database.name(), group.len());
                    let is_of_rows = matches!(&error, LastTaskUnknown::Failed(error) if is_unreadable(error));
                    let reason = &error as &dyn std::error::Error;
                    if is_of_rows && self.last_tasks.unreadable.begin() {
                        tracing::warn!(database = %name, schedules, error = reason, "the last tasks of schedules cannot be read; these schedules make no tasks meanwhile, and maybe others too");
                    } else {
                        tracing::debug!(database = %name, schedules, error = reason, "cannot tell whether the last tasks of schedules are finished");
                    }
                    // The prober may not have found yet that it is away.
                    if !is_of_rows && !matches!(&error, LastTaskUnknown::Failed(error) if error.is_moved()) {
                        self.note_silent(name);
                        break;
                    }
                }
            }
        }
        if known.is_empty() && schedules.len() >= NONE_OF {
            self.note_silent(database.name());
        }
        schedules.into_iter().map(|(schedule, last)| (schedule, known.get(&last).copied())).collect()
    }

    /// The tasks among `last` which a new task would overlap. One whose expiry has passed is never started.
    async fn unfinished(&self, database: &Database, last: &[TaskId]) -> Result<BTreeSet<TaskId>, LastTaskUnknown> {
        let standing = tokio::time::timeout(HEAR_WITHIN, database.task_standing(last)).await;
        let standing = standing.map_err(|_| LastTaskUnknown::Silent)??;
        let book = self.books.load();
        let blocks =
            standing.iter().filter(|task| !task.expired && overlaps(task.state, book.get(&task.queue).policy.settle));
        Ok(blocks.map(|task| task.id).collect())
    }
}

/// Whether a read fails because of what it would read, so that the same read without it may pass.
fn is_unreadable(error: &Error) -> bool {
    matches!(error.fault(), Fault::Data | Fault::Bug) || error.is_unreadable_file()
}
