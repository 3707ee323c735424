use super::*;
use crate::wire::check;

const NOW: UnixMicros = UnixMicros::new(1_700_000_000_000_000);

fn valid(raw: &str) -> ValidTask {
    TaskRequest::parse(raw).and_then(|task| task.validate(Present::exactly(NOW), &Limits::default())).unwrap()
}

fn refused(raw: &str) -> Problem {
    TaskRequest::parse(raw).and_then(|task| task.validate(Present::exactly(NOW), &Limits::default())).unwrap_err()
}

/// A request with these fields besides the queue.
fn with(fields: &str) -> String {
    format!(r#"{{"queue":"q",{fields}}}"#)
}

fn ms(wait_ms: i64) -> UnixMicros {
    UnixMicros::new(NOW.micros() + wait_ms * 1_000)
}

#[test]
fn a_queue_alone_is_a_task_that_is_due_now() {
    let task = valid(r#"{"queue":"mail"}"#);
    assert_eq!((task.queue.as_str(), task.due_at, task.due_now), ("mail", NOW, true));
    assert_eq!((task.content.payload.as_slice(), task.content.content_type.as_str()), (&b"null"[..], check::JSON));
    assert_eq!((task.priority, task.expires_at), (3, None));
    assert_eq!((task.partition_key, task.max_attempts, task.timeout_ms, task.retry), (None, None, None, None));
}

#[test]
fn a_payload_is_kept_byte_for_byte() {
    for payload in [r#"{"b": 1.0 , "a":[1e3,  "\u00e4"]}"#, "3.140", "\"x\"", "null", "{ }", "\"\\u0000\""] {
        let task = valid(&with(&format!("\"payload\": {payload} ")));
        assert_eq!(task.content.payload, payload.as_bytes());
        assert_eq!(task.content.content_type, check::JSON);
    }
}

#[test]
fn bytes_come_in_base64_with_their_type() {
    let task = valid(&with(r#""payload_base64":"AP8=","content_type":"image/png""#));
    assert_eq!((task.content.payload, task.content.content_type.as_str()), (vec![0, 255], "image/png"));
    assert_eq!(valid(&with(r#""payload_base64":"""#)).content.content_type, check::BYTES);
}

#[test]
fn a_due_time_is_given_as_a_delay_a_date_or_milliseconds() {
    let due = |fields: &str| {
        let task = valid(&with(fields));
        (task.due_at, task.due_now)
    };
    assert_eq!(due(r#""delay_ms":1500"#), (ms(1_500), false));
    assert_eq!(due(r#""due_at":1700000001500"#), (ms(1_500), false));
    assert_eq!(due(r#""due_at":"2023-11-14T22:13:21.5Z""#), (ms(1_500), false));
    assert_eq!(due(r#""due_at":"2023-11-15T00:13:21.5+02:00""#), (ms(1_500), false));
    assert_eq!(due(r#""delay_ms":220752000000000"#).0, ms(220_752_000_000_000));
}

#[test]
fn a_due_time_that_may_not_have_passed_is_kept_and_a_delay_is_never_too_short() {
    let now = Present { earliest: NOW, latest: ms(500) };
    let due = |fields: &str| {
        let task = TaskRequest::parse(&with(fields)).unwrap().validate(now, &Limits::default()).unwrap();
        (task.due_at, task.due_now)
    };
    assert_eq!(due(r#""due_at":1700000000001"#), (ms(1), false));
    assert_eq!(due(r#""due_at":1700000000000"#), (ms(500), true));
    assert_eq!(due(r#""delay_ms":1"#), (ms(501), false));
    assert_eq!(due(r#""delay_ms":0"#), (ms(500), true));
}

#[test]
fn a_due_time_in_the_past_means_now() {
    for fields in
        [r#""delay_ms":0"#, r#""delay_ms":-5"#, r#""due_at":5"#, r#""due_at":-5"#, r#""due_at":"1969-01-01T00:00:00Z""#]
    {
        let task = valid(&with(fields));
        assert_eq!((task.due_at, task.due_now), (NOW, true), "{fields}");
    }
}

#[test]
fn an_expiry_is_counted_from_the_submission_and_comes_after_the_due_time() {
    assert_eq!(valid(&with(r#""expires_after_ms":9"#)).expires_at, Some(ms(9)));
    assert_eq!(valid(&with(r#""delay_ms":8,"expires_after_ms":9"#)).expires_at, Some(ms(9)));
    assert_eq!(valid(&with(r#""expires_at":1700000000009"#)).expires_at, Some(ms(9)));
    assert_eq!(refused(&with(r#""delay_ms":9,"expires_after_ms":9"#)).field.unwrap(), "expires_after_ms");
    assert_eq!(refused(&with(r#""expires_at":1700000000000"#)).field.unwrap(), "expires_at");
    assert_eq!(refused(&with(r#""expires_at":"1999-01-01T00:00:00Z""#)).field.unwrap(), "expires_at");
}

#[test]
fn null_means_absent() {
    let nulls = with(
        r#""payload":null,"payload_base64":null,"content_type":null,"delay_ms":null,"due_at":null,"partition_key":null,
           "priority":null,"max_attempts":null,"timeout_ms":null,"retry":null,"expires_at":null,"expires_after_ms":null,
           "headers":null,"key":null,"version":null,"on_duplicate":null,"depends_on":null"#,
    );
    assert_eq!(valid(&nulls), valid(r#"{"queue":"q"}"#));
}

#[test]
fn everything_asked_for_is_handed_on() {
    let task = valid(&with(
        r#""partition_key":"p","priority":1,"max_attempts":7,"timeout_ms":900,"retry":{"kind":"fixed","delay_ms":5},
           "expires_after_ms":60000,"headers":{"a":"1","traceparent":"00-1-2-01"}"#,
    ));
    assert_eq!(task.partition_key.as_deref(), Some("p"));
    assert_eq!((task.priority, task.max_attempts, task.timeout_ms), (1, Some(7), Some(900)));
    assert_eq!(task.retry, Some(RetryPolicy::Fixed { delay_ms: 5 }));
    assert_eq!(task.content.headers.len(), 2);
}

#[test]
fn whatever_is_wrong_with_a_field_is_a_422_that_names_it() {
    let long = "k".repeat(257);
    let cases = [
        ("queue", r#"{}"#.to_owned()),
        ("queue", r#"{"queue":""}"#.to_owned()),
        ("queue", r#"{"queue":"a b"}"#.to_owned()),
        ("queue", r#"{"queue":7}"#.to_owned()),
        ("queue", r#"{"queue":null}"#.to_owned()),
        ("queue", r#"{"queue":"a","queue":"b"}"#.to_owned()),
        ("delay", with(r#""delay":1"#)),
        ("payload_base64", with(r#""payload":1,"payload_base64":"AA==""#)),
        ("payload_base64", with(r#""payload_base64":"A""#)),
        ("payload_base64", with(r#""payload_base64":"A A=""#)),
        ("content_type", with(r#""payload":1,"content_type":"text/plain""#)),
        ("content_type", with(r#""content_type":"text/plain""#)),
        ("content_type", with(r#""payload_base64":"AA==","content_type":"""#)),
        ("content_type", with(r#""payload_base64":"AA==","content_type":"a\u0000b""#)),
        ("delay_ms", with(r#""delay_ms":1,"due_at":1"#)),
        ("delay_ms", with(r#""delay_ms":"5""#)),
        ("delay_ms", with(r#""delay_ms":1.5"#)),
        ("delay_ms", with(r#""delay_ms":9223372036854775807"#)),
        ("delay_ms", with(r#""delay_ms":9223372036854775808"#)),
        ("due_at", with(r#""due_at":"tomorrow""#)),
        ("due_at", with(r#""due_at":"2023-11-14T22:13:21""#)),
        ("due_at", with(r#""due_at":253402300800000"#)),
        ("due_at", with(r#""due_at":{}"#)),
        ("expires_after_ms", with(r#""expires_at":1800000000000,"expires_after_ms":1"#)),
        ("expires_after_ms", with(r#""expires_after_ms":-1"#)),
        ("priority", with(r#""priority":0"#)),
        ("priority", with(r#""priority":6"#)),
        ("priority", with(r#""priority":99999"#)),
        ("priority", with(r#""priority":"high""#)),
        ("max_attempts", with(r#""max_attempts":0"#)),
        ("max_attempts", with(r#""max_attempts":1001"#)),
        ("timeout_ms", with(r#""timeout_ms":0"#)),
        ("partition_key", with(r#""partition_key":"""#)),
        ("partition_key", with(&format!(r#""partition_key":"{long}""#))),
        ("partition_key", with(r#""partition_key":"a\u0000""#)),
        ("retry", with(r#""retry":5"#)),
        ("retry", with(r#""retry":{"kind":"cubic"}"#)),
        ("retry.delay_ms", with(r#""retry":{"kind":"fixed"}"#)),
        ("retry.delay_ms", with(r#""retry":{"kind":"fixed"} , "priority":1"#)),
        ("retry.delay", with(r#""retry":{"kind":"fixed","delay":5}"#)),
        ("retry.kind", with(r#""retry":{"delay_ms":5}"#)),
        ("retry.delay_ms", with(r#""retry":{"kind":"polynomial","delay_ms":5}"#)),
        ("retry.delay_ms", with(r#""retry":{"kind":"fixed","delay_ms":0}"#)),
        ("headers", with(r#""headers":[]"#)),
        ("headers", with(r#""headers":{"a":1}"#)),
        ("headers", with(r#""headers":{"":"1"}"#)),
        ("headers", with(r#""headers":{"duetime-attempt":"1"}"#)),
        ("headers", with(r#""headers":{"CC":"x"}"#)),
        ("headers", with(r#""headers":{"X-Delay":"1"}"#)),
        ("headers", with(r#""headers":{"a":"\u0000"}"#)),
        ("headers", with(r#""headers":{"a":"1","a":"2"},"priority":1"#)),
        ("depends_on", with(&format!(r#""depends_on":[{}],"priority":1"#, vec![r#""a""#; 101].join(",")))),
    ];
    for (field, raw) in cases {
        let problem = refused(&raw);
        assert_eq!((problem.field.as_deref(), problem.status), (Some(field), 422), "{raw}: {problem:?}");
        assert_eq!(problem.slug(), "invalid_field");
        assert!(!problem.detail.contains("at line"), "{}", problem.detail);
    }
}

#[test]
fn json_that_no_field_can_hold_is_a_422_that_names_the_field() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (field, raw) in [
        ("key", r#"{"queue":"q","key":"\ud83d"}"#.to_owned()),
        ("key", "{\n \"queue\":\"q\",\n \"key\" : \"a\\udc00\"\n}".to_owned()),
        ("partition_key", with(r#""partition_key":"\ud83d\ud83d""#)),
        ("headers", with(r#""headers":{"a":"\ud83dx"},"priority":1"#)),
        ("delay_ms", with(r#""delay_ms":1e999"#)),
        ("retry", with(r#""retry":{"kind":"exponential","base_ms":1,"factor":-1e999,"max_ms":1}"#)),
        ("depends_on", with(&format!(r#""depends_on":[{deep}]"#))),
    ] {
        let problem = refused(&raw);
        assert_eq!((problem.field.as_deref(), problem.status), (Some(field), 422), "{raw}: {problem:?}");
        assert!(!problem.detail.contains("at line"), "{}", problem.detail);
        let cut = refused(&raw[..raw.len() - 1]);
        assert_eq!((cut.field.as_deref(), cut.status), (None, 400), "{raw} without its end: {cut:?}");
    }
    let name = refused(r#"{"queue":"q","\ud83d":1}"#);
    assert_eq!((name.field.as_deref(), name.status), (None, 422), "the name of a field is not one: {name:?}");
    let payload = with(&format!(r#""payload":["\ud83d",1e999,{deep}]"#));
    assert_eq!(refused(&payload.replace("payload", "pay")).field.as_deref(), Some("pay"));
    assert!(!valid(&payload).content.payload.is_empty(), "a payload is not read");
}

#[test]
fn what_a_task_waits_for_is_read_and_checked() {
    assert!(valid(&with(r#""depends_on":[]"#)).depends_on.is_empty());
    let names: Vec<String> = valid(&with(r#""depends_on":["a",{"queue":"r","key":"b"}]"#))
        .depends_on
        .iter()
        .map(crate::task::Dependency::name)
        .collect();
    assert_eq!(names, ["q a", "r b"]);
    let problem = refused(&with(r#""key":"a","depends_on":["a"]"#));
    assert_eq!((problem.status, problem.field.as_deref()), (422, Some("depends_on")));
}

#[test]
fn a_key_comes_with_what_a_second_one_means() {
    let keyed = |fields: &str| valid(&with(fields)).keyed;
    assert_eq!(keyed(r#""priority":1"#), None);
    let kept = BusinessKey { key: "k".into(), version: 0, on_duplicate: OnDuplicate::Keep };
    assert_eq!(keyed(r#""key":"k""#), Some(kept));
    let newest = BusinessKey { key: "k".into(), version: 7, on_duplicate: OnDuplicate::Version };
    assert_eq!(keyed(r#""key":"k","version":7,"on_duplicate":"version""#), Some(newest));
    for (fields, field) in [
        (r#""key":"""#, "key"),
        (r#""key":7"#, "key"),
        (r#""version":1"#, "version"),
        (r#""on_duplicate":"keep""#, "on_duplicate"),
        (r#""key":"k","version":-1"#, "version"),
        (r#""key":"k","on_duplicate":"maybe""#, "on_duplicate"),
    ] {
        let problem = refused(&with(fields));
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{fields}: {problem:?}");
    }
}

#[test]
fn what_is_not_json_or_not_an_object_is_not_a_task() {
    for raw in ["", "{", "nonsense", r#"{"queue":"q",}"#, r#"{"queue":"q"} x"#, "{\"queue\":\"q\u{1}\"}"] {
        let problem = refused(raw);
        assert_eq!((problem.status, problem.field.as_deref()), (400, None), "{raw}: {problem:?}");
    }
    for raw in ["5", "[]", "null", "\"q\""] {
        assert_eq!(refused(raw).status, 422, "{raw}");
    }
}

#[test]
fn a_payload_may_be_as_large_as_is_allowed_and_no_larger() {
    let limits = Limits { max_payload_bytes: 10 };
    let check = |raw: &str| TaskRequest::parse(raw).unwrap().validate(Present::exactly(NOW), &limits);
    assert!(check(&with(r#""payload":"12345678""#)).is_ok());
    assert!(check(&with(r#""payload_base64":"AAAAAAAAAAAAAA==""#)).is_ok());
    let too_large = [
        with(r#""payload":"123456789""#),
        with(r#""payload_base64":"AAAAAAAAAAAAAAA=""#),
        with(&format!(r#""payload_base64":"{}""#, "A".repeat(400))),
    ];
    for raw in too_large {
        let problem = check(&raw).unwrap_err();
        assert_eq!((problem.status, problem.slug()), (413, "payload_too_large"));
    }
}

#[test]
fn headers_are_limited_in_number_and_size() {
    let headers = |count: usize, bytes: usize| {
        let list: Vec<String> = (0..count).map(|number| format!(r#""h{number:02}":"{}""#, "v".repeat(bytes))).collect();
        with(&format!(r#""headers":{{{}}}"#, list.join(",")))
    };
    assert_eq!(valid(&headers(64, 125)).content.headers.len(), 64);
    assert_eq!(refused(&headers(65, 1)).detail, "`headers`: at most 64 headers are allowed");
    for raw in [headers(64, 126), headers(65, 1), with(&format!(r#""headers":{{"{}":""}}"#, "n".repeat(256)))] {
        assert_eq!(refused(&raw).field.unwrap(), "headers");
    }
}

#[test]
fn keys_are_counted_in_characters() {
    assert!(valid(&with(&format!(r#""partition_key":"{}""#, "ä".repeat(256)))).partition_key.is_some());
    assert_eq!(refused(&with(&format!(r#""partition_key":"{}""#, "ä".repeat(257)))).field.unwrap(), "partition_key");
}
