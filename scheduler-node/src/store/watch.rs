//! Looks after the database as a whole: is it there, how far behind is it, who waits, and nudges across nodes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, ShardId, TaskId},
    time::UnixMicros,
};
use sqlx::postgres::PgListener;

use super::{Database, Error, StoreOp};

const ROW_CHANNEL: &str = "duetime_row";

const SHARD_CHANNEL: &str = "duetime_shard";

const ROOM_CHANNEL: &str = "duetime_room";

/// PostgreSQL carries 8,000 bytes in one notification. A row takes 54: its id, and microseconds since 1970.
const ROWS_TOLD: usize = 140;

/// A number has 5 digits at the most.
const SHARDS_TOLD: usize = 1_000;

/// A queue's name has 128 characters at the most.
const QUEUES_TOLD: usize = 58;

/// As duetime.submit spells it.
const INBOX_CHANNEL: &str = "duetime_inbox";

/// A ping that takes longer than this says that the database is not there.
const PING_DEADLINE: Duration = Duration::from_secs(2);

impl Database {
    /// Whether the database answers; each answer is a reading of its clock too.
    pub async fn ping(&self) -> Result<(), Error> {
        let pinged = self.run(StoreOp::Ping, |pool| async move {
            let answer = async {
                let row = sqlx::query(include_str!("queries/ping.sql")).fetch_one(&pool).await?;
                Ok((super::moment(&row, "now")?, Instant::now()))
            };
            tokio::time::timeout(PING_DEADLINE, answer).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        });
        let (now, arrived) = pinged.await?;
        self.clock.observe(now, arrived);
        Ok(())
    }

    /// The queues that have tasks waiting for room.
    pub async fn ready_queues(&self) -> Result<Vec<QueueName>, Error> {
        self.run(StoreOp::ReadyQueues, |pool| async move {
            let rows = sqlx::query(include_str!("queries/ready_queues.sql")).fetch_all(&pool).await?;
            rows.iter().map(|row| super::queue(row, "queue")).collect()
        })
        .await
    }

    /// Tells the other nodes, in one statement.
    pub async fn tell(&self, nudge: &Nudge) -> Result<(), Error> {
        let rows = nudge.rows.iter().map(|(id, wake_at)| format!("{id} {}", wake_at.micros()));
        let shards = nudge.shards.iter().map(|shard| shard.number().to_string());
        let room = nudge.room.iter().map(|(shard, queue)| format!("{} {queue}", shard.number()));
        let (mut channels, mut payloads) = (Vec::new(), Vec::new());
        for (channel, told, most) in [
            (ROW_CHANNEL, rows.collect::<Vec<_>>(), ROWS_TOLD),
            (SHARD_CHANNEL, shards.collect(), SHARDS_TOLD),
            (ROOM_CHANNEL, room.collect(), QUEUES_TOLD),
        ] {
            for some in told.chunks(most) {
                channels.push(channel);
                payloads.push(some.join(","));
            }
        }
        self.run(StoreOp::Nudge, |pool| async move {
            sqlx::query(include_str!("queries/nudge.sql")).bind(channels).bind(payloads).execute(&pool).await?;
            Ok(())
        })
        .await
    }

    /// A connection of its own that hears the other nodes' nudges, and what is submitted in SQL.
    pub async fn nudges(&self) -> Result<Nudges, Lost> {
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(PING_DEADLINE)
            .connect_lazy_with(self.options.connection());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen_all([ROW_CHANNEL, SHARD_CHANNEL, ROOM_CHANNEL, INBOX_CHANNEL]).await?;
        Ok(Nudges { listener })
    }
}

/// Nudges as they come in. After a gap some may have been missed: everything is read again then.
#[derive(Debug)]
pub struct Nudges {
    listener: PgListener,
}

/// The connection for nudges is gone.
#[derive(Debug, thiserror::Error)]
#[error("the connection that hears nudges was lost")]
pub struct Lost(#[from] sqlx::Error);

/// What the other nodes are told. Of no weight: behind each nudge there is a pass that finds by itself what it tells of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nudge {
    /// Rows that were written, and when somebody has to look at them.
    pub rows: Vec<(TaskId, UnixMicros)>,
    /// Shards with more of those than are worth naming one by one.
    pub shards: BTreeSet<ShardId>,
    /// Queues in which a task on this shard has an outcome, so that there may be room for others of it there.
    pub room: BTreeSet<(ShardId, QueueName)>,
}

impl Nudge {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.shards.is_empty() && self.room.is_empty()
    }
}

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Rows(Vec<(TaskId, UnixMicros)>),
    Shards(Vec<ShardId>),
    Room(Vec<(ShardId, QueueName)>),
    /// Something was submitted in SQL.
    Inbox,
    /// The connection was lost and is back; what was sent in between is gone.
    Gap,
}

impl Nudges {
    /// Waits for the next one. `try_recv`, because `recv` hides reconnects.
    pub async fn next(&mut self) -> Result<Heard, Lost> {
        let Some(heard) = self.listener.try_recv().await? else { return Ok(Heard::Gap) };
        let told = heard.payload().split(',');
        let shard = |number: &str| number.parse().ok().map(ShardId::new);
        Ok(match heard.channel() {
            INBOX_CHANNEL => Heard::Inbox,
            ROW_CHANNEL => Heard::Rows(
                told.filter_map(|row| {
                    let (id, wake_at) = row.split_once(' ')?;
                    Some((id.parse().ok()?, UnixMicros::new(wake_at.parse().ok()?)))
                })
                .collect(),
            ),
            ROOM_CHANNEL => Heard::Room(
                told.filter_map(|room| {
                    let (number, queue) = room.split_once(' ')?;
                    Some((shard(number)?, QueueName::new(queue)))
                })
                .collect(),
            ),
            _ => Heard::Shards(told.filter_map(shard).collect()),
        })
    }
}
