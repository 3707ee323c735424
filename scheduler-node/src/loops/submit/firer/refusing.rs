//! The databases that answer and take no tasks: as while one is full or read-only, or lacks the standby that it needs.
//!
//! Takes pass over their fire times, as over those whose database is away. Otherwise each node would take all of them
//! on again and again, 100 at a time and without a pause. No glance shows that a database takes tasks again. So each
//! node tries a few of its fire times every second. Once a database writes one of them, or refuses one alone, takes no
//! longer pass over it. So it is after 10 s without a failure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{delay::rest, ids::DatabaseIndex};

use super::takes::LONGEST_REST;

/// The interval between two tries of a database. Once it takes tasks, its fire times wait about so long at the most.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The most fire times of one try. More than one: a single one may be held by another transaction.
pub(super) const TRIED_AT_ONCE: i64 = 10;

/// A database that has refused nothing for this long is taken from as before. This is longer than the hold of fire
/// times, during which a try may find none.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Refusing(BTreeMap<DatabaseIndex, Refusal>);

#[derive(Debug)]
struct Refusal {
    last_at: Instant,
    try_at: Instant,
}

impl Refusing {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, database: DatabaseIndex) -> bool {
        self.0.contains_key(&database)
    }

    /// Notes whether a database took any of the tasks that were sent to it.
    pub(super) fn note(&mut self, database: DatabaseIndex, takes_tasks: bool, now: Instant) {
        if takes_tasks {
            self.0.remove(&database);
        } else {
            let first = Refusal { last_at: now, try_at: now + TRY_EVERY };
            self.0.entry(database).or_insert(first).last_at = now;
        }
    }

    /// The databases to try at `now`.
    pub(super) fn due_for_a_try(&mut self, now: Instant) -> Vec<DatabaseIndex> {
        self.0.retain(|_, refusal| now < refusal.last_at + FORGOTTEN_AFTER);
        self.0.iter().filter(|(_, refusal)| refusal.try_at <= now).map(|(database, _)| *database).collect()
    }

    /// Notes a try that began at most `took` before `now`. It too may read all fire times of a database that is away.
    pub(super) fn tried(&mut self, database: DatabaseIndex, took: Duration, now: Instant) {
        if let Some(refusal) = self.0.get_mut(&database) {
            refusal.try_at = now + rest(took).clamp(TRY_EVERY, LONGEST_REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);

    #[test]
    fn a_database_that_takes_no_tasks_is_tried_each_second_until_it_takes_one_or_refuses_none_any_more() {
        let (mut refusing, now) = (Refusing::default(), Instant::now());
        let [one, other] = [0, 1].map(DatabaseIndex::new);
        for at in [now, now + TRY_EVERY / 2] {
            refusing.note(one, false, at);
        }
        refusing.note(other, true, now);
        assert!(refusing.has(one) && !refusing.has(other));
        assert!(refusing.due_for_a_try(now + TRY_EVERY - QUICK).is_empty());
        assert_eq!(refusing.due_for_a_try(now + TRY_EVERY), [one], "a further refusal does not put it off");
        refusing.tried(one, QUICK, now + TRY_EVERY);
        assert!(refusing.due_for_a_try(now + TRY_EVERY).is_empty());
        assert_eq!(refusing.due_for_a_try(now + 2 * TRY_EVERY), [one]);
        refusing.tried(one, Duration::from_secs(60), now);
        assert!(refusing.due_for_a_try(now + LONGEST_REST - QUICK).is_empty());
        assert_eq!(refusing.due_for_a_try(now + LONGEST_REST), [one]);
        refusing.note(one, true, now);
        assert!(refusing.is_empty());

        refusing.note(one, false, now);
        refusing.due_for_a_try(now + FORGOTTEN_AFTER - QUICK);
        assert!(refusing.has(one));
        assert!(refusing.due_for_a_try(now + FORGOTTEN_AFTER).is_empty() && refusing.is_empty());
    }
}
