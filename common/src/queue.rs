//! A queue: a named kind of task with its policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Bound,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    field::FieldError,
    ids::QueueName,
    limit::{MAX_BYTES, MAX_COUNT, MAX_PER_SECOND, PendingLimits},
    priority::LEVELS,
    retry::RetryPolicy,
};

/// The longest name: 1 to 128 of `A-Z a-z 0-9 . _ -`.
pub(crate) const MAX_NAME_CHARS: usize = 128;
/// The largest budget of attempts, for a task and for a queue.
pub(crate) const MAX_ATTEMPTS: i32 = 1_000;
/// The longest timeout: one year.
pub(crate) const MAX_TIMEOUT_MS: i64 = 31_536_000_000;
/// The longest retention: a year. The archive has a partition for each day, and every look-up of a finished task
/// probes all of them.
const MAX_KEEP_MS: i64 = 31_622_400_000;
/// The highest limit of running tasks. They are counted before each start.
const MAX_RUNNING: i64 = 10_000;
/// The lowest and the highest rate, in tasks a second: about one a day, and more than one shard hands out.
const MIN_RATE: f64 = 0.000_01;
const MAX_RATE: f64 = 100_000.0;
/// The highest weight of one priority. A weight of 0 would leave its tasks waiting for ever.
const MAX_WEIGHT: u32 = 1_000;
/// The prefix of Duetime's own queues and exchanges.
const OWN_PREFIX: &str = "duetime.";
/// Prefixes that a queue's name may not have: Duetime's own at the broker, and the one that AMQP reserves.
const RESERVED_PREFIXES: [&str; 2] = [OWN_PREFIX, "amq."];
/// AMQP's limit for the names of exchanges and routing keys.
const MAX_AMQP_NAME_BYTES: usize = 255;

/// When a delivered task finishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settle {
    /// The broker's confirm finishes it.
    Confirm,
    /// The task succeeds unless a consumer rejects it before the deadline.
    #[default]
    Reject,
    /// The consumer reports; silence past the deadline is a failed attempt.
    Result,
}

impl Settle {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 3] = [Self::Confirm, Self::Reject, Self::Result];

    /// Whether the task succeeds with the broker's confirm.
    pub(crate) const fn finishes_on_confirm(self) -> bool {
        matches!(self, Self::Confirm)
    }

    /// Whether the outcome is the consumer's report, so that silence is a failure.
    pub const fn needs_report(self) -> bool {
        matches!(self, Self::Result)
    }

    /// Whether a rejection fails the attempt. A queue that settles by confirms has no retries.
    pub(crate) const fn heeds_rejection(self) -> bool {
        !self.finishes_on_confirm()
    }
}

/// Which shards the tasks of a queue live on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    #[default]
    Spread,
    /// All tasks on one shard.
    Single,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spread => "spread",
            Self::Single => "single",
        })
    }
}

/// The shape of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Body and headers as submitted.
    #[default]
    Raw,
    /// The call of a Celery task.
    Celery,
    /// A CloudEvent in structured mode.
    #[serde(rename = "cloudevents")]
    CloudEvents,
}

/// What happens to a message that RabbitMQ returns because no queue is bound for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unroutable {
    /// Duetime publishes it again, with growing pauses, until a binding takes it.
    #[default]
    Wait,
    /// The task is cancelled and counted.
    Drop,
    /// The task becomes dead with the reason `unroutable`, and can be retried by hand.
    SetAside,
}

/// Whether a report must bring back the receipt that its delivery carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptPolicy {
    #[default]
    Optional,
    /// A report or a rejection without a genuine receipt is quarantined.
    Required,
}

