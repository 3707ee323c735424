//! The checks of `duetime.submit`. It refuses what a node refuses for its values alone, and takes everything else.

use common::{
    task::OnDuplicate,
    time::{Present, UnixMicros},
    wire::{Limits, TaskRequest},
};
use serde_json::{Value, json};
use sqlx::{PgConnection, postgres::PgDatabaseError};

use super::{
    fixture::{self, TestDatabase},
    inbox::{submit, waiting},
};

/// The largest payload that any configuration allows.
const LIMITS: Limits = Limits { max_payload_bytes: 1 << 20 };

/// The arguments of one call of `duetime.submit`.
#[derive(Clone, Debug)]
struct Submission {
    queue: String,
    /// `null`: none.
    payload: Value,
    due_at: UnixMicros,
    key: Option<String>,
    options: Value,
}

impl Submission {
    fn new(due_at: UnixMicros) -> Self {
        Self { queue: "mail".to_owned(), payload: json!({ "a": 1 }), due_at, key: None, options: json!({}) }
    }

    fn options(&self, options: Value) -> Self {
        Self { options, ..self.clone() }
    }

    fn keyed(&self, options: Value) -> Self {
        Self { key: Some("k".to_owned()), options, ..self.clone() }
    }

    fn without_payload(&self, options: Value) -> Self {
        Self { payload: Value::Null, options, ..self.clone() }
    }

    fn queue(&self, queue: impl Into<String>) -> Self {
        Self { queue: queue.into(), ..self.clone() }
    }

    fn due_at(&self, due_at: UnixMicros) -> Self {
        Self { due_at, ..self.clone() }
    }
}

/// The field for which the database refuses the submission.
async fn refused_in_sql(connection: &mut PgConnection, submission: &Submission) -> Option<String> {
    let Submission { queue, payload, due_at, key, options } = submission;
    let submitted = sqlx::query("SELECT duetime.submit($1, $2, $3, $4, $5)")
        .bind(queue)
        .bind(Some(payload).filter(|payload| !payload.is_null()))
        .bind(due_at.to_utc())
        .bind(key)
        .bind(options)
        .execute(connection)
        .await;
    let error = submitted.err()?;
    let told = error.as_database_error().expect("an answer").downcast_ref::<PgDatabaseError>();
    assert_eq!(told.code(), "22023", "{submission:?}: {told}");
    let field = told.column().unwrap_or_else(|| panic!("{submission:?}: {told}"));
    assert!(told.message().contains(&format!("`{field}` must be")), "{submission:?}: {told}");
    Some(field.to_owned())
}

/// The field for which a node refuses the row of the submission.
fn refused_by_a_node(submission: &Submission, now: UnixMicros) -> Option<String> {
    let Submission { queue, payload, due_at, key, options } = submission;
    let mut request = options.clone();
    let own = json!({ "queue": queue, "payload": payload, "due_at": due_at, "key": key });
    request.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
    let read = TaskRequest::parse(&request.to_string());
    let problem = read.and_then(|request| request.validate(Present::exactly(now), &LIMITS)).err()?;
    let field = problem.field.as_deref().unwrap_or_else(|| panic!("{submission:?}: {problem}"));
    field.split('.').next().map(str::to_owned)
}

/// Submits both ways. `field`: the one that both refuse; `None`: both take the submission.
async fn judge(test: &TestDatabase, now: UnixMicros, cases: Vec<(Submission, Option<&str>)>) {
    let mut connection = test.pool.acquire().await.unwrap();
    for (submission, field) in cases {
        assert_eq!(refused_by_a_node(&submission, now).as_deref(), field, "by a node: {submission:?}");
        assert_eq!(refused_in_sql(&mut connection, &submission).await.as_deref(), field, "in SQL: {submission:?}");
    }
}

/// A database, its time, and a submission for then.
async fn begin() -> (TestDatabase, UnixMicros, Submission) {
    let test = fixture::database().await;
    let now = fixture::now(&test.pool).await;
    (test, now, Submission::new(now))
}

#[tokio::test]
async fn a_number_is_refused_in_sql_where_a_node_refuses_it() {
    let (test, now, plain) = begin().await;
    let mut cases = Vec::new();
    for (field, first, last) in [
        ("priority", 1, 5),
        ("max_attempts", 1, 1_000),
        ("timeout_ms", 1, 31_536_000_000),
        ("expires_after_ms", 1, 250_000_000_000_000),
        ("version", 0, i64::MAX),
    ] {
        let with = |value: Value| plain.keyed(json!({ field: value }));
        let taken = [json!(first), json!(last), Value::Null];
        let refused = [json!(first - 1), json!(last.unsigned_abs() + 1), json!(-5), json!(i64::MIN), json!(u64::MAX)];
        cases.extend(taken.map(|value| (with(value), None)));
        cases.extend(refused.map(|value| (with(value), Some(field))));
        cases.extend([json!("1"), json!(1.5), json!(true), json!([])].map(|value| (with(value), Some(field))));
    }
    judge(&test, now, cases).await;
}

