//! The gate to the broker: claims tasks, and rescues those whose publish has no known outcome. [`super::lane`]
//! claims tasks that waited for room.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, Epoch, QueueName, ShardId, TaskId},
    task::{Content, Delivery, Envelope},
    time::UnixMicros,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow, types::PgInterval},
    query::Query,
    types::Json,
};

use super::{Database, Error, StoreOp, preload::Key};

/// The time after which a claimed row without a recorded outcome is examined again. It is longer than the broker's
/// confirm deadline, so an owner that still waits is never overtaken by its own rescue.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(45);

/// How long past its look-again time a takeover still finds a claimed row. The lease of the former owner ends well
/// before that time, so a minute leaves room for a slow takeover. Older rows are read with all that is overdue.
pub const TAKEOVER_LOOK_BACK: Duration = Duration::from_secs(60);

/// The answer to a claim.
#[derive(Debug)]
pub struct Claimed {
    /// The statement had not run before this instant. The age of the claim counts from here, because the answer may
    /// have waited: for a node that was stopped, or on the network.
    pub sent_at: Instant,
    /// The database's time at its answer.
    pub now: UnixMicros,
    /// Messages to publish at their due times.
    pub deliveries: Vec<Delivery>,
    /// Tasks that are `ready` now, because their lanes are closed.
    pub held_back: Vec<HeldBack>,
    /// Tasks that were not taken and still wake at the times of their rows. Another transaction holds them, they
    /// were moved, or their queue's policy has changed.
    pub passed: Vec<Key>,
    /// Whether fewer fences were held than presented: another node owns at least one of the shards.
    pub refused: bool,
    /// Whether a queue has a newer policy than the presented revision.
    pub turned: bool,
}

/// A task that became `ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    pub id: TaskId,
    pub queue: QueueName,
    pub due_at: UnixMicros,
}

impl Claimed {
    /// The tasks whose rows the statement has written.
    pub fn written(&self) -> Vec<TaskId> {
        let taken = self.deliveries.iter().map(|delivery| delivery.id);
        taken.chain(self.held_back.iter().map(|held| held.id)).collect()
    }
}

impl Database {
    /// Claims those of `ids` that are due by now plus `ahead`. Those of a `closed` queue become `ready` instead.
    /// `fences` holds exactly the shards of `ids`, with the epochs held. `known` is the revision of the queues from
    /// which the caller found `closed`. The claim touches no task of a queue whose policy has changed since.
    pub async fn task_claim(
        &self,
        ids: &[TaskId],
        fences: &BTreeMap<ShardId, Epoch>,
        ahead: Duration,
        closed: &BTreeSet<QueueName>,
        known: i64,
    ) -> Result<Claimed, Error> {
        self.claimed(StoreOp::TaskClaim, fences, claim_query(ids, fences, ahead, closed, known)).await
    }

    /// Takes those of `ids` that still have no known outcome, to publish them again in place.
    pub async fn task_rescue(&self, ids: &[TaskId], fences: &BTreeMap<ShardId, Epoch>) -> Result<Claimed, Error> {
        let (ids, shards, epochs) = presented(ids, fences);
        let rescue =
            sqlx::query(statement!("task_rescue")).bind(ids).bind(shards).bind(epochs).bind(interval(LOOK_AGAIN_AFTER));
        self.claimed(StoreOp::TaskRescue, fences, rescue).await
    }

    /// Lists the tasks that the previous owner left claimed in newly acquired shards, at
    /// most `most_per_shard` of each. Leaves out those that woke longer ago than [`TAKEOVER_LOOK_BACK`].
    pub async fn task_takeover(
        &self,
        fences: &BTreeMap<ShardId, Epoch>,
        most_per_shard: i64,
    ) -> Result<Vec<TaskId>, Error> {
        let (shards, epochs) = pairs(fences);
        let takeover = sqlx::query(statement!("task_takeover"))
            .bind(shards)
            .bind(epochs)
            .bind(most_per_shard)
            .bind(interval(LOOK_AGAIN_AFTER))
            .bind(interval(TAKEOVER_LOOK_BACK));
        self.returned_ids(StoreOp::TaskTakeover, takeover).await
    }

