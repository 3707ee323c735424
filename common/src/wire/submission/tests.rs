use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::task::{BusinessKey, envelope::tests::field};

const NOW: UnixMicros = UnixMicros::new(1_700_000_000_000_000);

fn message(headers: &[(&str, Field)], body: &[u8]) -> Message {
    let headers = headers.iter().map(|(name, field)| ((*name).into(), field.clone())).collect();
    Message {
        routing_key: "a.b".to_owned(),
        addressed_to: None,
        redelivered: false,
        properties: Properties { headers: Some(headers), ..Properties::default() },
        body: body.to_vec(),
    }
}

fn said(value: &str) -> Field {
    Field::Text(value.into())
}

fn submitted(headers: &[(&str, Field)]) -> Result<ValidTask, Problem> {
    message(headers, b"{}").submitted(Present::exactly(NOW), &Limits::default())
}

fn delayed(headers: &[(&str, Field)]) -> Result<ValidTask, Problem> {
    message(headers, b"\xff").delayed(
        &DelayRoute::new("orders.delayed", "orders"),
        Present::exactly(NOW),
        &Limits::default(),
    )
}

fn after_ms(millis: u64) -> UnixMicros {
    NOW.plus(Duration::from_millis(millis))
}

#[test]
fn a_message_is_for_the_queue_that_its_routing_key_names_and_for_no_other() {
    let sent = |named: Option<&str>, header: Option<&str>| {
        let headers: Vec<_> = header.iter().map(|queue| ("duetime-queue", Field::Text((*queue).into()))).collect();
        let message = Message { addressed_to: named.map(Into::into), ..message(&headers, b"1") };
        message
            .submitted(Present::exactly(NOW), &Limits::default())
            .map(|task| task.queue.to_string())
            .map_err(|problem| problem.field)
    };
    let field = || Err(Some("duetime-queue".into()));
    assert_eq!(sent(Some("mail"), None), Ok("mail".to_owned()));
    assert_eq!(sent(Some("mail"), Some("mail")), Ok("mail".to_owned()));
    assert_eq!(sent(Some("mail"), Some("bank")), field());
    assert_eq!(sent(None, Some("mail")), Ok("mail".to_owned()));
    assert_eq!(sent(None, None), field());
}

#[test]
fn the_reason_of_a_refusal_is_short_however_long_a_header_is() {
    let long = "x".repeat(120_000);
    let unknown = format!("duetime-{long}");
    for name in ["duetime-on-duplicate", "duetime-depends-on", &unknown] {
        let problem = submitted(&[("duetime-queue", said("mail")), (name, said(&long))]).expect_err("refused");
        let json = serde_json::to_string(&problem).expect("JSON");
        assert!(json.len() < 2_000, "{name:.30}: {} bytes", json.len());
    }
}

#[test]
fn a_delayed_message_that_rabbitmq_delivered_before_says_so() {
    for redelivered in [false, true] {
        let message = Message { redelivered, ..message(&[("x-delay", Field::I32(5))], b"1") };
        let way = DelayRoute::new("orders.delayed", "orders");
        let task = message.delayed(&way, Present::exactly(NOW), &Limits::default()).unwrap();
        assert_eq!(task.envelope.map(|envelope| envelope.redelivered), Some(redelivered));
    }
}

#[test]
fn a_body_that_only_its_encoding_explains_is_refused() {
    let sent = |encoding: &str| {
        let mut message = message(&[("duetime-queue", said("mail"))], b"1");
        message.properties.content_encoding = Some(encoding.into());
        message.submitted(Present::exactly(NOW), &Limits::default()).map(drop).map_err(|problem| problem.field)
    };
    for encoding in ["", "utf-8", "UTF-8", "binary", "identity"] {
        assert_eq!(sent(encoding), Ok(()), "{encoding}");
    }
    for encoding in ["gzip", "deflate", "base64", "utf-16"] {
        assert_eq!(sent(encoding), Err(Some("content_encoding".into())), "{encoding}");
    }
}

