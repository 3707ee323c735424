//! Tasks in answers.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use crate::{
    ids::{Attempt, QueueName, ShardId, TaskId},
    json::present,
    task::{NewTask, TaskState, state::CancelOutcome},
    time::UnixMicros,
    wire::check::JSON,
};

/// One task with its attempts and its result. Fields that do not apply are left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskView {
    pub id: TaskId,
    pub queue: QueueName,
    pub state: TaskState,
    pub due_at: UnixMicros,
    pub created_at: UnixMicros,
    /// The number of claims.
    pub attempt: Attempt,
    pub max_attempts: i32,
    pub priority: i16,
    pub shard: ShardId,
    pub key: Option<String>,
    /// The version of a task with a key.
    pub version: Option<i64>,
    pub partition_key: Option<String>,
    /// The payload, byte for byte as submitted. Either this or `payload_base64` is set; see [`Body`].
    #[serde(default, deserialize_with = "present")]
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    pub content_type: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    pub expires_at: Option<UnixMicros>,
    pub delivered_at: Option<UnixMicros>,
    pub finished_at: Option<UnixMicros>,
    /// The last result that the consumer reported, unchanged.
    pub result: Option<Box<RawValue>>,
    pub status_code: Option<i64>,
    pub status_msg: Option<String>,
    /// The progress in per cent, from the last report that had one.
    pub progress: Option<i16>,
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptView>,
    /// The dependencies of a waiting task, and their states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<DependencyView>,
    /// The fields that are too long for a list. A look at the task shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The payload, headers, result and error texts are left out: the caller's role shows no data, or this answers a
    /// report.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub data_hidden: bool,
    /// The consumer is to stop. A consumer that sends heartbeats over HTTP reads it here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// The request submitted a task that existed already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

impl TaskView {
    /// The view of a task that has just been written and waits for no other. `max_attempts` is its effective budget:
    /// its own, or its queue's.
    pub fn of_new(task: &NewTask, created_at: UnixMicros, max_attempts: i32) -> Self {
        let body = Body::of(task.content.payload.clone(), &task.content.content_type);
        Self {
            id: task.id,
            queue: task.queue.clone(),
            state: TaskState::Scheduled,
            due_at: task.due_at,
            created_at,
            attempt: Attempt::NONE,
            max_attempts,
            priority: task.priority,
            shard: task.id.shard(),
            key: task.keyed.as_ref().map(|keyed| keyed.key.clone()),
            version: task.keyed.as_ref().map(|keyed| keyed.version),
            partition_key: task.partition_key.clone(),
            payload: body.payload,
            payload_base64: body.payload_base64,
            content_type: task.content.content_type.clone(),
            headers: task.content.headers.clone(),
            expires_at: task.expires_at,
            delivered_at: None,
            finished_at: None,
            result: None,
            status_code: None,
            status_msg: None,
            progress: None,
            worker: None,
            attempts: Vec::new(),
            depends_on: Vec::new(),
            left_out: Vec::new(),
            data_hidden: false,
            stopping: false,
            duplicate: false,
        }
    }

    /// Leaves out the data: the task's content, the results of its consumers and the error texts of its attempts. The
    /// rest shows the task's progress: names, keys, moments, numbers, `worker`, and the fixed reason word of each
    /// attempt.
    #[must_use]
    pub fn without_data(self) -> Self {
        let left_out = self.left_out.into_iter().filter(|field| field == "attempts").collect();
        let attempts = self.attempts.into_iter().map(|attempt| AttemptView { error: None, ..attempt }).collect();
        Self {
            payload: None,
            payload_base64: None,
            headers: BTreeMap::new(),
            result: None,
            status_msg: None,
            attempts,
            left_out,
            data_hidden: true,
            ..self
        }
    }
}

/// A payload in JSON: unchanged when it is JSON, else in base64. Exactly one of the two fields is set.
#[derive(Clone, Debug)]
pub struct Body {
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
}

impl Body {
    pub fn of(bytes: Vec<u8>, content_type: &str) -> Self {
        if content_type != JSON {
            return Self::encoded(&bytes);
        }
        match String::from_utf8(bytes) {
            Ok(text) => match serde_json::from_str::<&RawValue>(&text) {
                Ok(json) if json.get().len() == text.len() => {
                    Self { payload: Some(json.to_owned()), payload_base64: None }
                }
                // The payload is not JSON after all, or has blanks around it that must not be lost.
                _ => Self::encoded(text.as_bytes()),
            },
            Err(not_text) => Self::encoded(not_text.as_bytes()),
        }
    }

    /// The same for a line of its own. JSON with a line break goes in base64 too, so that no byte of it changes.
    pub fn in_one_line(bytes: Vec<u8>, content_type: &str) -> Self {
        let has_break = bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
        if has_break { Self::encoded(&bytes) } else { Self::of(bytes, content_type) }
    }

    fn encoded(bytes: &[u8]) -> Self {
        Self { payload: None, payload_base64: Some(STANDARD.encode(bytes)) }
    }
}

/// One dependency of a task.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependencyView {
    pub queue: QueueName,
    pub key: String,
    /// The state of the newest task with that key, if there is one and the caller's scope has its queue. `dead`,
    /// `cancelled`, `expired` and `superseded` do not end the wait: that task must be retried, or a new one with its
    /// key must succeed.
    pub state: Option<TaskState>,
}