    async fn claimed(
        &self,
        op: StoreOp,
        fences: &BTreeMap<ShardId, Epoch>,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Claimed, Error> {
        self.claimed_with(op, fences, query, |_| Ok(())).await.map(|(claimed, ())| claimed)
    }

    /// Runs a statement that claims. `more` reads additional columns of its first row.
    pub(super) async fn claimed_with<T>(
        &self,
        op: StoreOp,
        fences: &BTreeMap<ShardId, Epoch>,
        query: Query<'_, Postgres, PgArguments>,
        more: impl FnOnce(&PgRow) -> Result<T, sqlx::Error>,
    ) -> Result<(Claimed, T), Error> {
        let asked = self.clock.ask(Instant::now());
        let (rows, sent_at, arrived) = self
            .run(op, |pool| async move {
                // The wait for a free connection is no part of the claim's age.
                let mut connection = pool.acquire().await?;
                let sent_at = Instant::now();
                let rows = query.fetch_all(&mut *connection).await?;
                connection.give_back();
                Ok((rows, sent_at, Instant::now()))
            })
            .await?;
        let claimed = read(&rows, fences.len(), sent_at).map_err(|source| self.unreadable(op, source))?;
        self.clock.observe(claimed.now, asked, arrived);
        self.note_claimed(op, &claimed.deliveries, fences, claimed.now);
        let more = rows.first().map_or(Err(sqlx::Error::RowNotFound), more);
        Ok((claimed, more.map_err(|source| self.unreadable(op, source))?))
    }
}

pub(super) fn claim_query<'q>(
    ids: &[TaskId],
    fences: &BTreeMap<ShardId, Epoch>,
    ahead: Duration,
    closed: &'q BTreeSet<QueueName>,
    known: i64,
) -> Query<'q, Postgres, PgArguments> {
    let closed: Vec<&str> = closed.iter().map(QueueName::as_str).collect();
    let (ids, shards, epochs) = presented(ids, fences);
    sqlx::query(statement!("task_claim"))
        .bind(ids)
        .bind(shards)
        .bind(epochs)
        .bind(interval(ahead))
        .bind(interval(LOOK_AGAIN_AFTER))
        .bind(closed)
        .bind(known)
}

pub(super) fn pairs(fences: &BTreeMap<ShardId, Epoch>) -> (Vec<i32>, Vec<i64>) {
    fences.iter().map(|(shard, epoch)| (i32::from(shard.number()), epoch.number())).unzip()
}

/// Pairs each id with its shard and the epoch held for it. An id whose shard is not held is left out.
fn presented(ids: &[TaskId], fences: &BTreeMap<ShardId, Epoch>) -> (Vec<uuid::Uuid>, Vec<i32>, Vec<i64>) {
    let mut presented = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
    for id in ids {
        if let Some(epoch) = fences.get(&id.shard()) {
            presented.0.push(id.uuid());
            presented.1.push(i32::from(id.shard().number()));
            presented.2.push(epoch.number());
        }
    }
    presented
}

pub(super) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

fn read(rows: &[PgRow], presented: usize, sent_at: Instant) -> Result<Claimed, sqlx::Error> {
    // Of the answer to a claim or a rescue, one row says what holds for the whole; of the answer to a pick, each does.
    let says = |row: &&PgRow| super::optional_moment(row, "now").is_ok_and(|now| now.is_some());
    let whole = rows.iter().rfind(says).ok_or(sqlx::Error::RowNotFound)?;
    let fences: i64 = whole.try_get("fences")?;
    let mut claimed = Claimed {
        sent_at,
        now: super::moment(whole, "now")?,
        deliveries: Vec::with_capacity(rows.len()),
        held_back: Vec::new(),
        passed: Vec::new(),
        refused: usize::try_from(fences).unwrap_or(0) < presented,
        turned: whole.try_get("turned")?,
    };
    for row in rows {
        match row.try_get::<Option<&str>, _>("fate")? {
            None => {}
            Some("taken") => {
                let before = claimed.deliveries.last().map(|delivery| &delivery.queue);
                let delivery = delivery(row, before)?;
                claimed.deliveries.push(delivery);
            }
            Some("held") => claimed.held_back.push(HeldBack {
                id: super::task_id(row, "id")?,
                queue: super::queue(row, "queue")?,
                due_at: super::moment(row, "due_at")?,
            }),
            Some("passed") => claimed.passed.push(Key::read(row)?),
            Some(other) => return Err(super::unexpected("fate", other)),
        }
    }
    Ok(claimed)
}

/// `before`: the queue of the delivery before. Most have the same one, and share its name.
fn delivery(row: &PgRow, before: Option<&QueueName>) -> Result<Delivery, sqlx::Error> {
    let queue: &str = row.try_get("queue")?;
    let queue = before.filter(|before| before.as_str() == queue).cloned().unwrap_or_else(|| QueueName::new(queue));
    let headers: Option<Json<BTreeMap<String, String>>> = row.try_get("headers")?;
    let envelope: Option<Json<Box<Envelope>>> = row.try_get("envelope")?;
    Ok(Delivery {
        id: super::task_id(row, "id")?,
        attempt: Attempt::new(row.try_get("attempt")?),
        attempts_base: Attempt::new(row.try_get("attempts_base")?),
        queue,
        due_at: super::moment(row, "due_at")?,
        content: Content {
            payload: row.try_get("payload")?,
            content_type: row.try_get("content_type")?,
            headers: headers.map(|headers| headers.0).unwrap_or_default(),
        },
        priority: row.try_get("priority")?,
        key: row.try_get("key")?,
        partition_key: row.try_get("partition_key")?,
        version: row.try_get("version")?,
        max_attempts: row.try_get("max_attempts")?,
        timeout_ms: row.try_get("timeout_ms")?,
        redelivered: row.try_get::<i32, _>("redeliveries")? > 0,
        envelope: envelope.map(|envelope| envelope.0),
    })
}
