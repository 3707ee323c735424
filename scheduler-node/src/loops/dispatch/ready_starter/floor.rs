//! Finds the due time at which a look at a queue begins, where an old transaction makes looks slow.

use common::{
    delay::{Floor, LookFrom, SLOW_LOOK},
    ids::{QueueName, ShardId},
    time::UnixMicros,
};

use super::ReadyStarter;
use crate::{
    clock,
    store::{Error, Statements, lane::LaneCounts},
};

impl<S: Statements> ReadyStarter<S> {
    /// Counts a queue's tasks from its floor on. Returns the floor with them.
    pub(super) async fn count(
        &self,
        queue: &QueueName,
        shards: &[ShardId],
        most: usize,
        limit: Option<i64>,
    ) -> Result<(LaneCounts, Option<UnixMicros>), Error> {
        let from = self.floor(queue).await?;
        let began = clock::instant();
        let counts = self.claims.database.sql.lane_read(queue, shards, most, limit, from).await;
        let ended = clock::instant();
        let ran_out = counts.as_ref().is_err_and(Error::is_out_of_time);
        if from.is_none() && (ran_out || ended.saturating_duration_since(began) >= SLOW_LOOK) {
            self.claims.database.ready_queues.floors.change(queue, |floor| floor.was_slow(ended));
        }
        Ok((counts?, from))
    }

    /// The due time from which on a look at the queue finds all its ready tasks. `None`: everywhere.
    async fn floor(&self, queue: &QueueName) -> Result<Option<UnixMicros>, Error> {
        let (database, began) = (&self.claims.database, clock::instant());
        let floors = &database.ready_queues.floors;
        let from = match floors.begin(queue, began) {
            LookFrom::Everywhere => return Ok(None),
            LookFrom::Head => None,
            LookFrom::Floor(at) => Some(at),
        };
        let read = database.sql.ready_oldest(queue, from).await;
        let ended = clock::instant();
        let took = ended.saturating_duration_since(began);
        match read {
            Ok(oldest) if from.is_some() => Ok(floors.change(queue, |floor| floor.raise(oldest))),
            Ok(oldest) => Ok(floors.change(queue, |floor| floor.read_head(oldest, took, ended))),
            Err(error) if error.is_out_of_time() => {
                let now = self.claims.now();
                Ok(floors.change(queue, |floor| floor.ran_out_of_time(now, took, ended)))
            }
            Err(error) => {
                if from.is_none() {
                    // It may have been asked for because tasks came whose due times are unknown.
                    floors.change(queue, Floor::doubt);
                }
                Err(error)
            }
        }
    }
}
