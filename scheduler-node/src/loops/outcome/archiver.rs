//! Looks after finished and expired tasks: lapses tasks that expired before their claim, and turns the archive's
//! daily partitions.
//!
//! If it stops, expired tasks keep their old state, although no claim takes them. After some days finished tasks
//! find no partition to go to.

mod searches;

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{ShardId, TaskId},
    time::UnixMicros,
};
use tokio_util::sync::CancellationToken;

use self::searches::{EXPIRED_PER_PASS, Searches};
use crate::{
    clock,
    config::Audit,
    loops::upkeep::queue_reader::Books,
    metrics::Metrics,
    store::{Error, StoreOp, change::Keep, partition::DEFAULT_KEEP_DAYS, quarantine, settle::Expired},
    supervise::at_work,
    working_set::{
        database::NodeDatabase,
        retry::Refused,
        set_aside::{Kept, Kind, why},
    },
};

/// The interval between two searches for expired tasks.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// The interval between two checks of the partitions, which are made days ahead.
const TURN_EVERY: Duration = Duration::from_secs(600);

/// The pause after a pass that could not make or drop a partition. While such a try waits, which is 5 s at most, other
/// nodes can make no partition.
const TURN_AGAIN: Duration = Duration::from_secs(60);

/// The failure in a row that is logged. The first may come from another node that turns the same partitions.
const LOGGED_FAILURE: u32 = 2;

/// The interval between two deletions of old rows. Unreadable messages may come quickly, so they are deleted often.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// Rows of the audit or the quarantine deleted in one statement, which takes some 20 ms, or more with large messages.
const FORGOTTEN: i64 = 2_000;

/// The most such statements in a row, because expired tasks wait meanwhile. The next pass deletes the rest, so each
/// node deletes more than it can note.
const FORGET_BATCHES: usize = 50;

/// The most expired tasks that a search leaves out because the database refuses to archive them: the search compares
/// each task that it finds with all of them. Beyond it, the first of them are tried again.
const ASIDE_MOST: usize = 1_000;

/// The same while all of them have one moment. The others of that moment wait for a later round.
const ASIDE_OF_ONE_MOMENT: usize = 10_000;

/// The most refused tasks that are remembered as kept in the quarantine. Beyond it all are forgotten, and some are kept
/// twice.
const KEPT_MOST: usize = 200_000;

const DAY_MS: i64 = 86_400_000;

/// The days between a database's clock and the node's that are logged. Around midnight, clocks that agree are one
/// apart.
const CLOCKS_APART_DAYS: u64 = 2;

/// What the archiver remembers of the partitions' turns for the log.
#[derive(Debug, Default)]
struct Turns {
    /// The failures in a row.
    failures: u32,
    /// Whether the clocks are days apart.
    are_clocks_apart: bool,
}

/// What the archiver remembers of expired tasks that the database refuses to archive.
#[derive(Debug, Default)]
struct RefusedTasks {
    /// Those that searches leave out, the latest last.
    aside: Vec<TaskId>,
    /// Those that are in the quarantine.
    kept: HashSet<TaskId>,
    /// The expiry from which the next search looks at least, behind a page that had refused ones. So a search reaches
    /// the tasks behind them, however many they are. `None`: it looks at those before them too.
    behind: Option<UnixMicros>,
}

#[derive(Debug)]
pub struct Archiver {
    pub database: NodeDatabase,
    pub books: Books,
    pub metrics: Arc<Metrics>,
    /// The settings of the audit; only for the first database, which keeps it.
    pub audit: Option<Audit>,
}

