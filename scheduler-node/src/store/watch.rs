//! Watches a database as a whole: whether it answers and which queues wait for room.
//! Also carries nudges between nodes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use common::{
    ids::{Incarnation, QueueName, ShardId, TaskId},
    time::UnixMicros,
};
use sqlx::postgres::PgListener;
use tokio_util::sync::CancellationToken;

use super::{Database, Error, StoreOp, presence};

const ROW_CHANNEL: &str = "duetime_row";

const SHARD_CHANNEL: &str = "duetime_shard";

const ROOM_CHANNEL: &str = "duetime_room";

/// The most rows of one notification. PostgreSQL carries 8,000 bytes in each, and a row takes 54: its
/// id, and microseconds since 1970.
const ROWS_TOLD: usize = 140;

/// The most shards of one notification. A shard's number has at most 5 digits.
const SHARDS_TOLD: usize = 1_000;

/// The most queues of one notification. A queue's name has at most 128 characters.
const QUEUES_TOLD: usize = 58;

/// The channel on which `duetime.submit` notifies nodes.
const INBOX_CHANNEL: &str = "duetime_inbox";

/// The longest wait for the answer to a ping. After it the database counts as unreachable.
const PING_DEADLINE: Duration = Duration::from_secs(2);

/// The silence after which the connection for nudges asks whether its server is there. A server that has vanished
/// sends nothing, not even the end of the connection.
const SILENCE: Duration = Duration::from_secs(10);

impl Database {
    /// Checks that the database answers. Each answer is also a reading of its clock.
    pub async fn ping(&self) -> Result<(), Error> {
        let asked = self.clock.ask(Instant::now());
        let pinged = self.run(StoreOp::Ping, |pool| async move {
            let answer = async {
                let row = sqlx::query(include_str!("queries/ping.sql")).fetch_one(&pool).await?;
                Ok((super::moment(&row, "now")?, Instant::now()))
            };
            tokio::time::timeout(PING_DEADLINE, answer).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        });
        let (now, arrived) = pinged.await?;
        self.clock.observe(now, asked, arrived);
        Ok(())
    }

    /// Lists the queues that have tasks waiting for room.
    pub async fn ready_queues(&self) -> Result<Vec<QueueName>, Error> {
        self.run(StoreOp::ReadyQueues, |pool| async move {
            let rows = sqlx::query(include_str!("queries/ready_queues.sql")).fetch_all(&pool).await?;
            rows.iter().map(|row| super::queue(row, "queue")).collect()
        })
        .await
    }

    /// Sends a nudge to the other nodes, in one statement.
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

    /// Opens a connection that receives the other nodes' nudges and the notifications of submissions in SQL. It holds
    /// the presence lock of `present`, if given.
    pub async fn nudges(&self, present: Option<Incarnation>) -> Result<Nudges, ListenerLost> {
        let pools = self.trusted_pools().await?;
        let pool = self.writer.listener_pool(pools.server, pools.ended());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen_all([ROW_CHANNEL, SHARD_CHANNEL, ROOM_CHANNEL, INBOX_CHANNEL]).await?;
        let presence = present.map(presence::key);
        let mut nudges = Nudges { listener, presence, ended: pools.ended().clone() };
        nudges.hold_presence().await?;
        Ok(nudges)
    }
}

/// Receives nudges. Some may be missed in a gap; the node then reads everything again.
#[derive(Debug)]
pub struct Nudges {
    listener: PgListener,
    /// The key of the presence lock that the connection holds.
    presence: Option<i64>,
    /// Ends the wait on a server that is not the writer any more: it may be silent for ever.
    ended: CancellationToken,
}

/// The connection for nudges was lost.
#[derive(Debug, thiserror::Error)]
#[error("the connection that receives nudges was lost")]
pub struct ListenerLost(#[from] sqlx::Error);

/// A message to the other nodes. Its loss does no harm: behind each nudge, a periodic pass
/// finds the same work by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nudge {
    /// Rows that were written, and the times at which they wake.
    pub rows: Vec<(TaskId, UnixMicros)>,
    /// Shards with more such rows than are worth naming one by one.
    pub shards: BTreeSet<ShardId>,
    /// Queues in which a task of this shard has got an outcome, so that others of the queue may have room there.
    pub room: BTreeSet<(ShardId, QueueName)>,
}

impl Nudge {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.shards.is_empty() && self.room.is_empty()
    }
}

/// A notification that this node received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    Rows(Vec<(TaskId, UnixMicros)>),
    Shards(Vec<ShardId>),
    Room(Vec<(ShardId, QueueName)>),
    /// A task was submitted in SQL.
    Inbox,
    /// The connection was lost and is back. Notifications sent in between are lost.
    Gap,
}

impl Nudges {
    /// Waits for the next notification. It uses `try_recv`, because `recv` hides reconnects.
    pub async fn next(&mut self) -> Result<Notification, ListenerLost> {
        let heard = loop {
            tokio::select! {
                heard = tokio::time::timeout(SILENCE, self.listener.try_recv()) => match heard {
                    Ok(heard) => break heard?,
                    Err(_) => self.ping().await?,
                },
                () = self.ended.cancelled() => return Err(ListenerLost(sqlx::Error::PoolClosed)),
            }
        };
        let Some(heard) = heard else {
            self.hold_presence().await?;
            return Ok(Notification::Gap);
        };
        let told = heard.payload().split(',');
        let shard = |number: &str| number.parse().ok().map(ShardId::new);
        Ok(match heard.channel() {
            INBOX_CHANNEL => Notification::Inbox,
            ROW_CHANNEL => Notification::Rows(
                told.filter_map(|row| {
                    let (id, wake_at) = row.split_once(' ')?;
                    Some((id.parse().ok()?, UnixMicros::new(wake_at.parse().ok()?)))
                })
                .collect(),
            ),
            ROOM_CHANNEL => Notification::Room(
                told.filter_map(|room| {
                    let (number, queue) = room.split_once(' ')?;
                    Some((shard(number)?, QueueName::new(queue)))
                })
                .collect(),
            ),
            _ => Notification::Shards(told.filter_map(shard).collect()),
        })
    }

    /// A lock ends with its session, so each new connection takes it again.
    async fn ping(&mut self) -> Result<(), ListenerLost> {
        let asked = sqlx::query(include_str!("queries/ping.sql")).execute(&mut self.listener);
        tokio::time::timeout(PING_DEADLINE, asked).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        Ok(())
    }

    async fn hold_presence(&mut self) -> Result<(), ListenerLost> {
        if let Some(key) = self.presence {
            sqlx::query(include_str!("queries/presence_hold.sql")).bind(key).execute(&mut self.listener).await?;
        }
        Ok(())
    }
}
