//! Decisions about many schedules, in one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use common::{
    ids::{ScheduleName, TaskId},
    schedule::FireDecision,
    time::UnixMicros,
};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use super::Revision;
use crate::store::{Database, Error, StoreOp, claim::interval, uuids};

/// A decision about a schedule, among others.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleTurn<'a> {
    pub name: &'a ScheduleName,
    /// As it was read.
    pub read: Revision,
    pub decision: &'a FireDecision,
    /// The ids of the tasks to make.
    pub ids: &'a [TaskId],
}

/// What became of a decision among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    Written,
    /// The schedule has changed since it was read.
    Overtaken,
    /// Another transaction holds the schedule, or it is gone.
    Held,
}

impl Database {
    /// Stores decisions about different schedules, as [`Self::schedule_turn`] does one, and returns what became of
    /// each. It waits for no transaction that holds a schedule.
    pub async fn schedule_turns(&self, turns: &[ScheduleTurn<'_>], hold: Duration) -> Result<Vec<TurnOutcome>, Error> {
        let names: Vec<&str> = turns.iter().map(|turn| turn.name.as_str()).collect();
        let revisions: Vec<i64> = turns.iter().map(|turn| turn.read.0).collect();
        let moments = |moment: fn(&FireDecision) -> Option<UnixMicros>| -> Vec<Option<DateTime<Utc>>> {
            turns.iter().map(|turn| moment(turn.decision).map(UnixMicros::to_utc)).collect()
        };
        let last_tasks: Vec<Option<Uuid>> = turns.iter().map(|turn| turn.ids.last().map(|id| id.uuid())).collect();
        let fires = (1_i64..).zip(turns).flat_map(|(place, turn)| {
            turn.decision.fires.iter().zip(turn.ids).map(move |(fire, id)| (place, fire, *id))
        });
        let (mut ids, mut times, mut buffered, mut places) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (place, fire, id) in fires {
            ids.push(id);
            times.push(fire.at.to_utc());
            buffered.push(fire.buffered);
            places.push(place);
        }
        let query = sqlx::query(statement!("schedule_turns"))
            .bind(names)
            .bind(revisions)
            .bind(moments(|decision| decision.state.next_at))
            .bind(moments(|decision| Some(decision.state.since)))
            .bind(moments(|decision| decision.state.paused_at))
            .bind(moments(|decision| decision.state.buffered_at))
            .bind(moments(|decision| decision.wake_at))
            .bind(last_tasks)
            .bind(moments(|decision| decision.fires.last().map(|fire| fire.at)))
            .bind(uuids(&ids))
            .bind(times)
            .bind(buffered)
            .bind(places)
            .bind(interval(hold));
        self.run(
            StoreOp::ScheduleTurn,
            |pool| async move { query.fetch_all(&pool).await?.iter().map(outcome).collect() },
        )
        .await
    }
}

fn outcome(row: &PgRow) -> Result<TurnOutcome, sqlx::Error> {
    Ok(match (row.try_get("turned")?, row.try_get("held")?) {
        (true, _) => TurnOutcome::Written,
        (false, true) => TurnOutcome::Held,
        (false, false) => TurnOutcome::Overtaken,
    })
}
