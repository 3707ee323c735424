//! Traces for an OpenTelemetry collector: one for each task, from the submission over every attempt to its result.
//!
//! This room times a hop and records it when it is over; [`exporter`] sends recorded spans in batches. Between
//! its hops a task carries its own context, so a trace lives as long as the task and is bound to no node.
//! Without an exporter, a hop costs one look at an `Option`. For a task that is not sampled it costs one look
//! into the headers. Neither allocates.

mod exporter;
mod span;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use common::{
    ids::{MessageId, NodeId},
    task::{
        Delivery, TraceContext, ValidTask,
        trace::{HEADER_TRACEPARENT, HEADER_TRACESTATE, SpanId, TraceId},
    },
    time::UnixMicros,
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

/// The most spans that wait to be exported, about 1 KiB each. A span without room is dropped and counted: no
/// task waits for a collector.
const WAITING: usize = 4_096;

/// Records the hops of tasks. Clones share one recorder.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    /// The share of the tasks without a trace that begin one: 0 to 1.
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

    /// A sibling of this hop, for a step from which the trace does not continue.
    pub fn apart(self) -> Self {
        Self { context: self.context.at(fresh()), ..self }
    }

    fn root() -> Self {
        // 0 would name no trace.
        let trace_id = TraceId(rand::random::<u128>().max(1));
        Self { context: TraceContext::sampled(trace_id, fresh()), parent: None, began_at: clock::now() }
    }
}

/// The ids of the trace and the hop for a log line. `None` for a task whose trace is not recorded.
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
            exported: IntCounter::new("duetime_spans_exported_total", "spans that the collector accepted")?,
            dropped: IntCounter::new(
                "duetime_spans_dropped_total",
                "spans dropped because the collector refused them or was too slow",
            )?,
        };
        registry.register(Box::new(metrics.exported.clone()))?;
        registry.register(Box::new(metrics.dropped.clone()))?;
        Ok(metrics)
    }
}

impl Traces {
    /// Returns the handle and the exporter, which must run for any span to arrive. No exporter: nothing is exported.
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

    /// Begins the hop of a task's submission. If its trace is recorded, the task carries this hop from here on.
    pub fn submitting(&self, task: &mut ValidTask) -> Option<Hop> {
        let recorder = self.0.as_ref()?;
        let headers = &mut task.content.headers;
        let hop = match TraceContext::carried(headers, task.envelope.as_deref()) {
            Some(caller) if caller.is_sampled() => Hop::below(caller, caller.at(fresh())),
            Some(_) => return None,
            None if rand::random::<f64>() < recorder.ratio => {
                // This header belongs to a trace context that could not be read.
                headers.remove(HEADER_TRACESTATE);
                Hop::root()
            }
            None => return None,
        };
        headers.insert(HEADER_TRACEPARENT.to_owned(), hop.context.to_string());
        Some(hop)
    }

    /// Begins the hop of a batch of submissions, below the client's hop `caller`.
    pub fn batching(&self, caller: TraceContext) -> Option<Hop> {
        self.0.as_ref()?;
        caller.is_sampled().then(|| Hop::below(caller, caller.at(fresh())))
    }

    /// Begins the hop of an attempt that is about to be published. If the task's trace is recorded, the message
    /// names this hop.
    pub fn publishing(&self, delivery: &mut Delivery) -> Option<Hop> {
        self.0.as_ref()?;
        let carried = TraceContext::carried(&delivery.content.headers, delivery.envelope.as_deref())?;
        let hop = carried.is_sampled().then(|| Hop::below(carried, carried.handing_over(delivery.message_id())))?;
        delivery.content.headers.insert(HEADER_TRACEPARENT.to_owned(), hop.context.to_string());
        Some(hop)
    }

    /// Begins the hop of a report on an attempt, or of its missing report. The parent is the hop that
    /// `reported` names, else the hop that published the attempt.
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

    /// Records a hop that is over.
    pub fn record(&self, hop: &Hop, step: Step<'_>) {
        let Some(recorder) = &self.0 else { return };
        let span = span::of(hop, step, clock::now(), recorder.scope.clone());
        if recorder.spans.try_send(span).is_err() {
            recorder.metrics.dropped.inc();
        }
    }
}
