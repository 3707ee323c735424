//! Lists of tasks, a page at a time.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::{
    field::FieldError,
    ids::{QueueName, TaskId},
    json::Whole,
    queue,
    task::TaskState,
    time::UnixMicros,
    wire::{
        Problem, TaskView,
        check::check_key,
        cursor::{NotACursor, cursor_in_json},
    },
};

pub const DEFAULT_LIMIT: u32 = 100;
pub const MAX_LIMIT: u32 = 1_000;

/// A filter of tasks. A task must match every given field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListFilter {
    pub queue: Option<QueueName>,
    pub state: Option<TaskState>,
    pub key: Option<String>,
    pub partition_key: Option<String>,
    /// The earliest due time, inclusive.
    #[serde(deserialize_with = "moment")]
    pub due_after: Option<UnixMicros>,
    /// The latest due time, exclusive.
    #[serde(deserialize_with = "moment")]
    pub due_before: Option<UnixMicros>,
    /// A part of the error text of the last failed attempt.
    pub error: Option<String>,
    #[serde(deserialize_with = "number")]
    pub limit: Option<u32>,
    pub cursor: Option<Cursor>,
}

/// The fields that identify a task in addition to its queue and key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyQuery {
    pub partition_key: Option<String>,
}

impl ListFilter {
    /// Refuses a filter that no list can answer; the problem names the field.
    pub fn validate(&self) -> Result<(), Problem> {
        if let Some(key) = &self.key {
            check_key("key", key)?;
        }
        if let Some(name) = &self.queue {
            queue::check_name(name.as_str())?;
        }
        if let Some(partition_key) = &self.partition_key {
            check_key("partition_key", partition_key)?;
        }
        if let Some(error) = &self.error {
            check_key("error", error)?;
        }
        Ok(FieldError::within("limit", self.limit(), 1, MAX_LIMIT)?)
    }

    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }
}

/// Reads a moment in JSON or in a query string: RFC 3339, or digits.
pub(super) fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UnixMicros>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected an RFC 3339 time or integer Unix milliseconds")]
    enum MomentForm {
        Millis(Whole<i64>),
        Text(String),
    }
    let Some(written) = Option::<MomentForm>::deserialize(deserializer)? else { return Ok(None) };
    let (read, text) = match written {
        MomentForm::Millis(Whole(millis)) => (UnixMicros::from_millis(millis), millis.to_string()),
        MomentForm::Text(text) => (of_text(&text), text),
    };
    let refused =
        || serde::de::Error::custom(format!("`{text}` is neither an RFC 3339 time nor integer Unix milliseconds"));
    read.filter(UnixMicros::is_writable).map(Some).ok_or_else(refused)
}

fn of_text(text: &str) -> Option<UnixMicros> {
    if let Ok(millis) = text.parse::<i64>() {
        return UnixMicros::from_millis(millis);
    }
    let read = |text: &str| chrono::DateTime::parse_from_rfc3339(text).ok();
    // A `+` in a query string decodes to a blank, so the offset of a time zone arrives with one.
    let with_plus = || text.rsplit_once(' ').and_then(|(time, offset)| read(&format!("{time}+{offset}")));
    read(text).or_else(with_plus).map(|time| UnixMicros::from(time.to_utc()))
}

pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(|_| serde::de::Error::custom(format!("`{text}` is not a number")))
}

/// Where the next page begins: after the task with that due time and id. Opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub due_at: UnixMicros,
    pub id: TaskId,
    /// The block of queues. A list of very many queues goes through blocks, each in the order of due times. `None`:
    /// all queues at once.
    pub block: Option<Block>,
}

/// Queues that are listed together: those whose names are after `after` and not after `up_to`, in byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Empty: from the first queue on.
    pub after: String,
    /// `None`: up to the last queue.
    pub up_to: Option<String>,
}

