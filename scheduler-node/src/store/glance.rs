//! Reads in one statement what the loops of a node follow in a database, instead of one statement for each of them.

use std::time::{Duration, Instant};

use common::{delay::LowWater, time::UnixMicros};
use sqlx::Row;
use tokio::sync::watch;

use super::{Database, Error, StoreOp};

/// The age up to which a loop relies on a glance. It is half as long again as the interval of the glances: where they
/// are held up, each loop reads for itself, as often as it would without them.
const FRESH: Duration = Duration::from_millis(600);

/// Where glances begin in the tables that are emptied from their heads, in the order of the parameters of glance.sql.
pub(super) type Heads = [LowWater; 3];

/// The places in [`Heads`].
pub(super) const INBOX: usize = 0;
pub(super) const SCHEDULES: usize = 1;
pub(super) const FIRES: usize = 2;

/// What one glance at a database has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// When the statement was sent. All that was committed before is in the glance.
    pub asked: Instant,
    /// Rises with every change of a queue. Only the first database counts.
    pub queue_revision: i64,
    /// Rises with every token that is made or revoked. Only the first database counts.
    pub token_revision: i64,
    /// Rises with every change of the places that the database tells.
    pub map_revision: i64,
    /// Whether a move of a shard has not ended. Only the first database keeps them.
    pub has_moves: bool,
    /// When the first submission in SQL that waits was made.
    pub inbox_oldest: Option<UnixMicros>,
    /// When a schedule must be looked at. Only the first database keeps them.
    pub schedule_wake_at: Option<UnixMicros>,
    /// When a decided fire time without its task must be looked at.
    pub fire_wake_at: Option<UnixMicros>,
}

impl Database {
    /// Glances at the database. The glance is also a reading of its clock. It wakes the receivers of [`Self::glances`].
    pub async fn look(&self) -> Result<Glance, Error> {
        let asked = self.clock.ask(Instant::now());
        let from = self.heads.lock().map(|head| head.from(asked.sent));
        let read = self.run(StoreOp::Glance, |pool| async move {
            let [inbox, schedules, fires] = from.map(|from| from_or_head(from).to_utc());
            let look = sqlx::query(include_str!("queries/glance.sql")).bind(inbox).bind(schedules).bind(fires);
            let row = look.fetch_one(&pool).await?;
            let arrived = Instant::now();
            let glance = Glance {
                asked: asked.sent,
                queue_revision: row.try_get("queue_revision")?,
                token_revision: row.try_get("token_revision")?,
                map_revision: row.try_get("map_revision")?,
                has_moves: row.try_get("has_moves")?,
                inbox_oldest: super::optional_moment(&row, "inbox_oldest")?,
                schedule_wake_at: super::optional_moment(&row, "schedule_wake_at")?,
                fire_wake_at: super::optional_moment(&row, "fire_wake_at")?,
            };
            Ok((glance, super::moment(&row, "now")?, arrived))
        });
        let read = read.await;
        // All of them rest together, because each glance notes all of them.
        let is_from_heads = from[INBOX].is_none();
        if let Err(error) = &read
            && error.is_out_of_time()
            && is_from_heads
        {
            let failed = Instant::now();
            let now = self.clock.at(failed).unwrap_or_else(crate::clock::now);
            let took = failed.saturating_duration_since(asked.sent);
            self.heads.lock().iter_mut().for_each(|head| head.ran_out_of_time(now, took, failed));
        }
        let (glance, now, arrived) = read?;
        let took = arrived.saturating_duration_since(asked.sent);
        let oldest = [glance.inbox_oldest, glance.schedule_wake_at, glance.fire_wake_at];
        for (head, oldest) in self.heads.lock().iter_mut().zip(oldest) {
            match is_from_heads {
                true => head.note(oldest, now, took, arrived),
                false => head.note_from_mark(oldest, now),
            }
        }
        self.clock.observe(now, asked, arrived);
        self.glances.send_replace(Some(glance));
        Ok(glance)
    }

    /// The moment of a submission from which to read the inbox.
    pub(super) fn inbox_from(&self, now: Instant) -> UnixMicros {
        from_or_head(self.heads.lock()[INBOX].from(now))
    }

    /// Whether the last glance from the heads was quick, so that a look at the whole inbox likely is. Glances also rest
    /// after a quick one, so whether they rest tells nothing.
    pub fn is_inbox_head_quick(&self) -> bool {
        self.heads.lock()[INBOX].is_quick()
    }

    /// The `wake_at` from which to read schedules.
    pub(super) fn schedules_from(&self, now: Instant) -> UnixMicros {
        from_or_head(self.heads.lock()[SCHEDULES].from_beside(now))
    }

    /// The `wake_at` from which to read decided fire times.
    pub(super) fn fires_from(&self, now: Instant) -> UnixMicros {
        from_or_head(self.heads.lock()[FIRES].from_beside(now))
    }

    /// The last glance, unless it is too old to be relied on.
    pub fn glance(&self) -> Option<Glance> {
        self.glances.borrow().filter(|glance| glance.asked.elapsed() <= FRESH)
    }

    /// Changes with each glance.
    pub fn glances(&self) -> watch::Receiver<Option<Glance>> {
        self.glances.subscribe()
    }
}

/// No moment in a table is earlier than that of the head.
pub(super) fn from_or_head(from: Option<UnixMicros>) -> UnixMicros {
    from.unwrap_or(UnixMicros::FIRST)
}
