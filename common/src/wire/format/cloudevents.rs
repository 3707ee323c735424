//! A CloudEvent 1.0 in structured mode: the whole event is the body.
//!
//! A task is one event, however often it is attempted: `id` is the task's id. A reader that remembers the ids of
//! handled events may therefore skip a second attempt. An extension attribute holds the number of the attempt.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::Shaped;
use crate::{
    ids::TaskId,
    task::{Delivery, trace::HEADER_TRACEPARENT},
    time::UnixMicros,
};

const CONTENT_TYPE: &str = "application/cloudevents+json";

#[skip_serializing_none]
#[derive(Serialize)]
struct Event<'a> {
    specversion: &'static str,
    id: TaskId,
    source: String,
    #[serde(rename = "type")]
    kind: &'a str,
    /// The task's due time.
    time: UnixMicros,
    datacontenttype: &'a str,
    duetimeattempt: i32,
    duetimekey: Option<&'a str>,
    /// The CloudEvents extension of that name defines this attribute and the next one.
    partitionkey: Option<&'a str>,
    traceparent: Option<&'a str>,
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
}

pub(super) fn shape(delivery: &Delivery) -> Shaped {
    let content = &delivery.content;
    let json: Option<&RawValue> =
        if is_json(&content.content_type) { serde_json::from_slice(&content.payload).ok() } else { None };
    let queue = delivery.queue.as_str();
    let event = Event {
        specversion: "1.0",
        id: delivery.id,
        source: format!("/v1/queues/{queue}"),
        kind: queue,
        time: delivery.due_at,
        datacontenttype: &content.content_type,
        duetimeattempt: delivery.attempt.number(),
        duetimekey: delivery.key.as_deref(),
        partitionkey: delivery.partition_key.as_deref(),
        traceparent: content.headers.get(HEADER_TRACEPARENT).map(String::as_str),
        data: json,
        data_base64: if json.is_none() { Some(STANDARD.encode(&content.payload)) } else { None },
    };
    let body = serde_json::to_vec(&event).expect("text, numbers and JSON that was read are JSON");
    Shaped { body, content_type: CONTENT_TYPE, content_encoding: "utf-8", headers: Vec::new() }
}

/// Whether the type is `application/json`, or one that ends in `+json`.
fn is_json(content_type: &str) -> bool {
    let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    name == "application/json" || name.ends_with("+json")
}
