//! Speaks to an OpenTelemetry collector: one trace for each task, from the submission over every attempt to its result.
//!
//! A hop is timed here and recorded when it is over; [`exporter`] sends what was recorded, in batches. Between its hops a task carries its
//! context itself, so that a trace is as long-lived as the task and knows no node. Where nothing is exported there is one look at an
//! `Option` for each hop, and where a task is not sampled, one look into its headers: neither allocates.

mod exporter;
mod span;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use common::{
    ids::NodeId,
    task::{
        Delivery, TraceContext,
        trace::{SpanId, TraceId},
    },
    time::UnixMicros,
    wire::{
        ValidTask,
        amqp::{HEADER_TRACEPARENT, HEADER_TRACESTATE, MessageId},
    },
};
use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::trace::SpanData;
use prometheus::{IntCounter, Registry};
use tokio::sync::mpsc;
use tracing::field::{DisplayValue, display};

pub use self::{
    exporter::{Error, Exporter},
    span::{Batch, Done, Published, Settled, Step, Submitted, Way},
};
use crate::{clock, config::Telemetry};

/// Spans that wait to be exported, about 1 KiB each. What finds no room is dropped and counted: nobody waits for a collector.
const WAITING: usize = 4_096;

/// Records the hops of tasks; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    /// Of the tasks that come without a trace, how many begin one: 0 to 1.
    ratio: f64,
    spans: mpsc::Sender<SpanData>,
    scope: InstrumentationScope,
    metrics: TraceMetrics,
}

/// A hop that has begun, of a trace that is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    pub context: TraceContext,
    /// `None`: the trace begins here.
    parent: Option<SpanId>,
    began_at: UnixMicros,
}

impl Hop {
    fn below(parent: TraceContext, context: TraceContext) -> Self {
        Self { context, parent: Some(parent.span_id), began_at: clock::now() }
    }

    /// A hop beside this one, for what did not lead on.
    pub fn apart(self) -> Self {
        Self { context: self.context.at(fresh()), ..self }
    }

    fn root() -> Self {
        // Never 0, which names no trace.
        let trace_id = TraceId(rand::random::<u128>().max(1));
        Self { context: TraceContext::sampled(trace_id, fresh()), parent: None, began_at: clock::now() }
    }
}

/// The trace and the hop for a log line; none of a task whose trace is not recorded.
pub fn ids(of: Option<TraceContext>) -> (Option<DisplayValue<TraceId>>, Option<DisplayValue<SpanId>>) {
    (of.map(|of| display(of.trace_id)), of.map(|of| display(of.span_id)))
}

fn fresh() -> SpanId {
    SpanId(rand::random::<u64>().max(1))
}

#[derive(Clone, Debug)]
struct TraceMetrics {
    exported: IntCounter,
    dropped: IntCounter,
}

impl TraceMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            exported: IntCounter::new("duetime_spans_exported_total", "spans the collector has taken")?,
            dropped: IntCounter::new(
                "duetime_spans_dropped_total",
                "spans lost because the collector did not take them, or not fast enough",
            )?,
        };
        registry.register(Box::new(metrics.exported.clone()))?;
        registry.register(Box::new(metrics.dropped.clone()))?;
        Ok(metrics)
    }
}

impl Traces {
    /// The handle, and what sends the spans on, which must run for any to arrive. `None`: nothing is exported.
    pub fn new(telemetry: &Telemetry, me: &NodeId, registry: &Registry) -> Result<(Self, Option<Exporter>), Error> {
        let metrics = TraceMetrics::register(registry)?;
        if telemetry.otlp_endpoint.is_none() {
            return Ok((Self::default(), None));
        }
        let (sender, spans) = mpsc::channel(WAITING);
        let exporter = Exporter::new(telemetry, me, spans, metrics.clone())?;
        let scope = InstrumentationScope::builder("duetime").with_version(env!("CARGO_PKG_VERSION")).build();
        let recorder = Recorder { ratio: telemetry.trace_ratio, spans: sender, scope, metrics };
        Ok((Self(Some(Arc::new(recorder))), Some(exporter)))
    }

    /// A task comes in. If its trace is recorded, it carries this hop from here on.
    pub fn submitting(&self, task: &mut ValidTask) -> Option<Hop> {
        let recorder = self.0.as_ref()?;
        let headers = &mut task.content.headers;
        let hop = match TraceContext::carried(headers, task.envelope.as_deref()) {
            Some(caller) if caller.is_sampled() => Hop::below(caller, caller.at(fresh())),
            Some(_) => return None,
            None if rand::random::<f64>() < recorder.ratio => {
                // What belongs to a trace that could not be read.
                headers.remove(HEADER_TRACESTATE);
                Hop::root()
            }
            None => return None,
        };
        headers.insert(HEADER_TRACEPARENT.to_owned(), hop.context.to_string());
        Some(hop)
    }

    /// Tasks of a client that stands at `caller` come in together.
    pub fn batching(&self, caller: TraceContext) -> Option<Hop> {
        self.0.as_ref()?;
        caller.is_sampled().then(|| Hop::below(caller, caller.at(fresh())))
    }

    /// An attempt is about to be handed over. If its task's trace is recorded, the message names this hop.
    pub fn publishing(&self, delivery: &mut Delivery) -> Option<Hop> {
        self.0.as_ref()?;
        let carried = TraceContext::carried(&delivery.content.headers, delivery.envelope.as_deref())?;
        let hop = carried.is_sampled().then(|| Hop::below(carried, carried.handing_over(delivery.message_id())))?;
        delivery.content.headers.insert(HEADER_TRACEPARENT.to_owned(), hop.context.to_string());
        Some(hop)
    }

    /// Something was heard of an attempt: below what `reported` it names, else below the hop that handed it over.
    pub fn settling(
        &self,
        reported: Option<TraceContext>,
        carried: Option<TraceContext>,
        message: MessageId,
    ) -> Option<Hop> {
        self.0.as_ref()?;
        let parent = reported.or_else(|| carried.map(|carried| carried.handing_over(message)))?;
        parent.is_sampled().then(|| Hop::below(parent, parent.at(fresh())))
    }

    /// A hop is over.
    pub fn record(&self, hop: &Hop, step: Step<'_>) {
        let Some(recorder) = &self.0 else { return };
        let span = span::of(hop, step, clock::now(), recorder.scope.clone());
        if recorder.spans.try_send(span).is_err() {
            recorder.metrics.dropped.inc();
        }
    }
}