impl DependencyView {
    /// The state for a person to read.
    pub fn state_text(&self) -> &'static str {
        self.state.map_or("not submitted or not visible", TaskState::text)
    }
}

/// One attempt that is over.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptView {
    pub attempt: Attempt,
    pub claimed_at: Option<UnixMicros>,
    pub ended_at: Option<UnixMicros>,
    /// `timeout`, `rejected`, `failed`, `discarded` or `unroutable`.
    pub reason: Option<String>,
    /// The consumer's error text.
    pub error: Option<String>,
    /// The RabbitMQ user who reported it, if the message named one.
    pub by: Option<String>,
}

/// The short answer to one task of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReceipt {
    pub id: TaskId,
    pub queue: QueueName,
    pub state: TaskState,
    pub due_at: UnixMicros,
    pub shard: ShardId,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The answer to a successful cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAnswer {
    pub id: TaskId,
    pub outcome: CancelOutcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Content, ValidTask};

    fn task(payload: &[u8], content_type: &str) -> NewTask {
        let task = ValidTask {
            queue: QueueName::new("q"),
            due_at: UnixMicros::new(1),
            due_now: false,
            content: Content {
                payload: payload.to_vec(),
                content_type: content_type.to_owned(),
                headers: BTreeMap::new(),
            },
            priority: 3,
            keyed: None,
            partition_key: None,
            depends_on: Vec::new(),
            max_attempts: None,
            timeout_ms: None,
            retry: None,
            expires_at: None,
            envelope: None,
        };
        NewTask { id: TaskId::from_uuid(uuid::Uuid::from_u128(0x0abc_0005)), task }
    }

    #[test]
    fn a_new_task_shows_what_applies_and_nothing_else() {
        let view = TaskView::of_new(&task(br#"{"b": 1.0}"#, JSON), UnixMicros::new(0), 25);
        let json = serde_json::to_string(&view).unwrap();
        let expected = concat!(
            r#"{"id":"00000000-0000-0000-0000-00000abc0005","queue":"q","state":"scheduled","#,
            r#""due_at":"1970-01-01T00:00:00.000001Z","created_at":"1970-01-01T00:00:00.000000Z","#,
            r#""attempt":0,"max_attempts":25,"priority":3,"shard":5,"payload":{"b": 1.0},"#,
            r#""content_type":"application/json"}"#,
        );
        assert_eq!(json, expected);
    }

    #[test]
    fn a_view_without_data_tells_how_the_task_stands_and_nothing_that_was_said() {
        let said = r#"{"n":"SECRET"}"#;
        let whole: TaskView = serde_json::from_value(serde_json::json!({
            "id": "00000000-0000-0000-0000-00000abc0005", "queue": "q", "state": "dead", "due_at": "2030-01-01T00:00:00Z",
            "created_at": "2030-01-01T00:00:00Z", "attempt": 1, "max_attempts": 1, "priority": 3, "shard": 5, "key": "k",
            "payload": { "n": "SECRET" }, "payload_base64": "SECRET", "content_type": "application/json",
            "headers": { "x": "SECRET" }, "result": { "n": "SECRET" }, "status_code": 7, "status_msg": "SECRET", "worker": "w",
            "attempts": [{ "attempt": 1, "reason": "rejected", "error": "SECRET" }],
        }))
        .unwrap();
        assert_eq!(whole.payload.as_deref().map(RawValue::get), Some(said));
        let json = serde_json::to_value(whole.without_data()).unwrap();
        assert!(!json.to_string().contains("SECRET"), "{json}");
        assert_eq!(json["data_hidden"], true);
        assert_eq!((&json["key"], &json["worker"], &json["status_code"]), (&"k".into(), &"w".into(), &7.into()));
        assert_eq!(json["attempts"], serde_json::json!([{ "attempt": 1, "reason": "rejected" }]));
    }

    #[test]
    fn a_view_reads_back_even_when_its_payload_is_null() {
        let view = TaskView::of_new(&task(b"null", JSON), UnixMicros::new(0), 25);
        let json = serde_json::to_string(&TaskView { duplicate: true, ..view }).unwrap();
        let read: TaskView = serde_json::from_str(&json).unwrap();
        assert_eq!(read.payload.as_deref().map(RawValue::get), Some("null"));
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        assert!(json.contains(r#""duplicate":true"#));
    }

    #[test]
    fn what_is_not_json_is_shown_in_base64() {
        for (payload, content_type) in [
            (&b"\x00\xff"[..], "image/png"),
            (b"\xff", JSON),
            (b"{", JSON),
            (b" 1", JSON),
            (b"1", "text/plain"),
            (b"", JSON),
        ] {
            let body = Body::of(payload.to_vec(), content_type);
            assert!(body.payload.is_none(), "{payload:?}");
            assert_eq!(STANDARD.decode(body.payload_base64.unwrap()).unwrap(), payload);
        }
    }

    #[test]
    fn a_cancel_says_what_it_promises() {
        let id = TaskId::from_uuid(uuid::Uuid::nil());
        let answer = |outcome| serde_json::to_value(CancelAnswer { id, outcome }).unwrap()["outcome"].clone();
        assert_eq!(answer(CancelOutcome::Cancelled), "cancelled");
        assert_eq!(answer(CancelOutcome::NoFurtherAttempts), "no_further_attempts");
    }
}
