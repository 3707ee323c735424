use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::*;
use crate::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    task::Content,
    time::UnixMicros,
    wire::amqp::HeaderValue,
};

fn delivery(payload: &[u8], content_type: &str) -> Delivery {
    Delivery {
        id: TaskId::mint(uuid::Uuid::nil(), ShardId::new(1)),
        attempt: Attempt::new(3),
        attempts_base: Attempt::NONE,
        queue: QueueName::new("mails"),
        due_at: UnixMicros::new(1_700_000_000_250_000),
        content: Content {
            payload: payload.to_vec(),
            content_type: content_type.to_owned(),
            headers: BTreeMap::from([("traceparent".to_owned(), "00-1".to_owned())]),
        },
        priority: 3,
        key: Some("k".to_owned()),
        partition_key: Some("p".to_owned()),
        version: 0,
        max_attempts: None,
        timeout_ms: None,
        redelivered: false,
        envelope: None,
    }
}

fn event(payload: &[u8], content_type: &str) -> Value {
    let shaped = shape(Format::CloudEvents, &delivery(payload, content_type)).unwrap().unwrap();
    assert_eq!(shaped.content_type, "application/cloudevents+json");
    serde_json::from_slice(&shaped.body).unwrap()
}

fn call(payload: &str) -> Result<Shaped, FieldError> {
    shape(Format::Celery, &delivery(payload.as_bytes(), "application/json")).map(Option::unwrap)
}

/// An event with its data unparsed.
#[derive(Deserialize)]
struct Read<'a>(#[serde(borrow)] BTreeMap<&'a str, &'a RawValue>);

impl Read<'_> {
    fn data(&self) -> Option<&[u8]> {
        self.0.get("data").map(|data| data.get().as_bytes())
    }

    fn decoded(&self) -> Option<Vec<u8>> {
        self.0.get("data_base64").map(|text| STANDARD.decode(text.get().trim_matches('"')).unwrap())
    }
}

#[test]
fn a_raw_message_is_as_it_was_submitted() {
    assert_eq!(shape(Format::Raw, &delivery(b"anything", "text/plain")), Ok(None));
    assert_eq!(check(Format::Raw, b"{"), Ok(()));
}

