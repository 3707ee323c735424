//! Releases tasks that waited for others.
//!
//! The writer of a success looks for tasks that wait for it. The writer of a waiting task looks whether it must
//! still wait. Each looks after its commit, so one of the two sees the other. If a node dies in between, the task
//! is looked at again at its own `wake_at`, at most six hours later. A success is kept for a day at least.
//!
//! A task waits for others of its own shard only. The shard may move between the success and the look. Its former place
//! then refuses the look, and the tasks are released in the new one.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::{DatabaseName, ShardId, TaskId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    clock,
    loops::nudger::Nudger,
    store::{
        Database, Error, Fault, Patience, Statements, StoreOp,
        depend::{DEPENDENTS_AT_ONCE, ReleaseCheck, Released, Succeeded},
    },
    supervise::spawn_child,
    working_set::{database::NodeDatabase, retry::try_each, set_aside::Kind},
};

/// The pause before a row that another transaction holds is looked at again. Another look holds it for some
/// milliseconds, an application for as long as its transaction is open.
const HELD_AGAIN: Duration = Duration::from_millis(100);

/// The most waiting tasks that one statement looks at. With 100 names each, that is some seconds in the worst case, and
/// a statement has five.
pub const LOOKED_AT_ONCE: usize = 50;

/// The fewest dependents of one success that a statement checks, after one with more ran out of its time. With 100
/// names each, and hundreds of archive partitions to probe for each name, they take some two of its five seconds.
const FEWEST_DEPENDENTS: u16 = 5;

/// How many times fewer dependents of one success the next statement checks, after one ran out of its time. Each such
/// statement takes its five seconds, so few of them must lead to [`FEWEST_DEPENDENTS`].
const FEWER_DEPENDENTS: u16 = 10;

/// How long a submission waits for the look at its new waiting tasks. It is answered then, as after the longest try to
/// store it: a task that was not looked at is found at its own `wake_at`.
pub const NEW_LOOKED_AT_WITHIN: Duration = Duration::from_secs(5);

/// Releases of a success's further dependents under way in a database. They share the connections of the claims and
/// must leave most of them.
const REST_IN_FLIGHT: usize = 2;

/// Batches of successes of a database whose further dependents are released or wait for that, with up to 1,000 names
/// each. Those of others wait for their own `wake_at`.
const RESTS: usize = 100;

/// How long the further dependents of successes are released. Those that are left come up by themselves. A due task is
/// looked at after half of the time since then, and after a quarter of an hour at the latest.
const REST_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Releaser<S = Arc<Database>> {
    pub nudger: Nudger<S>,
    rests: Arc<Mutex<BTreeMap<DatabaseName, Rests>>>,
}

/// The room for further dependents of one database: another one may be slow to release its own.
#[derive(Clone, Debug)]
struct Rests {
    places: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Default for Rests {
    fn default() -> Self {
        let [places, all] = [REST_IN_FLIGHT, RESTS].map(|most| Arc::new(Semaphore::new(most)));
        Self { places, all }
    }
}

/// The tasks that wait for these successes, from the next one after `after` on.
#[derive(Debug)]
struct Dependents {
    succeeded: Vec<Succeeded>,
    after: Option<TaskId>,
    /// The most that one statement checks.
    most: u16,
    /// Whether the one shard of these successes has moved: they are looked for in its place, not in the database in
    /// which the successes were written.
    has_moved: bool,
    /// How often they were refused because of that, since a place has taken some of them.
    refusals: u32,
}

impl Dependents {
    /// Those of some of the successes.
    fn of(&self, succeeded: &[Succeeded]) -> Self {
        let Self { after, most, has_moved, refusals, .. } = *self;
        Self { succeeded: succeeded.to_vec(), after, most, has_moved, refusals }
    }

    /// The tasks of a part that ran out of its time, in smaller parts. Those of several successes are halved, and a
    /// statement checks fewer of those of a single one. Empty: they cannot be smaller.
    fn smaller(&self, part: &[Succeeded]) -> Vec<Self> {
        let fewer = (self.most / FEWER_DEPENDENTS).max(FEWEST_DEPENDENTS);
        match part {
            [_] if fewer == self.most => Vec::new(),
            [_] => vec![Self { most: fewer, ..self.of(part) }],
            _ => part.chunks(part.len().div_ceil(2)).map(|half| self.of(half)).collect(),
        }
    }