#[test]
fn a_message_says_in_headers_what_a_request_says_in_fields() {
    let task = submitted(&[
        ("duetime-queue", said("mail")),
        ("duetime-delay-ms", Field::U16(1_500)),
        ("duetime-priority", said(" 2 ")),
        ("duetime-partition-key", said("p")),
        ("duetime-max-attempts", Field::I8(7)),
        ("duetime-timeout-ms", Field::I64(60_000)),
        ("duetime-expires-ms", Field::I64(1_800_000_000_000)),
        ("tenant", said("blue")),
        ("x-delivery-count", Field::I64(1)),
        ("X-Request-Id", said("7")),
    ])
    .unwrap();
    assert_eq!((task.queue.as_str(), task.due_at, task.due_now), ("mail", after_ms(1_500), false));
    assert_eq!((task.priority, task.partition_key.as_deref()), (2, Some("p")));
    assert_eq!((task.max_attempts, task.timeout_ms), (Some(7), Some(60_000)));
    assert_eq!(task.expires_at, UnixMicros::from_millis(1_800_000_000_000));
    assert_eq!(task.content.headers, BTreeMap::from([("tenant".to_owned(), "blue".to_owned())]));
    assert_eq!((task.content.payload.as_slice(), task.content.content_type.as_str()), (b"{}".as_slice(), BYTES));
    assert_eq!(task.envelope, None);
}

#[test]
fn a_message_is_known_by_its_key_or_by_its_message_id() {
    let message = |id: Option<&str>, key: Option<&str>| {
        let mut headers =
            vec![("duetime-queue".into(), said("mail")), ("duetime-on-duplicate".into(), said("version"))];
        headers.extend(key.map(|key| ("duetime-key".into(), said(key))));
        headers.extend(key.map(|_| ("duetime-version".into(), Field::I8(7))));
        let properties = Properties { headers: Some(headers), message_id: id.map(Into::into), ..Properties::default() };
        Message { properties, ..Message::default() }
            .submitted(Present::exactly(NOW), &Limits::default())
            .map(|task| task.keyed)
    };
    let keyed = |key: &str, version| BusinessKey { key: key.to_owned(), version, on_duplicate: OnDuplicate::Version };
    assert_eq!(message(Some("m-1"), Some("k")), Ok(Some(keyed("k", 7))));
    assert_eq!(message(Some("m-1"), None), Ok(Some(keyed("m-1", 0))));
    assert_eq!(message(Some(""), None).unwrap_err().field.as_deref(), Some("on_duplicate"));
}

#[test]
fn a_message_that_cannot_be_a_task_is_told_which_header_is_to_blame() {
    let queue = ("duetime-queue", said("mail"));
    for (more, field) in [
        (("duetime-delay-ms", said("soon")), "duetime-delay-ms"),
        (("duetime-delay-ms", Field::F64(1)), "duetime-delay-ms"),
        (("duetime-due-ms", Field::I64(i64::MAX)), "duetime-due-ms"),
        (("duetime-priority", Field::I64(1 << 40)), "priority"),
        (("duetime-max-attempts", Field::I64(1 << 40)), "duetime-max-attempts"),
        (("duetime-partition-key", Field::Bool(true)), "duetime-partition-key"),
        (("duetime-key", said("")), "key"),
        (("duetime-version", Field::I8(1)), "version"),
        (("duetime-on-duplicate", said("maybe")), "duetime-on-duplicate"),
        (("duetime-colour", said("blue")), "duetime-colour"),
        (("x-delay", Field::I32(5)), "x-delay"),
        (("retries", Field::I32(5)), "retries"),
        (("duetime-queue", said("no such name")), "queue"),
    ] {
        let problem = submitted(&[queue.clone(), more.clone()]).unwrap_err();
        assert_eq!(problem.field.as_deref(), Some(field), "{more:?}: {problem:?}");
    }
    assert_eq!(submitted(&[]).unwrap_err().field.as_deref(), Some("duetime-queue"));
    let large = message(&[queue], &[0; 9]).submitted(Present::exactly(NOW), &Limits { max_payload_bytes: 8 });
    assert_eq!(large.unwrap_err().status, 413);
}