#[test]
fn an_event_is_the_task_and_names_its_attempt() {
    let id = "00000000-0000-0000-0000-000000000001";
    assert_eq!(
        event(br#"{"to": 1}"#, "application/json"),
        json!({
            "specversion": "1.0", "id": id, "source": "/v1/queues/mails", "type": "mails",
            "time": "2023-11-14T22:13:20.250000Z", "datacontenttype": "application/json", "duetimeattempt": 3,
            "duetimekey": "k", "partitionkey": "p", "traceparent": "00-1", "data": { "to": 1 },
        })
    );
}

#[test]
fn only_what_says_that_it_is_json_and_is_goes_as_json() {
    for (content_type, payload, is_data) in [
        ("application/json", "[1]", true),
        ("Application/JSON; charset=utf-8", "[1]", true),
        ("application/vnd.x+json", "[1]", true),
        ("application/json", "[1", false),
        ("application/json", "", false),
        ("text/plain", "[1]", false),
        ("application/jsonl", "[1]", false),
    ] {
        let event = event(payload.as_bytes(), content_type);
        assert_eq!(event["data"].is_array(), is_data, "{content_type} {payload}");
        assert_eq!(event["data_base64"].is_string(), !is_data, "{content_type} {payload}");
        assert_eq!(event["datacontenttype"], content_type);
    }
}

#[test]
fn a_call_has_the_headers_and_the_body_of_protocol_2() {
    let shaped = call(r#"{"task":"app.add","args":[1, 2.50],"kwargs":{"a":"é"}}"#).unwrap();
    let embed = r#"{"callbacks":null,"errbacks":null,"chain":null,"chord":null}"#;
    assert_eq!(String::from_utf8(shaped.body).unwrap(), format!(r#"[[1, 2.50],{{"a":"é"}},{embed}]"#));
    assert_eq!((shaped.content_type, shaped.content_encoding), ("application/json", "utf-8"));
    let id = "00000000-0000-0000-0000-000000000001";
    let text = |name: &'static str, value: &str| (name.into(), HeaderValue::LongString(value.to_owned()));
    let expected: Vec<Header> = vec![
        text("lang", "py"),
        text("task", "app.add"),
        text("id", id),
        text("root_id", id),
        ("retries".into(), HeaderValue::I64(2)),
        text("argsrepr", "[1, 2.50]"),
        text("kwargsrepr", r#"{"a":"é"}"#),
        text("origin", "duetime"),
    ];
    assert_eq!(shaped.headers, expected);
}

#[test]
fn a_call_may_leave_out_its_arguments() {
    let shaped = call(r#"{"task":"app.tick","args":null}"#).unwrap();
    assert!(shaped.body.starts_with(b"[[],{},{"), "{:?}", String::from_utf8(shaped.body));
}

#[test]
fn a_payload_that_is_no_call_is_refused_by_what_is_wrong_with_it() {
    for (payload, field) in [
        ("null", "payload"),
        ("{", "payload"),
        (r#"["app.add", [], {}]"#, "payload"),
        ("{}", "payload"),
        (r#"{"task":5}"#, "payload"),
        (r#"{"task":"a","eta":1}"#, "payload"),
        (r#"{"task":""}"#, "payload.task"),
        (r#"{"task":"a\u0000"}"#, "payload.task"),
        (r#"{"task":"a","args":{}}"#, "payload.args"),
        (r#"{"task":"a","kwargs":[]}"#, "payload.kwargs"),
    ] {
        let refused = check(Format::Celery, payload.as_bytes()).expect_err(payload);
        assert_eq!(refused.field, field, "{payload}: {refused}");
        assert_eq!(call(payload), Err(refused), "{payload}");
    }
}

/// Any JSON, with every kind of number and text.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_event_is_json_and_keeps_every_byte(payload: Vec<u8>, is_json: bool, content_type in "[ -~é]{1,40}") {
        let content_type = if is_json { "application/json" } else { content_type.as_str() };
        let shaped = shape(Format::CloudEvents, &delivery(&payload, content_type)).unwrap().unwrap();
        let event: Read<'_> = serde_json::from_slice(&shaped.body).unwrap();
        match event.data() {
            Some(data) => prop_assert_eq!((data, event.decoded()), (payload.trim_ascii(), None)),
            None => prop_assert_eq!(event.decoded(), Some(payload)),
        }
    }

    #[test]
    fn json_in_an_event_is_not_written_anew(data in any_json()) {
        let payload = serde_json::to_vec_pretty(&data).unwrap();
        let shaped = shape(Format::CloudEvents, &delivery(&payload, "application/json")).unwrap().unwrap();
        let event: Read<'_> = serde_json::from_slice(&shaped.body).unwrap();
        prop_assert_eq!(event.data(), Some(payload.as_slice()));
    }

    #[test]
    fn the_arguments_of_a_call_are_not_written_anew(args in prop::collection::vec(any_json(), 0..4), kwargs in prop::collection::btree_map(any::<String>(), any_json(), 0..4)) {
        let (args, kwargs) = (serde_json::to_string_pretty(&args).unwrap(), serde_json::to_string_pretty(&kwargs).unwrap());
        let shaped = call(&format!(r#" {{ "task" : "t", "kwargs" : {kwargs} , "args": {args} }} "#)).unwrap();
        let body: [&RawValue; 3] = serde_json::from_slice(&shaped.body).unwrap();
        prop_assert_eq!((body[0].get(), body[1].get()), (args.as_str(), kwargs.as_str()));
    }

    #[test]
    fn any_bytes_are_a_call_or_are_refused(payload: Vec<u8>, json in any_json()) {
        let _ = check(Format::Celery, &payload);
        let _ = check(Format::Celery, json.to_string().as_bytes());
    }
}