    /// The tasks of a part that was refused because one of its shards has moved. Those of each shard are a part of
    /// their own, so that the others go on in their place.
    fn by_shard(&self, part: &[Succeeded]) -> Vec<Self> {
        let mut shards: BTreeMap<ShardId, Vec<Succeeded>> = BTreeMap::new();
        for one in part {
            shards.entry(one.shard).or_default().push(one.clone());
        }
        let is_one = shards.len() == 1;
        let (has_moved, refusals) = (self.has_moved || is_one, self.refusals + u32::from(is_one));
        shards.into_values().map(|of_one| Self { has_moved, refusals, ..self.of(&of_one) }).collect()
    }
}

impl<S: Statements> Releaser<S> {
    pub fn new(nudger: Nudger<S>) -> Self {
        Self { nudger, rests: Arc::default() }
    }

    /// Releases the tasks that wait for these successes, which `database` has. If they are many, or in a shard that has
    /// moved since, it returns after the first statement, for confirms and reports wait for it. It releases the others
    /// meanwhile.
    pub async fn succeeded(&self, database: &NodeDatabase<S>, succeeded: &[Succeeded]) {
        if succeeded.is_empty() {
            return;
        }
        let succeeded = succeeded.to_vec();
        let first = Dependents { succeeded, after: None, most: DEPENDENTS_AT_ONCE, has_moved: false, refusals: 0 };
        let rest = self.release_dependents(database, &first).await;
        if rest.is_empty() {
            return;
        }
        let Ok(one_of_all) = self.rests(database).all.try_acquire_owned() else {
            tracing::debug!(database = %database.name(), "more tasks wait for a success than are released at once; their next check finds them");
            return;
        };
        let (this, database) = (self.clone(), database.clone());
        spawn_child(async move {
            this.release_rest(&database, rest).await;
            drop(one_of_all);
        });
    }

    fn rests(&self, database: &NodeDatabase<S>) -> Rests {
        self.rests.lock().entry(database.name().clone()).or_default().clone()
    }

    async fn release_rest(&self, database: &NodeDatabase<S>, rest: Vec<Dependents>) {
        let end = clock::instant() + REST_WITHIN;
        let mut parts = VecDeque::from(rest);
        // Those that stay go first: what moved may wait for a place of a slow database.
        while clock::instant() < end
            && let Some(part) = parts.remove(parts.iter().position(|part| !part.has_moved).unwrap_or_default())
        {
            let Some(database) = self.place_of(&part, database).await else {
                let shard = part.succeeded.first().map(|one| tracing::field::display(one.shard));
                tracing::debug!(shard, database = %database.name(), refusals = part.refusals, "no database takes the release of tasks that waited for a success; their shard has moved from this one, and their next check finds them");
                continue;
            };
            // For one page only, so that a success with many dependents does not keep others from theirs.
            let Ok(_place) = self.rests(database).places.acquire_owned().await else { return };
            parts.extend(self.release_dependents(database, &part).await);
        }
    }

    /// The database in which these tasks are: the one in which the successes were `written`, or after a refusal the
    /// place of their shard. `None`: no place has taken them in time.
    async fn place_of<'a>(&'a self, part: &Dependents, written: &'a NodeDatabase<S>) -> Option<&'a NodeDatabase<S>> {
        if !part.has_moved {
            return Some(written);
        }
        let databases = self.nudger.databases();
        // Other parts had their turn since the first refusal: only tries count.
        if let Some(before) = part.refusals.checked_sub(1)
            && !databases.places().reread_after_move(before, clock::instant(), Patience::Long).await
        {
            return None;
        }
        databases.of(part.succeeded.first()?.shard).map(|(_, database)| database)
    }

    /// Releases the first of these tasks. Returns those that are left: in smaller parts if these ran out of their time,
    /// and by their shards if one has moved.
    async fn release_dependents(&self, database: &NodeDatabase<S>, dependents: &Dependents) -> Vec<Dependents> {
        let Dependents { succeeded, after, most, .. } = dependents;
        let write = |part| async move {
            database.sql.task_release_dependents(part, *after, *most).await.map(|check: ReleaseCheck| (part, check))
        };
        // If the dependents of a success are refused, each is looked at on its own at its `wake_at`.
        let tried = try_each(succeeded, write).await;
        let (mut rest, mut checks) = (Vec::new(), Vec::new());
        for (part, check) in tried.answers {
            // They are in this place, so the next ones need no other.
            let more = |id| Dependents { after: Some(id), refusals: 0, ..dependents.of(part) };
            rest.extend(check.more_after.map(more));
            checks.push(check);
        }
        for (part, error) in tried.left {
            let parts = if error.is_moved() {
                dependents.by_shard(part)
            } else if error.is_out_of_time() {
                dependents.smaller(part)
            } else {
                Vec::new()
            };
            if parts.is_empty() {
                tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "could not check tasks that waited for a success; their next check finds them");
            }
            rest.extend(parts);
        }
        self.note(database, checks);
        rest
    }

