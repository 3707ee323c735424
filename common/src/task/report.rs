//! A consumer's report about an attempt, and which results a database can store.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{field::FieldError, task::TraceContext};

/// The largest result.
pub const MAX_RESULT_BYTES: usize = 256 << 10;

/// The status of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportStatus {
    Succeeded,
    /// The attempt failed; the task is tried again if attempts are left.
    Failed,
    /// The consumer still works on it; the report moves the deadline.
    Running,
    /// The attempt failed, and another one is not worth it.
    Discard,
}

/// One report. PostgreSQL can keep its fields as `jsonb` and text.
#[derive(Clone, Debug, Serialize)]
pub struct ResultBody {
    pub status: ReportStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_msg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// The wait before the next attempt; it overrides the back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<i64>,
    /// The progress in per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<i16>,
    /// The name of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The number of the attempt in a report over HTTP; over AMQP a header holds it.
    #[serde(skip_serializing)]
    pub attempt: Option<i32>,
    /// The sender's place in a trace; it comes beside the body.
    #[serde(skip)]
    pub trace: Option<TraceContext>,
}

impl ResultBody {
    /// A report with a status and nothing else.
    pub const fn new(status: ReportStatus) -> Self {
        Self {
            status,
            status_code: None,
            status_msg: None,
            result: None,
            retry_in_ms: None,
            progress: None,
            worker: None,
            attempt: None,
            trace: None,
        }
    }
}

/// The result if `jsonb` can hold it: not too long, not too deep, with valid numbers and characters. An escaped NUL,
/// the one character that `jsonb` refuses, becomes U+FFFD.
pub(crate) fn keepable(result: Box<RawValue>) -> Result<Box<RawValue>, FieldError> {
    let refuse = |detail: String| FieldError::new("result", detail);
    if result.get().len() > MAX_RESULT_BYTES {
        let detail = format!("`result` may have {MAX_RESULT_BYTES} bytes, not {}", result.get().len());
        return Err(refuse(detail));
    }
    serde_json::from_str::<serde_json::Value>(result.get())
        .map_err(|error| refuse(format!("`result` cannot be stored: {error}")))?;
    match without_nul(result.get()) {
        None => Ok(result),
        Some(text) => {
            RawValue::from_string(text).map_err(|error| refuse(format!("`result` cannot be stored: {error}")))
        }
    }
}

/// The JSON text with every `\u0000` replaced; `None` when there is none.
fn without_nul(json: &str) -> Option<String> {
    if !json.contains("\\u0000") {
        return None;
    }
    let mut tidy = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        // The backslash and the character it escapes: `\\` must not be taken for the beginning of the next escape.
        let escape = &rest[at..at + 1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8)];
        tidy.push_str(&rest[..at]);
        rest = &rest[at + escape.len()..];
        match rest.strip_prefix("0000").filter(|_| escape == "\\u") {
            Some(after) => {
                tidy.push_str("\\ufffd");
                rest = after;
            }
            None => tidy.push_str(escape),
        }
    }
    tidy.push_str(rest);
    Some(tidy)
}
