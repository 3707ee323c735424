//! Messages that could not be read, kept for a person. Any client may have written them. So each field is bounded
//! and holds nothing that PostgreSQL refuses.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row;

use super::{Database, Error, StoreOp, claim::interval};

/// The longest reason.
const REASON_CHARS: usize = 1_000;
/// The longest message id: AMQP's own limit.
const MESSAGE_ID_CHARS: usize = 255;
/// The largest headers, as JSON. Larger ones are replaced by a note of their size.
const HEADERS_BYTES: usize = 16 << 10;
/// The bytes of a body that are kept: enough to recognise the message. With the headers or the properties, which fit
/// into a frame of 128 KiB, 10,000 rows stay below 2 GB. The rows of the last minute come on top.
const BODY_BYTES: usize = 64 << 10;
/// How long a message is kept.
pub const KEEP: Duration = Duration::from_secs(14 * 86_400);
/// How many of the newest messages are kept. The archiver deletes older ones each minute.
pub const KEEP_ROWS: i64 = 10_000;

/// A message as stored in the quarantine.
#[derive(Clone, Debug, PartialEq)]
pub struct Quarantined {
    source: &'static str,
    reason: String,
    message_id: Option<String>,
    headers: Option<Value>,
    /// The part of the body that is kept.
    body: Vec<u8>,
    body_bytes: i64,
    /// The properties as they came over the wire, if no reader could parse them.
    properties: Option<Vec<u8>>,
}

impl Quarantined {
    pub fn new(
        source: &'static str,
        reason: &str,
        message_id: Option<&str>,
        headers: Value,
        mut body: Vec<u8>,
    ) -> Self {
        let size = headers.to_string().len();
        let headers = if size > HEADERS_BYTES { json!({ "left_out_bytes": size }) } else { without_nul(headers) };
        let body_bytes = i64::try_from(body.len()).unwrap_or(i64::MAX);
        body.truncate(BODY_BYTES);
        Self {
            source,
            reason: text(reason, REASON_CHARS),
            message_id: message_id.map(|id| text(id, MESSAGE_ID_CHARS)),
            headers: Some(headers),
            body,
            body_bytes,
            properties: None,
        }
    }

    #[must_use]
    pub fn with_properties(mut self, properties: Vec<u8>) -> Self {
        self.properties = Some(properties);
        self
    }

    /// Keeps only bytes and plain ASCII, whose content no database can refuse. `None`: the message
    /// holds no more than that already.
    pub fn reduced(self) -> Option<Self> {
        if self.headers.is_none() && self.message_id.is_none() {
            return None;
        }
        let reason = self.reason.chars().filter(char::is_ascii).collect();
        Some(Self { reason, message_id: None, headers: None, ..self })
    }
}

/// Cuts the text, and replaces NUL, which PostgreSQL's text cannot hold.
fn text(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}

/// Replaces NUL in headers. The screen of the broker's connection bounds how deep they are nested.
fn without_nul(value: Value) -> Value {
    let clean = |text: String| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(values) => values.into_iter().map(without_nul).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (clean(name), without_nul(value))).collect(),
        other => other,
    }
}

fn column<'a, T>(messages: &'a [Quarantined], value: impl Fn(&'a Quarantined) -> T) -> Vec<T> {
    messages.iter().map(value).collect()
}

impl Database {
    /// Stores messages that could not be read: all of them, or none.
    pub async fn quarantine_add(&self, messages: &[Quarantined]) -> Result<(), Error> {
        let query = sqlx::query(include_str!("queries/quarantine_add.sql"))
            .bind(column(messages, |message| message.source))
            .bind(column(messages, |message| message.reason.as_str()))
            .bind(column(messages, |message| message.message_id.as_deref()))
            .bind(column(messages, |message| message.headers.clone()))
            .bind(column(messages, |message| message.body.as_slice()))
            .bind(column(messages, |message| message.body_bytes))
            .bind(column(messages, |message| message.properties.as_deref()));
        self.run(StoreOp::QuarantineAdd, |pool| async move {
            query.execute(&pool).await?;
            Ok(())
        })
        .await
    }

    /// Deletes at most `most` messages that arrived more than `keep` ago or are older than the newest
    /// `rows`. Returns how many it deleted.
    pub async fn quarantine_forget(&self, keep: Duration, rows: i64, most: i64) -> Result<i64, Error> {
        self.run(StoreOp::QuarantineForget, |pool| async move {
            let query = sqlx::query(include_str!("queries/quarantine_forget.sql")).bind(interval(keep)).bind(rows);
            query.bind(most).fetch_one(&pool).await?.try_get("messages")
        })
        .await
    }
}
