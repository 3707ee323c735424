//! One function for each parser of outside input: it takes any bytes and panics when a property does not hold.
//!
//! `make fuzz` runs them with libFuzzer. `common/tests/fuzz.rs` runs them with their seeds and with edits of these,
//! on every toolchain. The targets of the node are in `scheduler-node/src/fuzz.rs`.

use common::{
    ids::{MessageId, TaskId},
    schedule::When,
    shard::{ShardSet, rebalance::TOLERANCE_PERCENT_MOST},
    task::{envelope::Envelope, report::ResultBody, trace::TraceContext},
    time::{Present, UnixMicros},
    wire::{
        BatchRequest, BulkCursor, BulkRequest, ChangeRequest, Cursor, KeyQuery, Limits, ListFilter, Message,
        QueueRequest, ScheduleRequest, TaskRequest, TokenRequest,
        screen::{MAX_FRAME_BYTES, Screen},
        shard::{MoveRequest, RebalanceRequest},
        submission::DelayRoute,
    },
};

const NOW: UnixMicros = UnixMicros::new(1_800_000_000_000_000);

/// The name of a target, its function, and valid inputs for it.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static [u8]]);

pub const TARGETS: &[Target] = &[
    ("task", task, &[br#"{"queue":"mail","payload":{"a":[1,2.50,null]},"due_at":"2033-05-18T03:33:20Z","headers":{"a":"b"}}"#,
        br#"{"queue":"q","key":"k","version":7,"on_duplicate":"version","partition_key":"p","depends_on":["a",{"queue":"r","key":"b"}]}"#,
        br#"{"queue":"q","payload_base64":"AP8=","content_type":"a/b","delay_ms":5,"retry":{"kind":"fixed","delay_ms":5}}"#]),
    ("batch", batch, &[br#"{"tasks":[{"queue":"q"},5,null]}"#, br#"[{"queue":"q","payload":"[[]]"}]"#]),
    ("change", change, &[br#"{"delay_ms":5,"payload":{"b":1},"priority":1,"headers":{},"expires_at":null}"#]),
    ("queue", queue, &[br#"{"settle":"result","placement":"single","max_running":3,"rate_per_second":5,"ordered":true}"#]),
    ("schedule", schedule, &[br#"{"queue":"q","cron":"0 30 9 * * MON-FRI","time_zone":"Europe/Berlin","overlap":"skip"}"#]),
    ("cron", cron, &[b"*/5 * * * *", b"0 0 29 2 *", b"15 10 ? * 6#3", b"0 0 15W * *", b"0 , * * * *"]),
    ("bulk", bulk, &[br#"{"action":"cancel","filter":{"queue":"mail","state":"scheduled","due_before":5},"dry_run":true}"#]),
    ("filter", filter, &[br#"{"queue":"mail","state":"dead","limit":5,"cursor":"AAYzn_kRAAABmfOgAABwAIAAAAAAAAAF"}"#]),
    ("cursor", cursor, &[b"AAYzn_kRAAABmfOgAABwAIAAAAAAAAAF", b"0199f3a0-0000-7000-8000-000000000005:3",
        b"eyJhY3Rpb24iOiJjYW5jZWwiLCJiZWdhbl9hdCI6MSwiZGF0YWJhc2UiOjAsIm5hbWUiOiJhIiwibWFwIjo3fQ"]),
    ("report", report, &[br#"{"status":"succeeded","status_code":200,"result":{"a":"\u0000"},"worker":"w"}"#,
        br#"{"status":"failed","retry_in_ms":-1,"progress":101,"worker":5}"#]),
    ("token", token, &[br#"{"name":"ci","role":"producer","queues":["mail.*"],"expires_after_ms":5,"limits":{"pending":5}}"#]),
    ("shard", shard, &[br#"{"shards":"0-15,20","to":"west"}"#, br#"{"dry_run":true,"tolerance_percent":5}"#]),
    ("envelope", envelope, &[br#"{"exchange":"e","routing_key":"k","properties":{"headers":[["a",{"array":[{"text":"b"}]}]]}}"#]),
    ("message", message, &[br#"{"headers":[["duetime-queue",{"text":"q"}],["x-delay",{"i32":5}]],"message_id":"m"}"#,
        br#"{"headers":[["x-delay",{"f64":4617315517961601024}],["n",{"table":[["a","void"]]}]]}"#]),
    ("screen", screen, &[b"\x02\0\x01\0\0\0\x17\0\x3c\0\0\0\0\0\0\0\0\0\x04\x20\0\0\0\0\x05\x01aI\0\0\xce",
        b"\x01\0\x01\0\0\0\x14\0\x3c\0\x3c\x01c\0\0\0\0\0\0\0\x01\0\0\x02\xff\xfe\xce\x03\0\x01\0\0\0\x01x\xce", b"\x02\0\x01\0\0\0\x0c\0\x3c\0\0\0\0\0\0\0\0\0\0\xce"]),
    ("trace", trace, &[b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-x"]),
];

fn text(data: &[u8], read: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(data) {
        read(text);
    }
}

pub fn task(data: &[u8]) {
    text(data, |text| {
        let limits = Limits { max_payload_bytes: 100 };
        if let Ok(task) = TaskRequest::parse(text).and_then(|request| request.validate(Present::exactly(NOW), &limits))
        {
            assert!((1..=5).contains(&task.priority) && task.due_at >= NOW && task.due_at.is_writable());
            assert!(task.content.payload.len() <= 100 && !task.content.content_type.contains('\0'));
        }
    });
}

pub fn batch(data: &[u8]) {
    text(data, |text| {
        for task in BatchRequest::split(text).map(|batch| batch.tasks).unwrap_or_default() {
            self::task(task.get().as_bytes());
        }
    });
}

pub fn change(data: &[u8]) {
    text(data, |text| {
        if let Ok(change) =
            ChangeRequest::parse(text).and_then(|request| request.validate(Present::exactly(NOW), &Limits::default()))
        {
            assert!(change.due_at.is_none_or(|due_at| due_at >= NOW && due_at.is_writable()));
        }
    });
}

pub fn queue(data: &[u8]) {
    text(data, |text| {
        if let Ok(policy) = QueueRequest::parse(text).and_then(QueueRequest::into_policy) {
            assert!(policy.max_attempts >= 1 && policy.timeout_ms >= 1 && policy.max_length >= 1);
        }
    });
}

pub fn schedule(data: &[u8]) {
    text(data, |text| {
        if let Ok(schedule) = ScheduleRequest::parse(text).and_then(|request| request.validate(NOW, &Limits::default()))
        {
            assert!(schedule.calendar.next_after(NOW).is_some_and(|next| next > NOW));
        }
    });
}

pub fn cron(data: &[u8]) {
    text(data, |text| {
        let when = When::Cron { cron: text.to_owned(), time_zone: "Europe/Berlin".to_owned() };
        if let Ok(calendar) = when.calendar() {
            assert!(calendar.next_times(NOW, 3).is_sorted_by(|one, next| one < next));
        }
    });
}

pub fn bulk(data: &[u8]) {
    text(data, |text| {
        if let Ok(bulk) = BulkRequest::parse(text).and_then(|request| request.validate(NOW)) {
            assert!((1..=100_000).contains(&bulk.limit) && bulk.filter.validate().is_ok());
        }
    });
}

pub fn filter(data: &[u8]) {
    text(data, |text| {
        let _ = serde_json::from_str::<KeyQuery>(text);
        if let Ok(filter) = serde_json::from_str::<ListFilter>(text)
            && filter.validate().is_ok()
        {
            assert!((1..=1_000).contains(&filter.limit()));
        }
    });
}

pub fn cursor(data: &[u8]) {
    text(data, |text| {
        if let Ok(cursor) = text.parse::<Cursor>() {
            assert_eq!(cursor.to_string().parse::<Cursor>().ok(), Some(cursor));
        }
        if let Ok(cursor) = text.parse::<BulkCursor>() {
            assert_eq!(cursor.to_string().parse::<BulkCursor>().ok(), Some(cursor));
        }
        if let Ok(id) = text.parse::<TaskId>() {
            assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
        }
        if let Ok(id) = text.parse::<MessageId>() {
            assert_eq!(id.to_string().parse::<MessageId>().ok(), Some(id));
        }
    });
}

pub fn report(data: &[u8]) {
    text(data, |text| {
        let message = ResultBody::parse_message(text.as_bytes()).map(|(report, _)| report);
        for report in [message, ResultBody::parse(text), ResultBody::parse_request(text)].into_iter().flatten() {
            assert!(report.progress.is_none_or(|progress| (0..=100).contains(&progress)));
            assert!([&report.status_msg, &report.worker].into_iter().flatten().all(|text| !text.contains('\0')));
        }
    });
}

pub fn token(data: &[u8]) {
    text(data, |text| {
        if let Ok(token) = TokenRequest::parse(text).and_then(|request| request.validate(NOW)) {
            assert!(!token.name.is_empty() && token.expires_at.is_none_or(|expires_at| expires_at > NOW));
        }
    });
}

/// A request to move shards, or one to divide the load.
pub fn shard(data: &[u8]) {
    text(data, |text| {
        if let Ok(request) = MoveRequest::parse(text) {
            let shards = request.shards.to_string();
            assert_eq!(shards.parse::<ShardSet>().ok(), Some(request.shards));
        }
        if let Ok(request) = RebalanceRequest::parse(text) {
            assert!(request.tolerance_percent() <= TOLERANCE_PERCENT_MOST);
        }
    });
}

pub fn envelope(data: &[u8]) {
    if let Ok(envelope) = serde_json::from_slice::<Envelope>(data) {
        let json = serde_json::to_string(&envelope).expect("it was JSON");
        assert!(!json.contains("\\u0000"), "PostgreSQL keeps no NUL");
        assert_eq!(serde_json::from_str::<Envelope>(&json).expect("it reads back"), envelope);
    }
}

/// Properties as JSON, and a body: the parts of a message that the node's `broker/` reads.
pub fn message(data: &[u8]) {
    let Ok(properties) = serde_json::from_slice(data) else { return };
    let message = Message { routing_key: "key".to_owned(), properties, body: data.to_vec(), ..Message::default() };
    let (limits, way) = (Limits::default(), DelayRoute::new("late", "orders"));
    for task in
        [message.submitted(Present::exactly(NOW), &limits), message.delayed(&way, Present::exactly(NOW), &limits)]
            .into_iter()
            .flatten()
    {
        assert!(task.due_at >= NOW && task.due_at.is_writable() && (1..=5).contains(&task.priority));
        if let Some(kept) = task.envelope {
            envelope(&serde_json::to_vec(&kept).expect("it can be kept"));
        }
    }
}

/// The client sees the same bytes however the input is cut, and never more bytes than the input has.
pub fn screen(data: &[u8]) {
    let screened = |piece: usize, wanted: bool| {
        let (mut screen, mut out, mut arrivals) = (Screen::default(), Vec::new(), Vec::new());
        for piece in data.chunks(piece) {
            screen.feed(piece, &mut out, |arrival| {
                arrivals.push(arrival);
                wanted
            });
        }
        (out, arrivals)
    };
    for wanted in [true, false] {
        let whole = screened(data.len().max(1), wanted);
        // A header too short for the flags of its properties gets these two bytes.
        assert!(whole.0.len() <= data.len() + 2 * whole.1.len());
        assert!(whole.1.iter().all(|of| of.weight < 8 * MAX_FRAME_BYTES + (3 << 20)));
        for piece in [1, 5, 4_096] {
            assert_eq!(screened(piece, wanted), whole);
        }
    }
}

pub fn trace(data: &[u8]) {
    text(data, |text| {
        if let Some(context) = TraceContext::parse(text) {
            assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        }
    });
}