impl Archiver {
    pub async fn run(self, stop: CancellationToken) {
        let mut next: Option<(Instant, BTreeSet<u64>, Option<i64>)> = None;
        let (mut turns, mut refused, mut searches) = (Turns::default(), RefusedTasks::default(), Searches::default());
        let mut forget_at = Instant::now();
        loop {
            let (keep_days, today) = (self.keep_days(), self.today());
            // A queue that keeps its tasks for another time turns the partitions at once: the last pass may have broken
            // off before its days. So does a clock that was set to another day.
            if next.as_ref().is_none_or(|(at, days, day)| {
                Instant::now() >= *at || !keep_days.is_subset(days) || (today.is_some() && *day != today)
            }) && let Some(pause) = self.turn(&keep_days, &mut turns).await
            {
                next = Some((Instant::now() + pause, keep_days, today));
            }
            if Instant::now() >= forget_at && self.forget(&stop).await {
                forget_at = Instant::now() + FORGET_EVERY;
            }
            if let Err(error) = self.expire(&mut refused, &mut searches, &stop).await {
                tracing::debug!(database = %self.database.name(), error = &error as &dyn std::error::Error, "could not archive expired tasks; retrying");
            }
            tokio::select! {
                () = tokio::time::sleep(EXPIRE_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The day on the database's clock, counted from 1970.
    fn today(&self) -> Option<i64> {
        let now = self.database.sql.clock().at(clock::instant())?;
        Some(now.millis().div_euclid(DAY_MS))
    }

    /// The days from the end of a task to its drop, of all queues.
    fn keep_days(&self) -> BTreeSet<u64> {
        let book = self.books.load();
        let kept_ms = book.iter().flat_map(|queue| [queue.policy.keep_dead_ms, queue.policy.keep_succeeded_ms]);
        kept_ms.filter_map(|kept_ms| u64::try_from(kept_ms / DAY_MS + 1).ok()).chain([DEFAULT_KEEP_DAYS]).collect()
    }

    /// Makes and drops partitions. Every node does so, and skips what another node has done already. Returns the pause
    /// before the next time; `None`: the database did not answer.
    async fn turn(&self, keep_days: &BTreeSet<u64>, turns: &mut Turns) -> Option<Duration> {
        let _work = at_work();
        let database = self.database.name();
        let turned = match self.database.sql.partitions_turn(keep_days, clock::now()).await {
            Ok(turned) => turned,
            Err(error) => {
                tracing::debug!(%database, error = &error as &dyn std::error::Error, "could not create or drop archive partitions; retrying");
                return None;
            }
        };
        if let Err(error) = self.database.sql.partitions_spare().await {
            tracing::debug!(%database, error = &error as &dyn std::error::Error, "could not set the statistics targets of busy tables; retrying");
        }
        if turned.made + turned.dropped > 0 {
            tracing::info!(%database, made = turned.made, dropped = turned.dropped, "archive partitions created and dropped");
        }
        let was_apart =
            std::mem::replace(&mut turns.are_clocks_apart, turned.ahead_days.unsigned_abs() >= CLOCKS_APART_DAYS);
        if turns.are_clocks_apart && !was_apart {
            tracing::warn!(%database, ahead_days = turned.ahead_days, "the clocks of the database and of this node are days apart; finished tasks are dropped once both say that their time is over");
        }
        let Some((partition, error)) = turned.failed else {
            if std::mem::take(&mut turns.failures) >= LOGGED_FAILURE {
                tracing::info!(%database, "archive partitions can be created and dropped again");
            }
            return Some(TURN_EVERY);
        };
        turns.failures += 1;
        if turns.failures == LOGGED_FAILURE {
            tracing::warn!(%database, partition, error = &error as &dyn std::error::Error, "could not create or drop an archive partition; retrying every minute. The likely cause is an open transaction that has read `duetime.archive`");
        }
        Some(TURN_AGAIN)
    }

    /// Deletes old quarantined messages, which every database has, and of the first database old audit notes and
    /// tokens that were revoked as long ago. Returns whether the next call has time; otherwise it deletes the rest.
    async fn forget(&self, stop: &CancellationToken) -> bool {
        let database = &self.database.sql;
        let messages = || database.quarantine_forget(quarantine::KEEP, quarantine::KEEP_ROWS, FORGOTTEN);
        let is_done = forget_all("quarantine", stop, messages).await;
        let Some(audit) = self.audit else { return is_done };
        let keep = Duration::from_secs(u64::from(audit.keep_days) * 86_400);
        let deeds = || async move {
            let (deeds, _) =
                tokio::try_join!(database.audit_forget(keep, FORGOTTEN), database.token_forget(keep, FORGOTTEN))?;
            Ok::<_, Error>(deeds)
        };
        forget_all("audit", stop, deeds).await && is_done
    }

    /// Archives expired tasks a page at a time, until none is left or `stop`: a stop waits for the page under way only.
    async fn expire(
        &self,
        refused: &mut RefusedTasks,
        searches: &mut Searches,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let database = &self.database.sql;
        let shards = self.database.owned_shards.claimable_shards();
        if shards.is_empty() {
            return Ok(());
        }
        let work = at_work();
        loop {
            work.beat();
            let keep = Keep::of(&self.books.load());
            let search = searches.begin(&shards, clock::instant());
            let from = search.from.max(refused.behind);
            let expired = database.task_expire(&shards, from, EXPIRED_PER_PASS, &keep, &refused.aside).await;
            let now = clock::instant();
            // A search behind refused tasks says nothing about those before them.
            if refused.behind.is_none()
                && let Some(database_now) = database.clock().at(now)
            {
                searches.end(&search, &expired, database_now, now);
            }
            let expired = match expired {
                Err(error) if error.may_blame_a_row() || error.lacks_partition() => {
                    self.expire_apart(&shards, from, &keep, refused).await?
                }
                expired => {
                    let expired = expired?;
                    if !is_page(expired.len()) {
                        refused.behind = None;
                    }
                    expired
                }
            };
            for task in &expired {
                self.metrics.finished(&task.queue, "expired", 1);
            }
            if stop.is_cancelled() || !is_page(expired.len()) {
                return Ok(());
            }
        }
    }

    /// Archives the others when the database refuses one expired task, or has no partition for it. The task stays in
    /// place, and no claim takes it. The next search looks behind this page, if it was full and no outage, lock or move
    /// has left a part of it. What seems a bug may leave some untried: they have their turn in the next round.
    async fn expire_apart(
        &self,
        shards: &[ShardId],
        from: Option<UnixMicros>,
        keep: &Keep,
        refused: &mut RefusedTasks,
    ) -> Result<Vec<Expired>, Error> {
        let database = &self.database.sql;
        refused.behind = None;
        let page = database.task_expired(shards, from, EXPIRED_PER_PASS, &refused.aside).await?;
        let last = page.last().map(|(_, expires_at)| *expires_at).filter(|_| is_page(page.len()));
        let mut ids: Vec<TaskId> = page.into_iter().map(|(id, _)| id).collect();
        let expire_part = |part| database.task_expire_these(shards, from, part, keep);
        let ids_of = |expired: &Vec<Expired>| expired.iter().map(|task| task.id).collect::<Vec<_>>();
        let suspects = &self.database.suspects;
        let (_, mut tried) = suspects.try_each(StoreOp::TaskExpire, &mut ids, |id| *id, expire_part, ids_of).await;
        for Refused { item: id, error } in tried.refused {
            let set_aside = &self.database.set_aside;
            if !refused.kept.contains(id) && set_aside.keep(database, Kind::Expiry, Kept::task(*id), &why(&error)).await
            {
                refused.keep(*id);
            }
            refused.aside.push(*id);
        }
        // A whole page of one moment ends where it began: the next one is found by what is left out.
        let is_of_one_moment = last.is_some() && from == last;
        let most = if is_of_one_moment { ASIDE_OF_ONE_MOMENT } else { ASIDE_MOST };
        let is_crowd = is_of_one_moment && refused.aside.len() >= most;
        refused.aside.drain(..refused.aside.len().saturating_sub(most));
        if tried.left.iter().all(|(_, error)| error.may_concern_some_rows()) {
            refused.behind = last.map(|last| if is_crowd { last.plus(Duration::from_micros(1)) } else { last });
        }
        match tried.left.pop() {
            Some((_, error)) if tried.answers.is_empty() => Err(error),
            _ => Ok(tried.answers.into_iter().flatten().collect()),
        }
    }
}

impl RefusedTasks {
    /// Notes a task that is in the quarantine.
    fn keep(&mut self, id: TaskId) {
        if self.kept.len() >= KEPT_MOST {
            self.kept.clear();
        }
        self.kept.insert(id);
    }
}

/// Whether a search that found so many tasks may have left others.
fn is_page(found: usize) -> bool {
    i64::try_from(found).is_ok_and(|found| found >= EXPIRED_PER_PASS)
}

/// Repeats a deletion until it finds fewer rows than it may delete, or fails. Returns `false` if it may find more.
async fn forget_all<F>(rows: &'static str, stop: &CancellationToken, forget: impl Fn() -> F) -> bool
where
    F: Future<Output = Result<i64, Error>>,
{
    let work = at_work();
    for _ in 0..FORGET_BATCHES {
        work.beat();
        match forget().await {
            Ok(FORGOTTEN) if !stop.is_cancelled() => {}
            Ok(_) => return true,
            Err(error) => {
                tracing::debug!(rows, error = &error as &dyn std::error::Error, "could not delete old rows; retrying");
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests;
