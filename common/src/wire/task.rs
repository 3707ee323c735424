//! A submitted task.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    field::FieldError,
    ids::QueueName,
    json, queue,
    retry::RetryPolicy,
    task::{BusinessKey, Content, OnDuplicate, ValidTask, trace::Upstream},
    time::{Present, UnixMicros},
    wire::{
        Limits, Problem,
        check::{DEFAULT_PRIORITY, JSON, body, check_headers, check_key, check_priority, due, expiry, read_headers},
        dependency::{FirstDependencies, check_dependencies},
        read,
    },
};

/// A task in a request. Absent and `null` mean the same.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    pub queue: String,
    /// The payload; it is kept byte for byte.
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    pub content_type: Option<String>,
    #[serde(default, deserialize_with = "json::whole")]
    pub delay_ms: Option<i64>,
    pub due_at: Option<UnixMicros>,
    pub partition_key: Option<String>,
    #[serde(default, deserialize_with = "json::whole")]
    pub priority: Option<i16>,
    #[serde(default, deserialize_with = "json::whole")]
    pub max_attempts: Option<i32>,
    #[serde(default, deserialize_with = "json::whole")]
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub expires_at: Option<UnixMicros>,
    #[serde(default, deserialize_with = "json::whole")]
    pub expires_after_ms: Option<i64>,
    #[serde(default, deserialize_with = "read_headers")]
    pub headers: Option<BTreeMap<String, String>>,
    pub key: Option<String>,
    #[serde(default, deserialize_with = "json::whole")]
    pub version: Option<i64>,
    pub on_duplicate: Option<OnDuplicate>,
    pub depends_on: Option<FirstDependencies>,
    /// The caller's place in a trace, if the request names one beside the task.
    #[serde(skip)]
    pub upstream: Option<Upstream>,
}

impl TaskRequest {
    /// Reads one task; the problem names the field.
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }

    /// Checks everything that needs no look-up. `now` is the moment of the submission. `duetime.submit_check` in the
    /// database has the same rules, so that a submission in SQL is refused before its commit; a new one goes there too.
    pub fn validate(self, now: Present, limits: &Limits) -> Result<ValidTask, Problem> {
        queue::check_name(&self.queue)?;
        let (due_at, due_now) = due(self.due_at, self.delay_ms, now)?.unwrap_or((now.latest, true));
        let expires_at = expiry(self.expires_at, self.expires_after_ms, now.latest)?;
        if let Some(expires_at) = expires_at.filter(|expires_at| *expires_at <= due_at) {
            let field = if self.expires_at.is_some() { "expires_at" } else { "expires_after_ms" };
            let detail = format!("the task would expire at {expires_at}, before it is due at {due_at}");
            return Err(Problem::invalid_field(field, detail));
        }
        let priority = self.priority.unwrap_or(DEFAULT_PRIORITY);
        check_priority(priority)?;
        if let Some(max_attempts) = self.max_attempts {
            FieldError::within("max_attempts", max_attempts, 1, queue::MAX_ATTEMPTS)?;
        }
        if let Some(timeout_ms) = self.timeout_ms {
            FieldError::within("timeout_ms", timeout_ms, 1, queue::MAX_TIMEOUT_MS)?;
        }
        if let Some(retry) = &self.retry {
            retry.validate()?;
        }
        if let Some(partition_key) = &self.partition_key {
            check_key("partition_key", partition_key)?;
        }
        let keyed = keyed(self.key, self.version, self.on_duplicate)?;
        let queue = QueueName::new(&self.queue);
        let key = keyed.as_ref().map(|keyed| keyed.key.as_str());
        let depends_on = self.depends_on.map(|requested| check_dependencies(requested, &queue, key)).transpose()?;
        let mut headers = self.headers.unwrap_or_default();
        check_headers(&headers)?;
        if let Some(upstream) = self.upstream {
            upstream.put_into(&mut headers);
        }
        let (payload, content_type) = body(self.payload, self.payload_base64, self.content_type, limits)?
            .unwrap_or_else(|| (b"null".to_vec(), JSON.to_owned()));
        Ok(ValidTask {
            queue,
            due_at,
            due_now,
            content: Content { payload, content_type, headers },
            priority,
            keyed,
            partition_key: self.partition_key,
            depends_on: depends_on.unwrap_or_default(),
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry,
            expires_at,
            envelope: None,
        })
    }
}

/// The key of a task, with its version. The versions of a key count from 0.
fn keyed(
    key: Option<String>,
    version: Option<i64>,
    on_duplicate: Option<OnDuplicate>,
) -> Result<Option<BusinessKey>, Problem> {
    let Some(key) = key else {
        let alone = [("version", version.is_some()), ("on_duplicate", on_duplicate.is_some())];
        return match alone.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => {
                Err(Problem::invalid_field(field, format!("`{field}` applies only to a task with a `key`")))
            }
            None => Ok(None),
        };
    };
    check_key("key", &key)?;
    let version = version.unwrap_or(0);
    FieldError::within("version", version, 0, i64::MAX)?;
    Ok(Some(BusinessKey { key, version, on_duplicate: on_duplicate.unwrap_or_default() }))
}

#[cfg(test)]
mod tests;