impl Block {
    pub fn has(&self, queue: &QueueName) -> bool {
        queue.as_str() > self.after.as_str() && self.up_to.as_deref().is_none_or(|last| queue.as_str() <= last)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.due_at.micros().to_be_bytes());
        bytes.extend_from_slice(self.id.uuid().as_bytes());
        if let Some(block) = &self.block {
            // A queue's name has no blank.
            bytes.extend_from_slice(block.after.as_bytes());
            bytes.push(b' ');
            bytes.extend_from_slice(block.up_to.as_deref().unwrap_or_default().as_bytes());
        }
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| NotACursor)?;
        let (due_at, rest) = bytes.split_first_chunk::<8>().ok_or(NotACursor)?;
        let (id, rest) = rest.split_first_chunk::<16>().ok_or(NotACursor)?;
        // No task is due outside these years, so the list begins or ends there.
        let due_at = UnixMicros::new(i64::from_be_bytes(*due_at)).clamp(UnixMicros::FIRST, UnixMicros::LAST);
        let id = TaskId::from_uuid(Uuid::from_bytes(*id));
        let block = if rest.is_empty() { None } else { Some(block(rest).ok_or(NotACursor)?) };
        Ok(Self { due_at, id, block })
    }
}

fn block(bytes: &[u8]) -> Option<Block> {
    let (after, up_to) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    let is_name = |name: &str| name.is_empty() || queue::check_name(name).is_ok();
    let up_to_name = (!up_to.is_empty()).then(|| up_to.to_owned());
    (is_name(after) && is_name(up_to)).then(|| Block { after: after.to_owned(), up_to: up_to_name })
}

cursor_in_json!(Cursor);

/// One page. The last page has no `next_cursor`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListAnswer {
    pub tasks: Vec<TaskView>,
    pub next_cursor: Option<Cursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(json: &str) -> Result<ListFilter, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_cursor_reads_back_and_nothing_else_does() {
        let id = TaskId::from_uuid(uuid::Uuid::from_u128(77));
        let block =
            |after: &str, up_to: Option<&str>| Some(Block { after: after.to_owned(), up_to: up_to.map(str::to_owned) });
        let blocks = [None, block("", Some("m")), block("m", Some("z.1")), block("z.1", None), block("", None)];
        for due_at in [0, 1_700_000_000_000_000, -5, UnixMicros::LAST.micros()] {
            for block in blocks.clone() {
                let cursor = Cursor { due_at: UnixMicros::new(due_at), id, block };
                assert_eq!(cursor.to_string().parse(), Ok(cursor));
            }
        }
        for text in ["", "x", "AAAA", &"A".repeat(33), "=".repeat(32).as_str()] {
            assert_eq!(text.parse::<Cursor>(), Err(NotACursor), "{text}");
        }
        let beyond: Cursor = "_".repeat(32).replacen('_', "f", 1).parse().expect("a time after all tasks");
        assert_eq!(beyond.due_at, UnixMicros::LAST);
    }

    #[test]
    fn moments_and_limits_come_as_text() {
        let read =
            filter(r#"{"due_after":"1700000000000","due_before":"2023-11-14T22:13:21 00:00","limit":"7"}"#).unwrap();
        assert_eq!(read.due_after, UnixMicros::from_millis(1_700_000_000_000));
        assert_eq!(read.due_before, UnixMicros::from_millis(1_700_000_001_000));
        assert_eq!((read.limit(), ListFilter::default().limit()), (7, 100));
        for text in ["2023-11-14 22:13:21Z", "2023-11-14 23:13:21 01:00", "2023-11-14T23:13:21+01:00"] {
            let read = filter(&format!(r#"{{"due_after":"{text}"}}"#)).expect("a blank instead of `T` is RFC 3339 too");
            assert_eq!(read.due_after, UnixMicros::from_millis(1_700_000_001_000), "{text}");
        }
        for json in [r#"{"due_after":"soon"}"#, r#"{"limit":"-1"}"#, r#"{"state":"done"}"#, r#"{"cursor":"x"}"#] {
            assert!(filter(json).is_err(), "{json}");
        }
        assert!(filter(r#"{"colour":"red"}"#).unwrap_err().contains("unknown field `colour`"));
        assert!(filter(r#"{"due_after":true}"#).unwrap_err().contains("expected an RFC 3339 time"));
    }

    #[test]
    fn what_no_list_can_answer_is_refused_by_name() {
        for (json, field) in [
            (r#"{"limit":"0"}"#, "limit"),
            (r#"{"limit":"1001"}"#, "limit"),
            (r#"{"queue":"a b"}"#, "queue"),
            (r#"{"partition_key":""}"#, "partition_key"),
            (r#"{"key":""}"#, "key"),
            (r#"{"error":""}"#, "error"),
        ] {
            assert_eq!(filter(json).unwrap().validate().unwrap_err().field.unwrap(), field);
        }
        assert_eq!(filter(r#"{"queue":"q","state":"ready","limit":"1000"}"#).unwrap().validate(), Ok(()));
    }
}
