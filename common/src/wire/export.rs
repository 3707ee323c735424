//! Exported tasks: one JSON object a line, with every field of a submission, and the progress of each task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use crate::{
    ids::{Attempt, QueueName, TaskId},
    json::present,
    retry::RetryPolicy,
    task::{Dependency, Envelope, TaskState},
    time::UnixMicros,
    wire::AttemptView,
};

/// One exported task. Fields that do not apply are left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportedTask {
    pub id: TaskId,
    pub queue: QueueName,
    pub state: TaskState,
    pub due_at: UnixMicros,
    pub created_at: UnixMicros,
    /// The number of claims.
    pub attempt: Attempt,
    pub priority: i16,
    pub key: Option<String>,
    /// The version of a task with a key.
    pub version: Option<i64>,
    pub partition_key: Option<String>,
    /// The payload, byte for byte as submitted. Either this or `payload_base64` is set; JSON with line breaks is in the
    /// latter.
    #[serde(default, deserialize_with = "present")]
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    pub content_type: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    pub expires_at: Option<UnixMicros>,
    /// The task's own value; without one, the queue's applies. `timeout_ms` and `retry` work alike.
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    /// The dependencies that have not succeeded yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
    /// The envelope of a message that waits here for a delay exchange. Such a message cannot be submitted as a task.
    pub envelope: Option<Box<Envelope>>,
    pub delivered_at: Option<UnixMicros>,
    pub finished_at: Option<UnixMicros>,
    pub result: Option<Box<RawValue>>,
    pub status_code: Option<i64>,
    pub status_msg: Option<String>,
    pub progress: Option<i16>,
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptView>,
}

/// The last line: an export without it is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportEnd {
    pub exported: u64,
}

/// The submission that recreates an exported task.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct Resubmission<'a> {
    pub queue: &'a QueueName,
    pub due_at: UnixMicros,
    pub priority: i16,
    pub key: Option<String>,
    pub version: Option<i64>,
    pub partition_key: Option<&'a str>,
    pub payload: Option<&'a RawValue>,
    pub payload_base64: Option<&'a str>,
    pub content_type: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: &'a BTreeMap<String, String>,
    pub expires_at: Option<UnixMicros>,
    pub max_attempts: Option<i32>,
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "<[Dependency]>::is_empty")]
    pub depends_on: &'a [Dependency],
}

impl ExportedTask {
    /// The submission of this task. With `key_from_id`, a task without a key gets its old id as key.
    pub fn resubmission(&self, key_from_id: bool) -> Resubmission<'_> {
        let own_id = || key_from_id.then(|| self.id.to_string());
        Resubmission {
            queue: &self.queue,
            due_at: self.due_at,
            priority: self.priority,
            key: self.key.clone().or_else(own_id),
            version: self.version,
            partition_key: self.partition_key.as_deref(),
            payload: self.payload.as_deref(),
            payload_base64: self.payload_base64.as_deref(),
            content_type: &self.content_type,
            headers: &self.headers,
            expires_at: self.expires_at,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry,
            depends_on: &self.depends_on,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Limits, TaskRequest};

    const FULL: &str = concat!(
        r#"{"id":"00000000-0000-0000-0000-00000abc0005","queue":"q","state":"dead","#,
        r#""due_at":"2033-05-18T03:33:20.000001Z","created_at":"1970-01-01T00:00:00.000000Z","attempt":2,"priority":1,"#,
        r#""key":"k","version":7,"partition_key":"p","payload":{"b": 1.0},"content_type":"application/json","#,
        r#""headers":{"a":"b"},"expires_at":"2033-05-18T03:33:21.000000Z","max_attempts":3,"timeout_ms":9,"#,
        r#""retry":{"kind":"fixed","delay_ms":5},"depends_on":[{"queue":"r","key":"first"}],"finished_at":"1970-01-01T00:00:00.000000Z","#,
        r#""attempts":[{"attempt":1,"reason":"failed","error":"no"}]}"#,
    );

    fn resubmitted(line: &str, key_from_id: bool) -> crate::task::ValidTask {
        let task: ExportedTask = serde_json::from_str(line).unwrap();
        let request = serde_json::to_string(&task.resubmission(key_from_id)).unwrap();
        TaskRequest::parse(&request)
            .unwrap()
            .validate(crate::time::Present::exactly(UnixMicros::new(5)), &Limits::default())
            .unwrap()
    }

    #[test]
    fn a_line_reads_back_as_it_was() {
        let task: ExportedTask = serde_json::from_str(FULL).unwrap();
        assert_eq!(serde_json::to_string(&task).unwrap(), FULL);
    }

    #[test]
    fn every_field_of_a_submission_is_submitted_again() {
        let task = resubmitted(FULL, true);
        assert_eq!((task.queue.as_str(), task.due_at.micros(), task.priority), ("q", 2_000_000_000_000_001, 1));
        let keyed = task.keyed.unwrap();
        assert_eq!((keyed.key.as_str(), keyed.version, task.partition_key.as_deref()), ("k", 7, Some("p")));
        assert_eq!(task.content.payload, br#"{"b": 1.0}"#);
        assert_eq!(task.content.headers["a"], "b");
        assert_eq!((task.max_attempts, task.timeout_ms), (Some(3), Some(9)));
        assert_eq!(task.retry, Some(RetryPolicy::Fixed { delay_ms: 5 }));
        assert_eq!(task.expires_at.map(UnixMicros::micros), Some(2_000_000_001_000_000));
    }

    #[test]
    fn a_task_without_a_key_may_take_its_old_id_as_one() {
        let line = FULL.replace(r#""key":"k","version":7,"#, "");
        assert_eq!(resubmitted(&line, false).keyed, None);
        assert_eq!(resubmitted(&line, true).keyed.unwrap().key, "00000000-0000-0000-0000-00000abc0005");
    }

    #[test]
    fn bytes_and_null_are_payloads() {
        let payload = r#""payload":{"b": 1.0},"content_type":"application/json""#;
        let null = resubmitted(&FULL.replace(payload, r#""payload":null,"content_type":"application/json""#), false);
        assert_eq!(null.content.payload, b"null");
        let line = FULL.replace(payload, r#""payload_base64":"AP8=","content_type":"image/png""#);
        let bytes = resubmitted(&line, false);
        assert_eq!((bytes.content.payload, bytes.content.content_type.as_str()), (vec![0, 255], "image/png"));
    }
}