/// How a queue treats its tasks. A stored field that is absent takes its default, so that a policy of an older
/// version can always be read; requests are checked more strictly.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePolicy {
    pub settle: Settle,
    pub max_attempts: i32,
    pub retry: RetryPolicy,
    /// The time from the confirm, or from the last heartbeat, to the deadline.
    pub timeout_ms: i64,
    pub placement: Placement,
    /// The length limit of the RabbitMQ queue, in messages.
    pub max_length: i64,
    /// An exchange other than Duetime's own. With one, Duetime declares nothing.
    pub exchange: Option<String>,
    /// The routing key; the queue's name by default.
    pub routing_key: Option<String>,
    /// The rule for returned messages; it applies to an `exchange` of the queue's own.
    pub unroutable: Unroutable,
    /// Duetime binds and uses an existing RabbitMQ queue of this name that it did not declare.
    pub use_existing: bool,
    pub receipt: ReceiptPolicy,
    pub dedup_window_ms: i64,
    pub keep_succeeded_ms: i64,
    pub keep_dead_ms: i64,
    pub failure_alert_threshold: Option<i64>,
    /// The share of each priority while tasks wait for room; priorities beyond the last weight use the last weight.
    /// The default draws mostly the highest priority and sometimes the lowest ([`crate::priority`]).
    pub priority_weights: Option<Vec<u32>>,
    /// The most tasks that are started and have no outcome yet.
    pub max_running: Option<i64>,
    /// The most tasks started in a second. A queue that is spread divides it among its shards.
    pub rate_per_second: Option<f64>,
    /// Runs tasks with the same partition key one after the other, by due time; a failed task is retried before the
    /// next one starts.
    pub ordered: bool,
    /// Lowers the priority by one with each retry.
    pub retry_priority_drop: bool,
    pub format: Format,
    /// The most unfinished tasks; submissions beyond it are refused.
    pub max_pending: Option<i64>,
    /// The most bytes of payloads and headers of these tasks, as stored.
    pub max_pending_bytes: Option<i64>,
    /// The most schedules that make tasks of the queue.
    pub max_schedules: Option<i64>,
    /// The most submissions a second on each node, over HTTP and AMQP together.
    pub max_submits_per_second: Option<u32>,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            settle: Settle::default(),
            max_attempts: 25,
            retry: RetryPolicy::default(),
            timeout_ms: 1_800_000,
            placement: Placement::default(),
            max_length: 10_000,
            exchange: None,
            routing_key: None,
            unroutable: Unroutable::default(),
            use_existing: false,
            receipt: ReceiptPolicy::default(),
            dedup_window_ms: 86_400_000,
            keep_succeeded_ms: 86_400_000,
            keep_dead_ms: 1_209_600_000,
            failure_alert_threshold: None,
            priority_weights: None,
            max_running: None,
            rate_per_second: None,
            ordered: false,
            retry_priority_drop: false,
            format: Format::default(),
            max_pending: None,
            max_pending_bytes: None,
            max_schedules: None,
            max_submits_per_second: None,
        }
    }
}