    /// Looks at waiting tasks whose moment has come, and begins no part of them at or after `end`. Returns those that
    /// wait no longer, and the first error of those that it could not look at. A part that ran out of its time is
    /// halved, so that its tasks do not come together again for ever.
    pub async fn look(
        &self,
        database: &NodeDatabase<S>,
        ids: &[TaskId],
        end: Instant,
    ) -> (Vec<Released>, Option<Error>) {
        let mut parts: Vec<&[TaskId]> = ids.chunks(LOOKED_AT_ONCE).collect();
        let (mut released, mut failed, mut halved) = (Vec::new(), None, None);
        while clock::instant() < end
            && let Some(part) = parts.pop()
        {
            let (more, error) = self.release(database, part).await;
            released.extend(more);
            let Some(error) = error else { continue };
            if error.is_out_of_time() && part.len() > 1 {
                let (before, after) = part.split_at(part.len() / 2);
                parts.extend([after, before]);
                halved = halved.or(Some(error));
                continue;
            }
            let is_outage = error.fault() == Fault::Outage && !error.puts_rows_in_doubt();
            failed = failed.or(Some(error));
            if is_outage {
                break;
            }
        }
        (released, failed.or_else(|| halved.filter(|_| !parts.is_empty())))
    }

    /// Releases tasks, and returns them with an error of the others. A row whose change the database refuses is left
    /// alone for a while.
    async fn release(&self, database: &NodeDatabase<S>, ids: &[TaskId]) -> (Vec<Released>, Option<Error>) {
        let mut ids = ids.to_vec();
        let look = |part| database.sql.task_release(part, &[]);
        // A look at a task that no longer waits reads nothing, so it shows nothing.
        let released = |check: &ReleaseCheck| check.released.iter().map(|task| task.id).collect::<Vec<_>>();
        let (_, mut asked) = database.suspects.try_each(StoreOp::TaskRelease, &mut ids, |id| *id, look, released).await;
        database.set_aside(Kind::Release, asked.refused).await;
        (self.note(database, asked.answers), asked.left.pop().map(|(_, error)| error))
    }

    /// Notes released tasks where they come due, and those that another transaction holds. Returns the former.
    fn note(&self, database: &NodeDatabase<S>, checks: Vec<ReleaseCheck>) -> Vec<Released> {
        let (mut released, mut held) = (Vec::new(), Vec::new());
        for looked in checks {
            released.extend(looked.released);
            held.extend(looked.held);
        }
        if let Some(now) = database.sql.clock().at(clock::instant()) {
            self.nudger.written_all(held.into_iter().map(|id| (id, now.plus(HELD_AGAIN))));
        }
        self.nudger.written_all(released.iter().map(|task| (task.id, task.due_at)));
        for task in &released {
            tracing::debug!(task = %task.id, queue = %task.queue, due_at = %task.due_at, "task no longer waits");
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_successes_of_a_shard_that_has_moved_are_looked_for_elsewhere() {
        let of = |number| Succeeded { name: "q k".to_owned(), partition_key: None, shard: ShardId::new(number) };
        let succeeded = vec![of(1), of(2), of(1)];
        let all = Dependents { succeeded, after: None, most: DEPENDENTS_AT_ONCE, has_moved: false, refusals: 0 };
        let parts = all.by_shard(&all.succeeded);
        let seen = |part: &Dependents| (part.succeeded.len(), part.has_moved, part.refusals);
        assert_eq!(parts.iter().map(seen).collect::<Vec<_>>(), [(2, false, 0), (1, false, 0)], "either may be here");
        let again = parts[0].by_shard(&parts[0].succeeded);
        assert_eq!(again.iter().map(seen).collect::<Vec<_>>(), [(2, true, 1)]);
        let once_more = again[0].by_shard(&again[0].succeeded);
        assert_eq!(once_more.iter().map(seen).collect::<Vec<_>>(), [(2, true, 2)]);
    }
}
