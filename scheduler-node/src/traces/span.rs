//! A hop in the terms of OpenTelemetry's conventions for messaging.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{
    ids::{Attempt, MessageId, QueueName, TaskId},
    task::{TaskState, TraceContext, trace::SpanId, verdict::FailureReason},
    time::UnixMicros,
};
use opentelemetry::{
    InstrumentationScope, KeyValue, TraceFlags, TraceId, Value,
    trace::{Link, SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::Hop;

/// The work of a hop.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// The task's queue. `None`: the hop concerns several tasks.
    pub queue: Option<&'a QueueName>,
    pub done: Done<'a>,
}

#[derive(Clone, Debug)]
pub enum Done<'a> {
    Submitted(Submitted),
    Batch(Batch),
    Published(Published<'a>),
    Settled(Settled),
}

/// A task was submitted.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub way: Way,
    /// The durable task, or the reason why there is none.
    pub outcome: Result<TaskId, String>,
}

/// The route of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Http,
    /// In a batch over HTTP.
    Batch,
    Amqp,
}

/// Tasks were submitted together.
#[derive(Clone, Debug)]
pub struct Batch {
    pub tasks: usize,
    /// The contexts of those tasks that are in traces of their own.
    pub links: Vec<TraceContext>,
}

/// An attempt was published.
#[derive(Clone, Debug)]
pub struct Published<'a> {
    pub message: MessageId,
    pub exchange: &'a str,
    /// The delay after the due instant.
    pub late_by: Duration,
    /// Whether a copy of it may have been published before.
    pub redelivered: bool,
    /// The reason why its arrival is unknown.
    pub error: Option<String>,
}

/// The state after a report on an attempt, or after its silence, was written.
#[derive(Clone, Debug)]
pub struct Settled {
    pub message: MessageId,
    /// Whether no report came before the deadline.
    pub silent: bool,
    /// The state of the task, if it is final.
    pub outcome: Option<TaskState>,
    /// The reason why the attempt failed.
    pub failed: Option<FailureReason>,
}

pub(super) fn of(hop: &Hop, step: Step<'_>, ended_at: UnixMicros, scope: InstrumentationScope) -> SpanData {
    let mut links = SpanLinks::default();
    let (word, span_kind, mut attributes, status) = match step.done {
        Done::Submitted(submitted) => submitted.described(),
        Done::Batch(batch) => {
            links.links = batch.links.into_iter().map(|of| Link::with_context(context(of))).collect();
            let count = Value::I64(i64::try_from(batch.tasks).unwrap_or(i64::MAX));
            ("submit", SpanKind::Server, vec![KeyValue::new("messaging.batch.message_count", count)], Status::Unset)
        }
        Done::Published(published) => published.described(),
        Done::Settled(settled) => settled.described(),
    };
    attributes.extend(step.queue.map(|queue| KeyValue::new("duetime.queue", queue.as_str().to_owned())));
    SpanData {
        span_context: context(hop.context),
        parent_span_id: hop.parent.map_or(opentelemetry::SpanId::INVALID, span_id),
        parent_span_is_remote: hop.parent.is_some(),
        span_kind,
        name: step.queue.map_or_else(|| "submit batch".into(), |queue| format!("{word} {queue}").into()),
        start_time: moment(hop.began_at),
        // After a clock was set back, a hop must not end before it began.
        end_time: moment(ended_at.max(hop.began_at)),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status,
        instrumentation_scope: scope,
    }
}

type Described = (&'static str, SpanKind, Vec<KeyValue>, Status);

impl Submitted {
    fn described(self) -> Described {
        let (kind, source) = match self.way {
            Way::Http => (SpanKind::Server, "http"),
            Way::Batch => (SpanKind::Internal, "http"),
            Way::Amqp => (SpanKind::Consumer, "amqp"),
        };
        let mut attributes = vec![KeyValue::new("duetime.source", source)];
        let status = match self.outcome {
            Ok(id) => {
                attributes.push(task(id));
                Status::Unset
            }
            Err(why) => Status::error(why),
        };
        ("submit", kind, attributes, status)
    }
}

impl Published<'_> {
    fn described(self) -> Described {
        let mut attributes = of_message(self.message, "publish", "send");
        // The default exchange has no name, and a destination that no name identifies is left out.
        attributes.extend(
            (!self.exchange.is_empty()).then(|| KeyValue::new("messaging.destination.name", self.exchange.to_owned())),
        );
        attributes.push(KeyValue::new("duetime.redelivered", self.redelivered));
        attributes.push(KeyValue::new("duetime.lateness_ms", self.late_by.as_secs_f64() * 1e3));
        let status = self.error.map_or(Status::Unset, Status::error);
        ("publish", SpanKind::Producer, attributes, status)
    }
}

impl Settled {
    fn described(self) -> Described {
        let mut attributes = of_message(self.message, "settle", "settle");
        attributes.extend(self.outcome.map(|state| KeyValue::new("duetime.outcome", state.text())));
        attributes.extend(self.failed.map(|reason| KeyValue::new("error.type", reason.text())));
        let kind = if self.silent { SpanKind::Internal } else { SpanKind::Consumer };
        let status = self.failed.map_or(Status::Unset, |reason| Status::error(reason.text()));
        ("settle", kind, attributes, status)
    }
}

fn of_message(message: MessageId, name: &'static str, kind: &'static str) -> Vec<KeyValue> {
    vec![
        KeyValue::new("messaging.system", "rabbitmq"),
        KeyValue::new("messaging.operation.name", name),
        KeyValue::new("messaging.operation.type", kind),
        KeyValue::new("messaging.message.id", message.to_string()),
        KeyValue::new("messaging.message.conversation_id", message.id.to_string()),
        task(message.id),
        attempt(message.attempt),
    ]
}

fn task(id: TaskId) -> KeyValue {
    KeyValue::new("duetime.task.id", id.to_string())
}

fn attempt(attempt: Attempt) -> KeyValue {
    KeyValue::new("duetime.attempt", Value::I64(attempt.number().into()))
}

fn context(of: TraceContext) -> SpanContext {
    let trace_id = TraceId::from_bytes(of.trace_id.0.to_be_bytes());
    SpanContext::new(trace_id, span_id(of.span_id), TraceFlags::SAMPLED, false, TraceState::default())
}

fn span_id(of: SpanId) -> opentelemetry::SpanId {
    opentelemetry::SpanId::from_bytes(of.0.to_be_bytes())
}

fn moment(of: UnixMicros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(of.micros()).unwrap_or(0))
}