impl QueuePolicy {
    /// Refuses values out of range and values that do not go together; the error names the field.
    pub fn validate(&self) -> Result<(), FieldError> {
        self.validate_gates()?;
        self.validate_limits()?;
        FieldError::within("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)?;
        self.retry.validate()?;
        FieldError::within("timeout_ms", self.timeout_ms, 1, MAX_TIMEOUT_MS)?;
        FieldError::within("max_length", self.max_length, 1, 1_000_000_000)?;
        FieldError::within("dedup_window_ms", self.dedup_window_ms, 0, MAX_KEEP_MS)?;
        FieldError::within("keep_succeeded_ms", self.keep_succeeded_ms, 0, MAX_KEEP_MS)?;
        FieldError::within("keep_dead_ms", self.keep_dead_ms, 0, MAX_KEEP_MS)?;
        if let Some(threshold) = self.failure_alert_threshold {
            FieldError::within("failure_alert_threshold", threshold, 1, i64::MAX)?;
        }
        amqp_name("exchange", self.exchange.as_deref())?;
        if let Some(exchange) = self.exchange.as_deref().filter(|name| name.starts_with(OWN_PREFIX)) {
            let detail = format!("`exchange` = `{exchange}`: names that begin with `{OWN_PREFIX}` are Duetime's own");
            return Err(FieldError::new("exchange", detail));
        }
        amqp_name("routing_key", self.routing_key.as_deref())
    }

    /// Checks fields that need one another.
    fn validate_gates(&self) -> Result<(), FieldError> {
        if let Some(weights) = &self.priority_weights {
            if !(1..=LEVELS).contains(&weights.len()) {
                let detail = format!("`priority_weights` must have 1 to {LEVELS} weights, not {}", weights.len());
                return Err(FieldError::new("priority_weights", detail));
            }
            for weight in weights {
                FieldError::within("priority_weights", *weight, 1, MAX_WEIGHT)?;
            }
        }
        if self.ordered {
            needs("ordered", self.settle.needs_report(), "`settle` = `result`")?;
        }
        if let Some(most) = self.max_running {
            FieldError::within("max_running", most, 1, MAX_RUNNING)?;
            needs("max_running", self.settle.needs_report(), "`settle` = `result`")?;
            needs("max_running", self.placement == Placement::Single, "`placement` = `single`")?;
        }
        if self.settle.needs_report() && self.format == Format::Celery {
            let detail = "a Celery worker does not report results: with `format` = `celery`, set `settle` to `reject` \
                          or `confirm`";
            return Err(FieldError::new("settle", detail));
        }
        if self.unroutable != Unroutable::Wait {
            // A missing queue of Duetime's own is declared again, so nothing stays unroutable.
            needs("unroutable", self.exchange.is_some(), "an `exchange` of the queue's own")?;
        }
        match self.rate_per_second {
            Some(rate) => FieldError::within("rate_per_second", rate, MIN_RATE, MAX_RATE),
            None => Ok(()),
        }
    }

    fn validate_limits(&self) -> Result<(), FieldError> {
        for (field, value, first, last) in [
            ("max_pending", self.max_pending, 0, MAX_COUNT),
            ("max_pending_bytes", self.max_pending_bytes, 0, MAX_BYTES),
            ("max_schedules", self.max_schedules, 0, MAX_COUNT),
            ("max_submits_per_second", self.max_submits_per_second.map(i64::from), 1, MAX_PER_SECOND),
        ] {
            if let Some(value) = value {
                FieldError::within(field, value, first, last)?;
            }
        }
        Ok(())
    }

    /// The rule for returned messages. Duetime declares a missing queue of its own again, so those wait.
    pub const fn unroutable(&self) -> Unroutable {
        if self.exchange.is_some() { self.unroutable } else { Unroutable::Wait }
    }

    /// The limits of pending tasks and of their bytes.
    pub const fn pending(&self) -> PendingLimits {
        PendingLimits { tasks: self.max_pending, bytes: self.max_pending_bytes }
    }

    /// Whether a limit of the queue can refuse a submission.
    pub(crate) const fn limits_submissions(&self) -> bool {
        !self.pending().is_none() || self.max_submits_per_second.is_some()
    }

    /// Whether due tasks always become `ready` first, and start only as the queue's order, limit and rate allow.
    pub fn is_gated(&self) -> bool {
        self.ordered || self.max_running.is_some() || self.rate_per_second.is_some()
    }
}

fn note(set: &mut BTreeSet<QueueName>, name: &QueueName, is_in: bool) {
    if is_in {
        set.insert(name.clone());
    } else {
        set.remove(name);
    }
}

fn needs(field: &'static str, is_so: bool, what: &str) -> Result<(), FieldError> {
    if is_so { Ok(()) } else { Err(FieldError::new(field, format!("`{field}` needs {what}; set that too"))) }
}

fn amqp_name(field: &'static str, name: Option<&str>) -> Result<(), FieldError> {
    match name {
        Some(name) if name.is_empty() || name.len() > MAX_AMQP_NAME_BYTES || name.contains('\0') => {
            Err(FieldError::new(field, format!("`{field}` must be 1 to {MAX_AMQP_NAME_BYTES} bytes without a NUL")))
        }
        _ => Ok(()),
    }
}

/// Checks that `name` can name a queue.
pub fn check_name(name: &str) -> Result<(), FieldError> {
    if !is_name(name) {
        return Err(FieldError::new("queue", "a queue's name must be 1 to 128 of the characters A-Z a-z 0-9 . _ -"));
    }
    if RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return Err(FieldError::new("queue", "a queue's name must not begin with `duetime.` or `amq.`"));
    }
    Ok(())
}

/// Whether a text has the form of a queue's name.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=MAX_NAME_CHARS).contains(&text.len()) && text.bytes().all(allowed)
}

/// A queue's current definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    pub name: QueueName,
    pub policy: QueuePolicy,
    /// Due tasks wait as `ready`.
    pub paused: bool,
    /// The fields of the stored policy that this version cannot read. Such a queue counts as paused.
    pub unreadable: Vec<String>,
}

impl Queue {
    /// A queue without settings of its own.
    pub fn with_defaults(name: QueueName) -> Self {
        Self { name, policy: QueuePolicy::default(), paused: false, unreadable: Vec::new() }
    }

    /// Whether tasks become `ready` instead of being claimed at their due time.
    pub(crate) fn is_held(&self) -> bool {
        self.paused || self.policy.is_gated()
    }
}