#[tokio::test]
async fn an_option_that_needs_another_one_is_refused_in_sql_without_it() {
    let (test, now, plain) = begin().await;
    let on_key = [json!({ "version": 1 }), json!({ "on_duplicate": "replace" })];
    let mut cases = Vec::new();
    for (options, field) in on_key.into_iter().zip(["version", "on_duplicate"]) {
        cases.push((plain.options(options.clone()), Some(field)));
        cases.push((plain.keyed(options), None));
    }
    for one in OnDuplicate::ALL {
        cases.push((plain.keyed(json!({ "on_duplicate": one.text() })), None));
    }
    cases.extend([
        (plain.keyed(json!({ "on_duplicate": "never" })), Some("on_duplicate")),
        (plain.options(json!({ "version": null, "on_duplicate": null })), None),
        (plain.options(json!({ "content_type": "application/json" })), None),
        (plain.options(json!({ "content_type": "text/plain" })), Some("content_type")),
        (plain.options(json!({ "content_type": "" })), Some("content_type")),
        (plain.without_payload(json!({ "content_type": "text/plain" })), Some("content_type")),
        (plain.options(json!({ "payload_base64": "AP8=" })), Some("payload_base64")),
        (plain.options(json!({ "payload_base64": null })), None),
    ]);
    judge(&test, now, cases).await;
}

#[tokio::test]
async fn a_queue_and_a_time_are_refused_in_sql_where_a_node_refuses_them() {
    let (test, now, plain) = begin().await;
    let mut cases = Vec::new();
    // Only with an option does the whole check decide.
    for plain in [plain.clone(), plain.options(json!({ "priority": 2 }))] {
        for name in ["amq.x", "duetime.submit", "amq.", "a b", ""] {
            cases.push((plain.queue(name), Some("queue")));
        }
        for name in ["amq", "duetime", "AMQ.x", "my.amq.x", "a.b_c-D9"] {
            cases.push((plain.queue(name), None));
        }
        cases.push((plain.queue("x".repeat(128)), None));
        cases.push((plain.queue("x".repeat(129)), Some("queue")));
        cases.push((plain.due_at(UnixMicros::LAST), None));
        cases.push((plain.due_at(UnixMicros::new(UnixMicros::LAST.micros() + 1)), Some("due_at")));
    }
    judge(&test, now, cases).await;
}

