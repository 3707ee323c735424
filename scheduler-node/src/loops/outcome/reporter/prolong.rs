//! Has deadlines wait for reports that have come and cannot be written for now.
//!
//! The end that a report means may go into another partition of the archive than the one that a silent consumer's task
//! goes into, or a retry into none. So where a partition is locked or missing, the deadline could still be written, and
//! take a rejection for a success, or a success for a failure.

use std::collections::{BTreeMap, HashMap};

use common::ids::{Attempt, TaskId};
use tokio::sync::{mpsc, watch};

use super::{
    AttemptEvent, Reported, Reporter,
    incoming::ReadReport,
    line::{BATCH, is_closed},
    write::Writes,
};
use crate::{
    store::{Error, Patience, Statements, settle::StandingRow},
    working_set::database::NodeDatabase,
};

/// The time that a deadline gets. Each pass over such reports gives it once more when less than half is left. Two
/// passes over a held report begin some 150 s apart at the most: 40 s for 100 held ones, as long a pause, and 70 s for
/// a new batch that began in it. That is less than the half.
const PROLONGED_BY_MS: i64 = 600_000;

impl<S: Statements> Reporter<S> {
    /// Runs a `pass`, to its end. Once `met` says that it is delayed, the deadlines of reports that come meanwhile are
    /// prolonged, from the beginning if others `are_held` by what delays it: a pass may take a minute. These are
    /// `coming` then, [`BATCH`] of them at most.
    pub(super) async fn with_coming<T>(
        &self,
        pass: impl Future<Output = T>,
        (line, coming): (&mut mpsc::Receiver<ReadReport>, &mut Vec<ReadReport>),
        (are_held, met): (bool, &watch::Sender<bool>),
    ) -> T {
        let prolonging = async {
            if !are_held {
                drop(met.subscribe().wait_for(|is_met| *is_met).await);
            }
            let mut prolonged = 0;
            loop {
                self.prolong(&coming[prolonged..]).await;
                prolonged = coming.len();
                if prolonged >= BATCH || line.recv_many(coming, BATCH - prolonged).await == 0 {
                    break std::future::pending::<T>().await;
                }
            }
        };
        // The pass goes on while deadlines are prolonged. Its end may leave a statement of those undone: the next
        // delayed pass begins with all that has come.
        tokio::select! {
            biased;
            passed = pass => passed,
            never = prolonging => never,
        }
    }

    /// Applies some of the `reports` of a pass. The first time that one meets contention, or has no partition to go to,
    /// the deadlines of all of them are prolonged.
    pub(super) async fn apply_or_prolong(
        &self,
        some: Vec<(TaskId, AttemptEvent)>,
        (reports, met): (&[ReadReport], &watch::Sender<bool>),
    ) -> Result<Vec<(TaskId, Reported)>, Error> {
        let applied = self.apply_in_place(some, Patience::Short).await;
        let is_delayed = applied.as_ref().is_err_and(|error| error.is_contention() || error.lacks_partition());
        if is_delayed && !met.send_replace(true) {
            self.prolong(reports).await;
        }
        applied
    }

    /// Prolongs the deadlines of attempts about which there is something to write, each where its shard is. Those on
    /// closed shards are left out: nothing ends there, and a database refuses to read them and all others with them.
    /// After a failure the next pass does it.
    pub(super) async fn prolong(&self, reports: &[ReadReport]) {
        let map = self.databases.places().load();
        let open = reports.iter().filter(|report| !is_closed(&map, report));
        let (parts, _) = self.databases.divide(open, |report| report.id);
        for (index, part) in parts {
            let database = &self.databases[index];
            if let Err(error) = self.try_prolong(database, &part).await {
                tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "could not have deadlines wait for reports");
            }
        }
    }

    async fn try_prolong(&self, database: &NodeDatabase<S>, reports: &[&ReadReport]) -> Result<(), Error> {
        let ids: Vec<TaskId> = reports.iter().map(|report| report.id).collect();
        let rows = database.sql.task_standing(&ids).await?;
        let standing: HashMap<TaskId, StandingRow> = rows.into_iter().map(|row| (row.id, row)).collect();
        let mut writes = Writes::default();
        let attempt_of = |report: &&ReadReport| {
            let row = standing.get(&report.id)?;
            let counts = self.distrust(row, &report.event).is_none() && self.decide(row, &report.event, &mut writes);
            counts.then_some((row.id, row.attempt))
        };
        let attempts: BTreeMap<TaskId, Attempt> = reports.iter().filter_map(attempt_of).collect();
        let attempts: Vec<(TaskId, Attempt)> = attempts.into_iter().collect();
        if !attempts.is_empty() {
            database.sql.task_prolong(&attempts, PROLONGED_BY_MS).await?;
        }
        Ok(())
    }
}
