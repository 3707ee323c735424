//! No parser that faces the network panics, whatever a client sends, and the values it accepts are sound.
//!
//! The texts are valid ones with some bytes flipped, cut, doubled or replaced by others that parsers stumble over.
//! The same tests of AMQP messages are beside their reader, in `wire/submission/tests.rs`, and those of the
//! configuration in `config/tests.rs`.

use common::{
    ids::{MessageId, TaskId},
    queue::Placement,
    schedule::When,
    shard::ShardRange,
    task::report::ResultBody,
    time::{Present, UnixMicros},
    wire::{
        BulkCursor, BulkRequest, ChangeRequest, Cursor, Limits, QueueRequest, ScheduleRequest, TaskRequest,
        check::MAX_KEY_CHARS,
    },
};
use proptest::prelude::*;

/// Characters and tokens that often break parsers.
const HARD: [&str; 22] = [
    "\0",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "-",
    "/",
    "*",
    "null",
    "1e999",
    "-1",
    "9223372036854775808",
    "\u{fffd}",
    "ß",
    "\\ud800",
    " ",
    "0x",
    "é\u{301}",
];

const NOW: UnixMicros = UnixMicros::new(1_800_000_000_000_000);

#[derive(Clone, Debug)]
enum Edit {
    Cut(prop::sample::Index, usize),
    Double(prop::sample::Index, usize),
    Insert(prop::sample::Index, &'static str),
    Swap(prop::sample::Index, char),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = any::<prop::sample::Index>;
    let edit = prop_oneof![
        (at(), 1..9_usize).prop_map(|(at, count)| Edit::Cut(at, count)),
        (at(), 1..9_usize).prop_map(|(at, count)| Edit::Double(at, count)),
        (at(), prop::sample::select(&HARD[..])).prop_map(|(at, hard)| Edit::Insert(at, hard)),
        (at(), any::<char>()).prop_map(|(at, other)| Edit::Swap(at, other)),
    ];
    prop::collection::vec(edit, 0..5)
}

fn edited(text: &str, edits: &[Edit]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for edit in edits {
        let place = |at: &prop::sample::Index, chars: &[char]| at.index(chars.len() + 1);
        match edit {
            Edit::Cut(at, count) => {
                let from = place(at, &chars);
                let to = (from + count).min(chars.len());
                chars.drain(from..to);
            }
            Edit::Double(at, count) => {
                let from = place(at, &chars);
                let to = (from + count).min(chars.len());
                let again: Vec<char> = chars[from..to].to_vec();
                chars.splice(to..to, again);
            }
            Edit::Insert(at, hard) => {
                let from = place(at, &chars);
                chars.splice(from..from, hard.chars());
            }
            Edit::Swap(at, other) => {
                let from = place(at, &chars);
                if let Some(one) = chars.get_mut(from) {
                    *one = *other;
                }
            }
        }
    }
    chars.into_iter().collect()
}

/// One of the seeds, or any text at all, edited.
fn text(seeds: &'static [&'static str]) -> impl Strategy<Value = String> {
    let seed = prop_oneof![9 => prop::sample::select(seeds).prop_map(str::to_owned), 1 => any::<String>()];
    (seed, edits()).prop_map(|(seed, edits)| edited(&seed, &edits))
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.chars().count() <= MAX_KEY_CHARS && !key.contains('\0')
}

const TASKS: &[&str] = &[
    r#"{"queue":"mail","payload":{"a":[1,2.50,null]},"due_at":"2033-05-18T03:33:20Z","priority":2,"headers":{"a":"b"}}"#,
    r#"{"queue":"mail","payload_base64":"AP8=","content_type":"image/png","delay_ms":1500,"expires_after_ms":60000}"#,
    r#"{"queue":"q","key":"k","version":7,"on_duplicate":"version","partition_key":"p","depends_on":["a",{"queue":"r","key":"b"}]}"#,
    r#"{"queue":"q","max_attempts":3,"timeout_ms":9,"retry":{"kind":"exponential","base_ms":100,"factor":2.0,"max_ms":1000,"jitter":0.5}}"#,
];