#[tokio::test]
async fn a_task_that_would_expire_before_it_is_due_is_refused_in_sql() {
    let (test, now, plain) = begin().await;
    let late = plain.due_at(now.shifted(3_600_000));
    let expires_at = |micros: i64| json!({ "expires_at": UnixMicros::new(late.due_at.micros() + micros) });
    judge(
        &test,
        now,
        vec![
            (late.options(expires_at(0)), Some("expires_at")),
            (late.options(expires_at(1)), None),
            (late.options(json!({ "expires_at": late.due_at.millis() })), Some("expires_at")),
            (late.options(json!({ "expires_at": late.due_at.millis() + 1 })), None),
            (late.options(json!({ "expires_after_ms": 1_000 })), Some("expires_after_ms")),
            (late.options(json!({ "expires_after_ms": 7_200_000 })), None),
            (plain.options(json!({ "expires_at": now })), Some("expires_at")),
            (plain.due_at(now.shifted(-3_600_000)).options(json!({ "expires_at": now })), Some("expires_at")),
            (plain.options(json!({ "expires_at": "2131-01-01T00:00:00Z", "expires_after_ms": null })), None),
            (
                plain.options(json!({ "expires_at": "2131-01-01T00:00:00Z", "expires_after_ms": 1_000 })),
                Some("expires_after_ms"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_time_of_expiry_that_a_node_cannot_read_is_refused_in_sql() {
    let (test, now, plain) = begin().await;
    let with = |expires_at: Value| plain.options(json!({ "expires_at": expires_at }));
    let taken = [
        json!("2131-02-04T00:00:00Z"),
        json!("2131-02-04 23:59:59.123456789z"),
        json!("2131-02-04T23:59:60Z"),
        json!("2128-02-29t12:00:00-11:30"),
        json!("9999-12-31T23:59:59Z"),
        json!(5_000_000_000_000_i64),
        json!(5_000_000_000_000.0),
        json!(UnixMicros::LAST.millis()),
        Value::Null,
    ];
    let refused = [
        json!("tomorrow"),
        json!("infinity"),
        json!(""),
        json!("5000000000000"),
        json!("2131-02-04"),
        json!("2131-02-04T00:00:00"),
        json!("2131-02-04T00:00Z"),
        json!("2131-02-30T00:00:00Z"),
        json!("2131-13-01T00:00:00Z"),
        json!("2131-02-04T24:00:00Z"),
        json!("2131-02-04T00:60:00Z"),
        json!("2131-02-04T00:00:61Z"),
        json!("2131-02-04T00:00:00.Z"),
        json!("2131-02-04T00:00:00 UTC"),
        json!("2131-02-04T00:00:00+0100"),
        json!("9999-12-31T23:59:59.5Z"),
        json!("9999-12-31T23:59:59-01:00"),
        json!("12131-02-04T00:00:00Z"),
        json!(5_000_000_000_000.5),
        json!(UnixMicros::LAST.millis() + 1_000),
        json!(u64::MAX),
        json!(true),
        json!({}),
    ];
    let taken = taken.map(|value| (with(value), None));
    let refused = refused.map(|value| (with(value), Some("expires_at")));
    judge(&test, now, taken.into_iter().chain(refused).collect()).await;
}

#[tokio::test]
async fn a_retry_policy_is_refused_in_sql_where_a_node_refuses_it() {
    let (test, now, plain) = begin().await;
    let with = |retry: Value| plain.options(json!({ "retry": retry }));
    let exponential = |more: Value| {
        let mut policy = json!({ "kind": "exponential", "base_ms": 500 });
        policy.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        policy
    };
    let taken = [
        json!({ "kind": "polynomial" }),
        json!({ "kind": "immediate" }),
        json!({ "kind": "fixed", "delay_ms": 1 }),
        json!({ "kind": "fixed", "delay_ms": 315_360_000_000_i64 }),
        json!({ "kind": "fixed", "delay_ms": 5.0 }),
        exponential(json!({})),
        exponential(json!({ "factor": 1, "jitter": 0, "max_ms": 500 })),
        exponential(json!({ "factor": 100.0, "jitter": 1.0, "max_ms": 315_360_000_000_i64 })),
        exponential(json!({ "base_ms": 315_360_000_000_i64 })),
    ];
    let refused = [
        json!({ "kind": "never" }),
        json!({}),
        json!(["immediate"]),
        json!("immediate"),
        json!({ "kind": "immediate", "delay_ms": 5 }),
        json!({ "kind": "polynomial", "delay_ms": null }),
        json!({ "kind": "fixed" }),
        json!({ "kind": "fixed", "delay_ms": null }),
        json!({ "kind": "fixed", "delay_ms": "5" }),
        json!({ "kind": "fixed", "delay_ms": 0 }),
        json!({ "kind": "fixed", "delay_ms": 1.5 }),
        json!({ "kind": "fixed", "delay_ms": 315_360_000_001_i64 }),
        json!({ "kind": "fixed", "delay_ms": 5, "jitter": 0.1 }),
        json!({ "kind": "exponential" }),
        json!({ "kind": "exponential", "max_ms": 500 }),
        exponential(json!({ "colour": 1 })),
        exponential(json!({ "base_ms": "500", "max_ms": 500 })),
        exponential(json!({ "base_ms": 0 })),
        exponential(json!({ "max_ms": 499 })),
        exponential(json!({ "max_ms": 315_360_000_001_i64 })),
        exponential(json!({ "factor": 0.9 })),
        exponential(json!({ "factor": 100.5 })),
        exponential(json!({ "jitter": -0.1 })),
        exponential(json!({ "jitter": 1.1 })),
    ];
    let taken = taken.map(|value| (with(value), None));
    let refused = refused.map(|value| (with(value), Some("retry")));
    judge(&test, now, taken.into_iter().chain(refused).collect()).await;
}

#[tokio::test]
async fn headers_are_refused_in_sql_where_a_node_refuses_them() {
    let (test, now, plain) = begin().await;
    let with = |headers: Value| plain.options(json!({ "headers": headers }));
    let many = |count: usize| (0..count).map(|number| (format!("h{number}"), json!("v"))).collect::<Value>();
    let taken = [
        json!({}),
        json!({ "tenant": "", "cc": "a", "Bcc": "b", "xa": "c", "my-x-a": "d", "duetime": "e" }),
        json!({ "x".repeat(255): "ü" }),
        many(64),
        json!({ "a": "x".repeat(8_191) }),
    ];
    let refused = [
        json!({ "x-a": "1" }),
        json!({ "X-A": "1" }),
        json!({ "Duetime-Attempt": "1" }),
        json!({ "CC": "1" }),
        json!({ "BCC": "1" }),
        json!({ "": "1" }),
        json!({ "ü".repeat(128): "1" }),
        json!({ "a": 1 }),
        json!({ "a": null }),
        json!([]),
        many(65),
        json!({ "a": "x".repeat(8_192) }),
    ];
    let taken = taken.map(|value| (with(value), None));
    let refused = refused.map(|value| (with(value), Some("headers")));
    judge(&test, now, taken.into_iter().chain(refused).collect()).await;
}

#[tokio::test]
async fn bytes_and_their_type_are_refused_in_sql_where_a_node_refuses_them() {
    let (test, now, plain) = begin().await;
    let mut cases = Vec::new();
    for base64 in ["", "AP8=", "AA==", "abcd", "+/+/"] {
        cases.push((plain.without_payload(json!({ "payload_base64": base64 })), None));
    }
    for base64 in ["?", "AP8", "AP9=", "AB==", "A===", "=", "====", "AP8=AP8=", "AP8=\n", "AP 8", "-_-_", "ü"] {
        cases.push((plain.without_payload(json!({ "payload_base64": base64 })), Some("payload_base64")));
    }
    let typed =
        |content_type: String| plain.without_payload(json!({ "payload_base64": "AP8=", "content_type": content_type }));
    for content_type in ["image/png".to_owned(), "ü".to_owned(), "x".repeat(255)] {
        cases.push((typed(content_type), None));
    }
    for content_type in ["", "a\tb", "a\u{1}", "\u{7f}", "\u{85}"] {
        cases.push((typed(content_type.to_owned()), Some("content_type")));
    }
    cases.push((typed("ü".repeat(128)), Some("content_type")));
    judge(&test, now, cases).await;
}

#[tokio::test]
async fn keys_and_dependencies_are_refused_in_sql_where_a_node_refuses_them() {
    let (test, now, plain) = begin().await;
    let on = |list: Value| plain.keyed(json!({ "partition_key": "p", "depends_on": list }));
    let many = |count: usize| (0..count).map(|number| json!(format!("k{number}"))).collect::<Value>();
    let taken = [json!([]), json!(["a", "a", { "queue": "pay", "key": "k" }]), json!(["ü".repeat(256)]), many(100)];
    let refused = [
        json!("a"),
        json!([""]),
        json!(["x".repeat(257)]),
        json!([null]),
        json!([["mail", "a"]]),
        json!([{ "queue": "pay" }]),
        json!([{ "key": "a" }]),
        json!([{ "queue": "pay", "key": 5 }]),
        json!([{ "queue": "pay", "key": "a", "shard": 1 }]),
        json!([{ "queue": "no blanks", "key": "a" }]),
        json!([{ "queue": "amq.x", "key": "a" }]),
        json!(["a", "k"]),
        json!([{ "queue": "mail", "key": "k" }]),
        many(101),
    ];
    let mut cases: Vec<_> = taken.map(|list| (on(list), None)).into_iter().collect();
    cases.extend(refused.map(|list| (on(list), Some("depends_on"))));
    for text in ["ü".repeat(0), "ü".repeat(257)] {
        cases.push((plain.options(json!({ "partition_key": text })), Some("partition_key")));
        cases.push((Submission { key: Some(text), ..plain.clone() }, Some("key")));
    }
    cases.push((plain.options(json!({ "partition_key": "ü".repeat(256) })), None));
    cases.push((Submission { key: Some("ü".repeat(256)), ..plain }, None));
    judge(&test, now, cases).await;
}

#[tokio::test]
async fn dependencies_need_a_partition_key_unless_the_queue_is_on_one_shard() {
    let (test, _, plain) = begin().await;
    let mut connection = test.pool.acquire().await.unwrap();
    let policy = "INSERT INTO duetime.queue (name, policy) VALUES ('one', '{\"placement\": \"single\"}')";
    sqlx::query(policy).execute(&mut *connection).await.unwrap();
    let on = |list: Value| plain.options(json!({ "depends_on": list }));
    for (submission, field) in [
        (on(json!(["a"])), Some("depends_on")),
        (on(json!([])), None),
        (on(json!(["a"])).queue("one"), None),
        (plain.options(json!({ "depends_on": ["a"], "partition_key": "p" })), None),
    ] {
        assert_eq!(refused_in_sql(&mut connection, &submission).await.as_deref(), field, "{submission:?}");
    }
}

#[tokio::test]
async fn the_largest_version_arrives() {
    let test = fixture::database().await;
    let options = json!({ "version": i64::MAX });
    submit(&test, &format!("'mail', '{{}}', key => 'k', options => '{options}'")).await;
    let arrived = waiting(&test).await.remove(0);
    assert_eq!(arrived.keyed.as_ref().map(|keyed| keyed.version), Some(i64::MAX));
}
