//! Writes new tasks.

use std::{
    collections::BTreeSet,
    sync::LazyLock,
    time::{Duration, Instant},
};

use common::{
    ids::{Epoch, QueueName, ShardId},
    task::NewTask,
    time::UnixMicros,
};
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    Database, Error, StoreOp,
    claim::LOOK_AGAIN_AFTER,
    conflict::{row_exists, without},
    sparse, uniform,
};

/// The statement of a first sending, whose ids were made a moment ago. See [`super::conflict`].
pub(super) static SUBMIT_NEW: LazyLock<&'static str> =
    LazyLock::new(|| without("ON CONFLICT (id) DO NOTHING", statement!("task_submit")));

/// Whether a batch is sent for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    First,
    /// The commit of the previous sending is in doubt.
    Again,
}

/// The revisions of the queues that a node knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRevisions {
    /// The revision by which the tasks may be claimed.
    pub claims: i64,
    /// The revision by which the tasks were admitted and given their shards.
    pub routes: i64,
}

/// The result of writing a batch.
#[derive(Debug)]
pub struct InsertResult {
    /// The due time of tasks that were submitted to be due at once.
    pub asked_at: UnixMicros,
    /// The shards whose fence was held under the presented epoch. Their tasks are claimed, with attempt 1.
    pub held: BTreeSet<ShardId>,
    /// Queues with a newer policy than the presented revision. Their tasks are not claimed.
    pub turned: BTreeSet<QueueName>,
    /// Queues whose rules for submissions have changed since the revision of the routes. Their tasks are not written.
    pub rules_changed: BTreeSet<QueueName>,
}

/// The time within which a sending must be executed, or it does nothing. It is long enough for a statement that
/// waits for its turn, and short enough for a caller whose connection was cut.
pub const EXECUTED_WITHIN: Duration = Duration::from_secs(2);

/// The period in which a sending may be executed, on the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The end of the previous sending's window; `None`: this sending is the first.
    pub after: Option<UnixMicros>,
    pub until: UnixMicros,
}

impl Window {
    pub fn first(database: &Database) -> Self {
        Self { after: None, until: database.now().plus(EXECUTED_WITHIN) }
    }

    /// The window of the first sending to a place. `Again`: a sending to a former place has an unknown end. It writes
    /// nothing any more.
    pub fn in_place(database: &Database, sending: Sending) -> Self {
        Self { after: (sending == Sending::Again).then_some(UnixMicros::FIRST), ..Self::first(database) }
    }

    /// The window of the next sending, when the commit of this one is in doubt.
    pub fn next(self, database: &Database) -> Self {
        Self { after: Some(self.until), until: database.now().max(self.until).plus(EXECUTED_WITHIN) }
    }

    /// Whether the window has ended, by the latest time that the server's clock may show: a refusal for lateness is
    /// always seen as one.
    pub fn is_over(self, database: &Database) -> bool {
        database.clock.at_most(Instant::now()).is_none_or(|now| now > self.until)
    }

    /// The time until the window begins.
    pub fn wait(self, database: &Database) -> Duration {
        self.after.map_or(Duration::ZERO, |after| after.since(database.now()))
    }
}

impl Database {
    /// The database's time as this node estimates it: by the former server until the present one has answered, and
    /// before any answer by this node's own clock.
    fn now(&self) -> UnixMicros {
        let now = Instant::now();
        self.clock.at(now).or_else(|| self.clock.at_most(now)).unwrap_or_else(crate::clock::now)
    }

    /// Writes the whole batch with one insert. `Ok` means that every task is durable, except those of queues in
    /// [`InsertResult::rules_changed`]. `routed` is the revision of the queues by which the tasks were admitted and
    /// routed.
    pub async fn task_submit_within(
        &self,
        tasks: &[NewTask],
        sending: Sending,
        window: Window,
        routed: i64,
    ) -> Result<InsertResult, Error> {
        self.task_write(
            tasks,
            sending,
            window,
            &vec![None; tasks.len()],
            KnownRevisions { claims: i64::MAX, routes: routed },
        )
        .await
    }

    /// Writes a batch for the first time, and claims each task that has an entry in `epochs` if its fence is held
    /// under that epoch. Present an epoch only for tasks that are due at once.
    pub async fn task_submit_claimed(
        &self,
        tasks: &[NewTask],
        epochs: &[Option<Epoch>],
        known: KnownRevisions,
        window: Window,
    ) -> Result<InsertResult, Error> {
        self.task_write(tasks, Sending::First, window, epochs, known).await
    }

    async fn task_write(
        &self,
        tasks: &[NewTask],
        sending: Sending,
        window: Window,
        epochs: &[Option<Epoch>],
        known: KnownRevisions,
    ) -> Result<InsertResult, Error> {
        let query = |text| submit_query(text, tasks, sending, window, epochs, known);
        let first = query(if sending == Sending::First { *SUBMIT_NEW } else { statement!("task_submit") });
        let asked = self.clock.ask(Instant::now());
        let (now, arrived, written) = self
            .run(StoreOp::TaskSubmit, |pool| async move {
                let row: PgRow = match first.fetch_one(&pool).await {
                    Err(error) if row_exists(&error) => query(statement!("task_submit")).fetch_one(&pool).await?,
                    row => row?,
                };
                let queues = |column| -> Result<BTreeSet<QueueName>, sqlx::Error> {
                    Ok(row.try_get::<Vec<String>, _>(column)?.into_iter().map(QueueName::new).collect())
                };
                let written = InsertResult {
                    asked_at: super::moment(&row, "asked_at")?,
                    held: super::shards(&row, "held")?,
                    turned: queues("turned")?,
                    rules_changed: queues("rules_changed")?,
                };
                Ok((super::moment(&row, "now")?, Instant::now(), written))
            })
            .await?;
        self.clock.observe(now, asked, arrived);
        self.note_submitted(tasks, epochs, &written);
        Ok(written)
    }
}

