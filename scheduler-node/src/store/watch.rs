//! Looks after the database as a whole: is it there, how far behind is it, who waits, and nudges across nodes.

use std::time::{Duration, Instant};

use common::ids::{QueueName, ShardId};
use sqlx::postgres::PgListener;

use super::{Database, Error, StoreOp};

const NUDGE_CHANNEL: &str = "duetime_nudge";

const ROOM_CHANNEL: &str = "duetime_room";

/// Names of queues in one notification: PostgreSQL carries 8,000 bytes, and a name has 128 at the most.
const QUEUES_TOLD: usize = 60;

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

    /// Tells the other nodes to read these shards now.
    pub async fn nudge(&self, shards: &[ShardId]) -> Result<(), Error> {
        let list = shards.iter().map(|shard| shard.number().to_string()).collect::<Vec<_>>().join(",");
        self.tell(NUDGE_CHANNEL, &list).await
    }

    /// Tells the other nodes that there may be room in these queues.
    pub async fn tell_room(&self, queues: &[QueueName]) -> Result<(), Error> {
        for some in queues.chunks(QUEUES_TOLD) {
            let list = some.iter().map(QueueName::as_str).collect::<Vec<_>>().join(",");
            self.tell(ROOM_CHANNEL, &list).await?;
        }
        Ok(())
    }

    async fn tell(&self, channel: &'static str, list: &str) -> Result<(), Error> {
        self.run(StoreOp::Nudge, |pool| async move {
            sqlx::query(include_str!("queries/nudge.sql")).bind(channel).bind(list).execute(&pool).await?;
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
        listener.listen_all([NUDGE_CHANNEL, ROOM_CHANNEL, INBOX_CHANNEL]).await?;
        Ok(Nudges { listener })
    }

    /// Keeps a message of ours that could not be read.
    pub async fn quarantine_add(
        &self,
        source: &'static str,
        reason: String,
        message_id: Option<String>,
        headers: serde_json::Value,
        body: Vec<u8>,
    ) -> Result<(), Error> {
        self.run(StoreOp::QuarantineAdd, |pool| async move {
            sqlx::query(include_str!("queries/quarantine_add.sql"))
                .bind(source)
                .bind(reason)
                .bind(message_id)
                .bind(headers)
                .bind(body)
                .execute(&pool)
                .await?;
            Ok(())
        })
        .await
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

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Shards(Vec<ShardId>),
    /// There may be room in these.
    Room(Vec<QueueName>),
    /// Something was submitted in SQL.
    Inbox,
    /// The connection was lost and is back; what was sent in between is gone.
    Gap,
}

impl Nudges {
    /// Waits for the next one. `try_recv`, because `recv` hides reconnects.
    pub async fn next(&mut self) -> Result<Heard, Lost> {
        Ok(match self.listener.try_recv().await? {
            Some(heard) if heard.channel() == INBOX_CHANNEL => Heard::Inbox,
            Some(heard) if heard.channel() == ROOM_CHANNEL => {
                Heard::Room(heard.payload().split(',').map(QueueName::new).collect())
            }
            Some(nudge) => Heard::Shards(
                nudge.payload().split(',').filter_map(|number| number.parse().ok().map(ShardId::new)).collect(),
            ),
            None => Heard::Gap,
        })
    }
}
