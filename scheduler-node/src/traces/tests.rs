use common::{
    ids::{Incarnation, NodeName},
    time::{Present, UnixMicros},
    wire::{Limits, TaskRequest},
};

use super::*;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn telemetry(ratio: f64) -> Telemetry {
    // No collector listens there.
    Telemetry { otlp_endpoint: Some("http://127.0.0.1:9".to_owned()), trace_ratio: ratio, ..Telemetry::default() }
}

fn traces(ratio: f64) -> (Traces, Exporter) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let me = NodeId { name: NodeName::new("a"), incarnation: Incarnation::new(uuid::Uuid::nil()) };
    let (traces, exporter) = Traces::new(&telemetry(ratio), &me, &Registry::new()).expect("an endpoint");
    (traces, exporter.expect("an exporter"))
}

fn task(headers: &str) -> ValidTask {
    let request = TaskRequest::parse(&format!(r#"{{"queue":"mail","headers":{headers}}}"#)).expect("a task");
    request.validate(Present::exactly(UnixMicros::new(0)), &Limits { max_payload_bytes: 1 << 10 }).expect("valid")
}

#[tokio::test]
async fn a_task_without_a_trace_gets_none_and_no_header() {
    let (traces, _exporter) = traces(0.0);
    let mut plain = task("{}");
    assert_eq!(traces.submitting(&mut plain), None);
    assert!(plain.content.headers.is_empty());
    let quiet = PARENT.replace("-01", "-00");
    let mut unsampled = task(&format!(r#"{{"traceparent":"{quiet}"}}"#));
    assert_eq!(traces.submitting(&mut unsampled), None);
    assert_eq!(unsampled.content.headers[HEADER_TRACEPARENT], quiet);
}

#[tokio::test]
async fn a_sampled_caller_is_the_parent_and_the_task_carries_the_new_hop() {
    let (traces, _exporter) = traces(0.0);
    let mut sampled = task(&format!(r#"{{"traceparent":"{PARENT}"}}"#));
    let hop = traces.submitting(&mut sampled).expect("it is recorded");
    assert_eq!(hop.parent, TraceContext::parse(PARENT).map(|parent| parent.span_id));
    assert_eq!(sampled.content.headers[HEADER_TRACEPARENT], hop.context.to_string());
    assert_ne!(hop.context.to_string(), PARENT);
}

#[tokio::test]
async fn by_its_ratio_a_task_begins_a_trace_of_its_own() {
    let (traces, _exporter) = traces(1.0);
    let mut broken = task(r#"{"traceparent":"nonsense","tracestate":"a=1"}"#);
    let hop = traces.submitting(&mut broken).expect("it is recorded");
    assert_eq!(hop.parent, None);
    let carried = std::collections::BTreeMap::from([(HEADER_TRACEPARENT.to_owned(), hop.context.to_string())]);
    assert_eq!(broken.content.headers, carried);
}

#[tokio::test]
async fn nothing_is_done_where_nothing_is_exported() {
    let traces = Traces::default();
    let mut sampled = task(&format!(r#"{{"traceparent":"{PARENT}"}}"#));
    assert_eq!(traces.submitting(&mut sampled), None);
    assert_eq!(sampled.content.headers[HEADER_TRACEPARENT], PARENT);
}

/// The collector is unreachable, and no exporter runs that would try it.
#[tokio::test]
async fn what_finds_no_room_is_dropped_and_counted_at_once() {
    let (traces, exporter) = traces(1.0);
    let mut one = task("{}");
    let hop = traces.submitting(&mut one).expect("it is recorded");
    let done = Done::Submitted(Submitted { way: Way::Http, outcome: Err("no room".to_owned()) });
    for _ in 0..WAITING + 7 {
        traces.record(&hop, Step { queue: Some(&one.queue), done: done.clone() });
    }
    assert_eq!(traces.0.as_ref().expect("a recorder").metrics.dropped.get(), 7);
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    let recorder = traces.0.expect("a recorder");
    exporter.run(stop).await;
    assert_eq!(recorder.metrics.dropped.get(), WAITING as u64 + 7, "what is left when the node stops");
}