pub(super) fn submit_query<'a>(
    text: &'static str,
    tasks: &'a [NewTask],
    sending: Sending,
    window: Window,
    epochs: &[Option<Epoch>],
    known: KnownRevisions,
) -> Query<'a, Postgres, PgArguments> {
    let mut columns = Columns::of(tasks).shortened();
    let envelopes = std::mem::take(&mut columns.envelopes);
    let epochs = sparse(epochs.iter().map(|epoch| epoch.map(Epoch::number)));
    columns
        .bound_to(text)
        .bind(sending == Sending::Again)
        .bind(epochs)
        .bind(super::claim::interval(LOOK_AGAIN_AFTER))
        .bind(envelopes)
        .bind(known.claims)
        .bind(window.after.map(UnixMicros::to_utc))
        .bind(window.until.to_utc())
        .bind(known.routes)
}

/// The columns of a batch: one array each, the form that `unnest` takes. An optional one is full or empty: see
/// [`super::sparse`].
pub(super) struct Columns<'a> {
    ids: Vec<uuid::Uuid>,
    shards: Vec<i32>,
    queues: Vec<&'a str>,
    due_at: Vec<chrono::DateTime<chrono::Utc>>,
    priorities: Vec<i16>,
    payloads: Vec<&'a [u8]>,
    content_types: Vec<&'a str>,
    headers: Vec<Option<String>>,
    partition_keys: Vec<Option<&'a str>>,
    max_attempts: Vec<Option<i32>>,
    timeouts_ms: Vec<Option<i64>>,
    retries: Vec<Option<String>>,
    expires_at: Vec<Option<chrono::DateTime<chrono::Utc>>>,
    keys: Vec<Option<&'a str>>,
    versions: Vec<i64>,
    now: Vec<bool>,
    envelopes: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(tasks: &'a [NewTask]) -> Self {
        let json = |value: serde_json::Result<String>| value.expect("maps of strings, policies and envelopes are JSON");
        Self {
            ids: tasks.iter().map(|task| task.id.uuid()).collect(),
            shards: tasks.iter().map(|task| task.id.shard().number().into()).collect(),
            queues: tasks.iter().map(|task| task.queue.as_str()).collect(),
            due_at: tasks.iter().map(|task| task.due_at.to_utc()).collect(),
            priorities: tasks.iter().map(|task| task.priority).collect(),
            payloads: tasks.iter().map(|task| task.content.payload.as_slice()).collect(),
            content_types: tasks.iter().map(|task| task.content.content_type.as_str()).collect(),
            headers: sparse(tasks.iter().map(|task| {
                (!task.content.headers.is_empty()).then(|| json(serde_json::to_string(&task.content.headers)))
            })),
            partition_keys: sparse(tasks.iter().map(|task| task.partition_key.as_deref())),
            max_attempts: sparse(tasks.iter().map(|task| task.max_attempts)),
            timeouts_ms: sparse(tasks.iter().map(|task| task.timeout_ms)),
            retries: sparse(
                tasks.iter().map(|task| task.retry.as_ref().map(|retry| json(serde_json::to_string(retry)))),
            ),
            expires_at: sparse(tasks.iter().map(|task| task.expires_at.map(UnixMicros::to_utc))),
            keys: sparse(tasks.iter().map(|task| task.keyed.as_ref().map(|keyed| keyed.key.as_str()))),
            versions: tasks.iter().map(|task| task.keyed.as_ref().map_or(0, |keyed| keyed.version)).collect(),
            now: tasks.iter().map(|task| task.due_now).collect(),
            envelopes: sparse(
                tasks.iter().map(|task| task.envelope.as_ref().map(|envelope| json(serde_json::to_string(envelope)))),
            ),
        }
    }

    /// The columns for `task_submit.sql`, which takes one value for all rows: see [`super::uniform`].
    fn shortened(mut self) -> Self {
        // The statement reads no due time of a task that is due at once.
        if self.now.iter().all(|now| *now) {
            self.due_at.truncate(1);
        }
        Self {
            queues: uniform(self.queues),
            due_at: uniform(self.due_at),
            priorities: uniform(self.priorities),
            content_types: uniform(self.content_types),
            versions: uniform(self.versions),
            now: uniform(self.now),
            ..self
        }
    }

    /// Binds the columns as the first 16 parameters of a statement.
    pub(super) fn bound_to(self, statement: &'static str) -> Query<'a, Postgres, PgArguments> {
        sqlx::query(statement)
            .bind(self.ids)
            .bind(self.shards)
            .bind(self.queues)
            .bind(self.due_at)
            .bind(self.priorities)
            .bind(self.payloads)
            .bind(self.content_types)
            .bind(self.headers)
            .bind(self.partition_keys)
            .bind(self.max_attempts)
            .bind(self.timeouts_ms)
            .bind(self.retries)
            .bind(self.expires_at)
            .bind(self.keys)
            .bind(self.versions)
            .bind(self.now)
    }
}