const CHANGES: &[&str] = &[r#"{"delay_ms":5,"payload":{"b":1},"priority":1,"headers":{},"expires_at":null}"#];

const RESULTS: &[&str] = &[
    r#"{"status":"succeeded","status_code":200,"status_msg":"done","result":{"a":1},"worker":"w"}"#,
    r#"{"status":"failed","retry_in_ms":1000}"#,
    r#"{"status":"running","progress":50}"#,
];

const QUEUES: &[&str] = &[
    r#"{"settle":"result","placement":"single","max_running":3,"rate_per_second":5,"ordered":true,"priority_weights":[4,1],"max_pending":5,"max_pending_bytes":6,"max_schedules":7,"max_submits_per_second":8}"#,
    r#"{"retry":{"kind":"fixed","delay_ms":5},"max_length":10,"format":"celery","settle":"reject","exchange":"x","routing_key":"y"}"#,
];

const BULKS: &[&str] = &[
    r#"{"action":"cancel","filter":{"queue":"mail","state":"scheduled","due_before":5},"dry_run":true,"limit":5}"#,
    r#"{"action":"move","all":true,"shift_ms":-5}"#,
];

const SCHEDULES: &[&str] = &[
    r#"{"queue":"q","cron":"0 30 9 * * MON-FRI","time_zone":"Europe/Berlin","overlap":"skip","payload":1}"#,
    r#"{"queue":"q","every_ms":60000,"catch_up_ms":60000}"#,
];

const CRONS: &[&str] = &[
    "*/5 * * * *",
    "0 0 29 2 *",
    "0 30 9 * * MON-FRI",
    "0 12 L * *",
    "15 10 ? * 6#3",
    "0 0 15W * *",
    "1-59/2 0,12 1 */2 *",
];

const IDS: &[&str] = &[
    "0199f3a0-0000-7000-8000-000000000005",
    "0199f3a0000070008000000000000005",
    "0199f3a0-0000-7000-8000-000000000005:3",
];

const CURSORS: &[&str] = &[
    "AAYzn_kRAAABmfOgAABwAIAAAAAAAAAF",
    "eyJhY3Rpb24iOiJjYW5jZWwiLCJiZWdhbl9hdCI6MSwiZGF0YWJhc2UiOjAsIm5hbWUiOiJhIiwibWFwIjo3fQ",
];

const RANGES: &[&str] = &["0-127", "5-5", "0-65535"];

#[test]
fn the_texts_that_are_edited_are_accepted_as_they_are() {
    let limits = Limits::default();
    for text in TASKS {
        TaskRequest::parse(text).and_then(|request| request.validate(Present::exactly(NOW), &limits)).expect(text);
    }
    for text in CHANGES {
        ChangeRequest::parse(text).and_then(|request| request.validate(Present::exactly(NOW), &limits)).expect(text);
    }
    for text in RESULTS {
        ResultBody::parse_request(text).expect(text);
    }
    for text in QUEUES {
        QueueRequest::parse(text).and_then(QueueRequest::into_policy).expect(text);
    }
    for text in BULKS {
        BulkRequest::parse(text).and_then(|request| request.validate(NOW)).expect(text);
    }
    for text in SCHEDULES {
        ScheduleRequest::parse(text).and_then(|request| request.validate(NOW, &limits)).expect(text);
    }
    for cron in CRONS {
        let when = When::Cron { cron: (*cron).to_owned(), time_zone: "UTC".to_owned() };
        assert!(when.calendar().is_ok_and(|calendar| calendar.next_after(NOW).is_some()), "{cron}");
    }
    for text in CURSORS {
        assert!(text.parse::<Cursor>().is_ok() || text.parse::<BulkCursor>().is_ok(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn a_task_that_is_accepted_is_one_that_can_be_kept(text in text(TASKS)) {
        let limits = Limits { max_payload_bytes: 100 };
        if let Ok(task) = TaskRequest::parse(&text).and_then(|request| request.validate(Present::exactly(NOW), &limits)) {
            prop_assert!((1..=5).contains(&task.priority));
            prop_assert!(task.due_at >= NOW && task.due_at.is_writable());
            prop_assert!(task.expires_at.is_none_or(|expires_at| expires_at > task.due_at && expires_at.is_writable()));
            prop_assert!(task.content.payload.len() <= 100 && !task.content.content_type.contains('\0'));
            prop_assert!(task.queue.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(task.partition_key.iter().all(|key| is_key(key)));
            prop_assert!(task.keyed.iter().all(|keyed| is_key(&keyed.key) && keyed.version >= 0));
            prop_assert!(task.depends_on.iter().all(|other| is_key(&other.key) && other.queue.as_str().bytes().all(|byte| byte.is_ascii_graphic())));
            prop_assert!(task.content.headers.iter().all(|(name, value)| !name.to_ascii_lowercase().starts_with("x-") && !value.contains('\0')));
            prop_assert!(task.max_attempts.is_none_or(|most| most >= 1) && task.timeout_ms.is_none_or(|timeout_ms| timeout_ms >= 1));
            if let Some(retry) = task.retry {
                prop_assert!(retry.validate().is_ok());
            }
        }
    }

    #[test]
    fn a_change_that_is_accepted_can_be_made(text in text(CHANGES)) {
        if let Ok(change) = ChangeRequest::parse(&text).and_then(|request| request.validate(Present::exactly(NOW), &Limits::default())) {
            prop_assert!(change.due_at.is_none_or(|due_at| due_at >= NOW && due_at.is_writable()));
            prop_assert!(change.expires_at.flatten().is_none_or(|expires_at| expires_at > NOW));
            prop_assert!(change.priority.is_none_or(|priority| (1..=5).contains(&priority)));
        }
    }

    #[test]
    fn a_report_that_is_accepted_can_be_kept(text in text(RESULTS)) {
        let message = ResultBody::parse_message(text.as_bytes()).map(|(report, _)| report);
        for report in [message, ResultBody::parse(&text), ResultBody::parse_request(&text)].into_iter().flatten() {
            prop_assert!(report.progress.is_none_or(|progress| (0..=100).contains(&progress)));
            prop_assert!(report.retry_in_ms.is_none_or(|wait_ms| (0..=315_360_000_000).contains(&wait_ms)));
            prop_assert!([&report.status_msg, &report.worker].into_iter().flatten().all(|text| !text.contains('\0')));
            prop_assert!(report.result.is_none_or(|result| serde_json::from_str::<serde_json::Value>(result.get()).is_ok()));
        }
    }

    #[test]
    fn a_policy_that_is_accepted_is_valid(text in text(QUEUES)) {
        if let Ok(policy) = QueueRequest::parse(&text).and_then(QueueRequest::into_policy) {
            prop_assert!(policy.max_attempts >= 1 && policy.timeout_ms >= 1 && policy.max_length >= 1);
            prop_assert!(policy.max_running.is_none() || (policy.settle.needs_report() && policy.placement == Placement::Single));
            prop_assert!(policy.max_pending.is_none_or(|most| most >= 0) && policy.max_submits_per_second != Some(0));
            prop_assert!(!policy.ordered || policy.settle.needs_report());
            prop_assert!(policy.rate_per_second.is_none_or(|rate| rate.is_finite() && rate > 0.0));
        }
    }

    #[test]
    fn a_bulk_request_that_is_accepted_says_what_it_means(text in text(BULKS)) {
        if let Ok(bulk) = BulkRequest::parse(&text).and_then(|request| request.validate(NOW)) {
            prop_assert!((1..=100_000).contains(&bulk.limit));
            prop_assert!(bulk.filter.validate().is_ok());
        }
    }

    #[test]
    fn a_schedule_that_is_accepted_fires(text in text(SCHEDULES)) {
        if let Ok(schedule) = ScheduleRequest::parse(&text).and_then(|request| request.validate(NOW, &Limits::default())) {
            prop_assert!(schedule.calendar.next_after(NOW).is_some_and(|next| next > NOW));
        }
    }

    #[test]
    fn a_cron_expression_that_is_accepted_goes_forward(cron in text(CRONS), zone in prop::sample::select(&["UTC", "Europe/Berlin", "Nowhere"][..])) {
        if let Ok(calendar) = (When::Cron { cron, time_zone: zone.to_owned() }).calendar() {
            let times = calendar.next_times(NOW, 3);
            prop_assert!(times.first().is_none_or(|first| *first > NOW) && times.is_sorted_by(|one, next| one < next));
        }
    }

    #[test]
    fn ids_and_cursors_read_back_as_they_are_written(text in prop_oneof![text(IDS), text(CURSORS), text(RANGES)]) {
        if let Ok(id) = text.parse::<TaskId>() {
            prop_assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
        }
        if let Ok(id) = text.parse::<MessageId>() {
            prop_assert_eq!(id.to_string().parse::<MessageId>().ok(), Some(id));
            prop_assert!(id.attempt.number() > 0);
        }
        if let Ok(cursor) = text.parse::<Cursor>() {
            prop_assert_eq!(cursor.to_string().parse::<Cursor>().ok(), Some(cursor));
        }
        if let Ok(cursor) = text.parse::<BulkCursor>() {
            prop_assert_eq!(cursor.to_string().parse::<BulkCursor>().ok(), Some(cursor));
        }
        if let Ok(range) = text.parse::<ShardRange>() {
            prop_assert_eq!(range.to_string().parse::<ShardRange>().ok(), Some(range));
        }
    }
}