#[test]
fn a_message_that_was_set_aside_and_moved_back_is_the_task_that_it_was_meant_to_be() {
    let meant = [("duetime-queue", said("mail")), ("tenant", said("blue"))];
    let aside = ASIDE_HEADERS.map(|name| (name, Field::Void));
    assert_eq!(submitted(&[&meant[..], &aside].concat()), submitted(&meant));
    // Only the very names pass: a header that a publisher misspells is refused still.
    for name in ["duetime-errors", "duetime-cc", "duetime-"] {
        let problem = submitted(&[meant[0].clone(), (name, said("x"))]).unwrap_err();
        assert_eq!(problem.field.as_deref(), Some(name), "{problem:?}");
    }
}

#[test]
fn a_delay_is_read_as_the_plugin_reads_it() {
    let f64 = |value: f64| Field::F64(value.to_bits());
    for (field, wait_ms, negated) in [
        (Field::I32(1_500), 1_500, Field::I32(-1_500)),
        (Field::U8(200), 200, Field::I64(-200)),
        (said("1500"), 1_500, Field::I64(-1_500)),
        (f64(1_500.9), 1_500, Field::I64(-1_500)),
        (Field::F32(250.5_f32.to_bits()), 250, Field::I64(-250)),
        // A year; the plugin would not have delayed it.
        (Field::I64(31_536_000_000), 31_536_000_000, Field::I64(-31_536_000_000)),
    ] {
        let task = delayed(&[("x-delay", field.clone())]).unwrap();
        assert_eq!((task.due_at, task.due_now), (after_ms(wait_ms), false), "{field:?}");
        let envelope = task.envelope.unwrap();
        assert_eq!(envelope.properties.headers, Some(vec![("x-delay".into(), negated)]));
        assert_eq!((envelope.exchange.as_str(), envelope.routing_key), ("orders", "a.b".into()));
    }
    for field in [
        Field::I32(0),
        Field::I32(-5),
        said("-5"),
        f64(0.9),
        Field::Bool(true),
        Field::Void,
        Field::Array(vec![]),
        Field::Time(60),
    ] {
        let headers = [("x-delay", field)];
        let task = delayed(&headers).unwrap();
        assert!(task.due_now && task.due_at == NOW, "{headers:?}");
        assert_eq!(task.envelope.unwrap().properties, message(&headers, b"").properties, "as it came");
    }
    for field in [said("soon"), said(""), f64(f64::NAN), f64(1e300), Field::I64(i64::MAX)] {
        assert_eq!(delayed(&[("x-delay", field)]).unwrap_err().field.as_deref(), Some("x-delay"));
    }
}

#[test]
fn the_names_of_the_plugins_successors_count_too() {
    let at = delayed(&[("x-opt-delivery-time", Field::I64(NOW.millis() + 700))]).unwrap();
    assert_eq!(at.due_at, after_ms(700));
    for past in [5, -5, i64::MIN] {
        assert!(delayed(&[("x-opt-delivery-time", Field::I64(past))]).unwrap().due_now, "{past}");
    }
    let roughly = Present { earliest: NOW, latest: after_ms(900) };
    let headers = [("x-opt-delivery-time", Field::I64(NOW.millis() + 700))];
    let at = message(&headers, b"").delayed(&DelayRoute::new("d", "o"), roughly, &Limits::default()).unwrap();
    assert_eq!((at.due_at, at.due_now), (after_ms(700), false), "it may not have passed");
    let after = delayed(&[("x-opt-delivery-delay", Field::I64(700))]).unwrap();
    assert_eq!(after.due_at, after_ms(700));
    let negated = Some(vec![("x-opt-delivery-delay".into(), Field::I64(-700))]);
    assert_eq!(after.envelope.unwrap().properties.headers, negated);
    let both = delayed(&[("x-opt-delivery-delay", Field::I64(9)), ("x-delay", Field::I64(700))]).unwrap();
    assert_eq!(both.due_at, after_ms(700));
    let moment = Field::Time(NOW.millis().unsigned_abs() / 1_000 + 60);
    assert_eq!(delayed(&[("x-opt-delivery-time", moment)]).unwrap().due_at, after_ms(60_000));
    let void = delayed(&[("x-opt-delivery-time", Field::Void), ("x-opt-delivery-delay", Field::I64(700))]).unwrap();
    assert_eq!(void.due_at, after_ms(700));
    // The first header with a value counts, also when it asks for no delay.
    for (field, due_now) in [(Field::Bool(true), false), (Field::I32(0), true), (Field::I32(-5), true)] {
        let task = delayed(&[("x-delay", field), ("x-opt-delivery-delay", Field::I64(700))]).unwrap();
        assert_eq!(task.due_now, due_now);
    }
}