/// Every queue as of one moment. A book is never changed in place, only replaced as a whole.
#[derive(Clone, Debug)]
pub struct QueueBook {
    /// The revision of the last change; every change of a queue raises it.
    revision: i64,
    queues: BTreeMap<QueueName, Arc<Queue>>,
    /// The queues whose tasks are not claimed at their due time. Every claim reads this set.
    held: BTreeSet<QueueName>,
    /// The queues that limit submissions; most clusters have none.
    limited: BTreeSet<QueueName>,
    /// The retention of successes, for queues that differ from the default. Every cancel reads it.
    retention_overrides: Arc<[(QueueName, i64)]>,
}

/// The book of a node that has read nothing yet.
impl Default for QueueBook {
    fn default() -> Self {
        Self {
            revision: -1,
            queues: BTreeMap::new(),
            held: BTreeSet::new(),
            limited: BTreeSet::new(),
            retention_overrides: Arc::default(),
        }
    }
}

/// One change of a queue.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueChange {
    Stored(Arc<Queue>),
    Deleted(QueueName),
}

impl QueueBook {
    /// Whether the book has been read. Until then, a queue that the book lacks may have any policy.
    pub fn is_read(&self) -> bool {
        self.revision >= 0
    }

    pub fn new(revision: i64, queues: impl IntoIterator<Item = Queue>) -> Self {
        Self { revision, ..Self::default() }
            .with(revision, queues.into_iter().map(|queue| QueueChange::Stored(Arc::new(queue))))
    }

    /// Returns the book after these changes, applied in order.
    #[must_use]
    pub fn with(mut self, revision: i64, changes: impl IntoIterator<Item = QueueChange>) -> Self {
        self.revision = revision;
        for change in changes {
            match change {
                QueueChange::Stored(queue) => {
                    note(&mut self.held, &queue.name, queue.is_held());
                    note(&mut self.limited, &queue.name, queue.policy.limits_submissions());
                    self.queues.insert(queue.name.clone(), queue);
                }
                QueueChange::Deleted(name) => {
                    self.held.remove(&name);
                    self.limited.remove(&name);
                    self.queues.remove(&name);
                }
            }
        }
        let default_ms = QueuePolicy::default().keep_succeeded_ms;
        let others = self.iter().filter(|queue| queue.policy.keep_succeeded_ms != default_ms);
        self.retention_overrides = others.map(|queue| (queue.name.clone(), queue.policy.keep_succeeded_ms)).collect();
        self
    }

    /// The queues that differ from `before`, and the names of the queues that only `before` has.
    pub fn since(&self, before: &Self) -> (Vec<Arc<Queue>>, Vec<QueueName>) {
        let is_new =
            |queue: &&Arc<Queue>| before.find(&queue.name).is_none_or(|old| !Arc::ptr_eq(old, queue) && old != *queue);
        let gone = before.queues.keys().filter(|name| !self.queues.contains_key(*name));
        (self.iter().filter(is_new).cloned().collect(), gone.cloned().collect())
    }

    /// The queues that are paused, and those whose tasks start as their order, limit or rate allows.
    pub fn held(&self) -> &BTreeSet<QueueName> {
        &self.held
    }

    /// The queues that limit submissions.
    pub fn limited(&self) -> &BTreeSet<QueueName> {
        &self.limited
    }

    /// The retention of successes, for queues that differ from the default. Computed once for each book.
    pub fn retention_overrides(&self) -> &Arc<[(QueueName, i64)]> {
        &self.retention_overrides
    }

    /// The queues after that name, in the byte order of names.
    pub fn after(&self, name: &str) -> impl Iterator<Item = &Arc<Queue>> {
        let from = (Bound::Excluded(QueueName::new(name)), Bound::Unbounded);
        self.queues.range(from).map(|(_, queue)| queue)
    }

    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The queue of that name, with the default policy when the book has none.
    pub fn get(&self, name: &QueueName) -> Arc<Queue> {
        self.find(name).cloned().unwrap_or_else(|| Arc::new(Queue::with_defaults(name.clone())))
    }

    /// The queue of that name, if the book has one.
    pub fn find(&self, name: &QueueName) -> Option<&Arc<Queue>> {
        self.queues.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.values()
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

mod salvage;

#[cfg(test)]
mod tests;
