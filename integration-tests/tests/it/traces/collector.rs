//! An OpenTelemetry collector for these scenarios: it takes OTLP over HTTP and keeps the spans.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span as WireSpan, span::SpanKind, status::StatusCode as Status},
};
use parking_lot::Mutex;
use prost::Message;
use tokio::{net::TcpListener, task::JoinHandle};

/// A decoded span.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub service: String,
    pub instance: String,
    pub name: String,
    pub kind: SpanKind,
    pub trace_id: String,
    pub span_id: String,
    /// Empty for a root.
    pub parent: String,
    pub is_error: bool,
    pub took_ns: i128,
    /// The traces it is linked to.
    pub links: Vec<String>,
    attributes: Vec<KeyValue>,
}

impl Span {
    /// An attribute's value, "" where there is none.
    pub(super) fn attribute(&self, name: &str) -> String {
        text(&self.attributes, name)
    }
}

pub(super) struct Collector {
    port: u16,
    spans: Arc<Mutex<Vec<Span>>>,
    serving: JoinHandle<()>,
}

impl Collector {
    pub(super) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let spans = Arc::default();
        let app = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&spans));
        let serving = tokio::spawn(async move { drop(axum::serve(listener, app).await) });
        Ok(Self { port, spans, serving })
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn of_trace(&self, trace_id: &str) -> Vec<Span> {
        self.spans.lock().iter().filter(|span| span.trace_id == trace_id).cloned().collect()
    }

    pub(super) fn of_task(&self, id: &str) -> Vec<Span> {
        self.spans.lock().iter().filter(|span| span.attribute("duetime.task.id") == id).cloned().collect()
    }

    /// Sends the span that a consumer's own library would export for its work below `parent`.
    pub(super) async fn consumed(&self, parent: &str, span_id: &str) -> Result<()> {
        let mut parts = parent.split('-').skip(1);
        let trace_id = bytes(parts.next().context("a trace id")?)?;
        let parent_span_id = bytes(parts.next().context("a span id")?)?;
        let span = WireSpan {
            trace_id,
            parent_span_id,
            span_id: bytes(span_id)?,
            name: "process".to_owned(),
            kind: SpanKind::Consumer.into(),
            ..WireSpan::default()
        };
        let service = AnyValue { value: Some(Value::StringValue("consumer".to_owned())) };
        let resource = Resource {
            attributes: vec![KeyValue { key: "service.name".to_owned(), value: Some(service), ..KeyValue::default() }],
            ..Resource::default()
        };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource),
                scope_spans: vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }],
                ..ResourceSpans::default()
            }],
        };
        let url = format!("{}/v1/traces", self.endpoint());
        let sent = integration_tests::http::plain().post(url).body(request.encode_to_vec()).send().await?;
        sent.error_for_status()?;
        Ok(())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn take(State(spans): State<Arc<Mutex<Vec<Span>>>>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
    for of in request.resource_spans {
        let resource = of.resource.unwrap_or_default().attributes;
        for span in of.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            spans.lock().push(read(&resource, span));
        }
    }
    StatusCode::OK
}

fn read(resource: &[KeyValue], span: WireSpan) -> Span {
    Span {
        service: text(resource, "service.name"),
        instance: text(resource, "service.instance.id"),
        kind: span.kind(),
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        is_error: span.status.as_ref().is_some_and(|status| status.code() == Status::Error),
        took_ns: i128::from(span.end_time_unix_nano) - i128::from(span.start_time_unix_nano),
        links: span.links.iter().map(|link| hex(&link.trace_id)).collect(),
        name: span.name,
        attributes: span.attributes,
    }
}

fn text(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        _ => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let pairs = (0..hex.len() / 2).map(|at| hex.get(2 * at..2 * at + 2).context("pairs of digits"));
    pairs.map(|pair| Ok(u8::from_str_radix(pair?, 16)?)).collect()
}