#[test]
fn a_delay_of_a_type_that_the_plugins_successors_do_not_have_is_refused() {
    let (time, delay) = ("x-opt-delivery-time", "x-opt-delivery-delay");
    let mut cases = vec![(time, Field::Time(u64::MAX)), (delay, Field::Time(60))];
    for field in [
        Field::Bool(true),
        Field::Decimal { scale: 1, value: 7_000 },
        Field::Bytes("700".into()),
        Field::Array(vec![]),
        Field::Table(vec![]),
    ] {
        cases.extend([(time, field.clone()), (delay, field)]);
    }
    for (name, field) in cases {
        let problem = delayed(&[(name, field.clone())]).unwrap_err();
        assert_eq!(problem.field.as_deref(), Some(name), "{field:?}");
    }
}

#[test]
fn what_the_queue_adds_to_a_message_that_comes_again_does_not_go_on() {
    let task = delayed(&[("x-delivery-count", Field::I64(1)), ("mine", Field::Void)]).unwrap();
    assert_eq!(task.envelope.unwrap().properties.headers, Some(vec![("mine".into(), Field::Void)]));
}

#[test]
fn headers_that_could_not_be_read_back_or_sent_on_are_refused() {
    let deep = (0..=MAX_DEPTH).fold(Field::Void, |inner, _| Field::Array(vec![inner]));
    assert!(delayed(&[("deep", deep)]).is_err());
    assert!(delayed(&[("long", said(&"x".repeat(MAX_ENVELOPE_BYTES)))]).is_err());
}

#[test]
fn the_queue_of_a_delay_exchange_has_its_name_as_far_as_that_can_be_one() {
    assert_eq!(DelayRoute::new("orders.delayed", "orders").queue.as_str(), "orders.delayed");
    assert_eq!(DelayRoute::new("a b/ü", "orders").queue.as_str(), "a_b__");
}

proptest! {
    #[test]
    fn no_message_breaks_anything_and_what_is_taken_is_sound(
        names in proptest::collection::vec("(duetime-(queue|due-ms|delay-ms|priority|expires-ms|timeout-ms)|x-delay|x-opt-delivery-(time|delay)|\\PC{0,3})", 0..4),
        fields in proptest::collection::vec(field(), 4),
        body in any::<Vec<u8>>(),
    ) {
        let headers: Vec<(&str, Field)> = names.iter().map(String::as_str).zip(fields).collect();
        let message = message(&headers, &body);
        let limits = Limits { max_payload_bytes: 64 };
        let taken = [message.submitted(Present::exactly(NOW), &limits), message.delayed(&DelayRoute::new("d", "o"), Present::exactly(NOW), &limits)];
        for task in taken.into_iter().flatten() {
            prop_assert!(task.due_at >= NOW && task.due_at.is_writable());
            prop_assert!(task.due_now || task.due_at > NOW);
            prop_assert!((1..=5).contains(&task.priority) && crate::queue::check_name(task.queue.as_str()).is_ok());
            prop_assert_eq!(&task.content.payload, &body);
            prop_assert!(body.len() <= 64);
        }
    }
}
