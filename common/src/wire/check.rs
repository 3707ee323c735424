//! Shared checks of requests: moments, payloads, names, headers.

use std::{collections::BTreeMap, fmt, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    field::FieldError,
    time::{Present, UnixMicros},
    wire::Problem,
};

pub const JSON: &str = "application/json";
pub(crate) const BYTES: &str = "application/octet-stream";
/// The most bytes of all header names and values together.
pub(crate) const MAX_HEADERS_BYTES: usize = 8 << 10;
pub(crate) const MAX_HEADERS: usize = 64;
pub const MAX_KEY_CHARS: usize = 256;
pub(crate) const DEFAULT_PRIORITY: i16 = 3;
/// AMQP's limit: the length of a header's name, and of a content type, is one byte.
const MAX_SHORT_BYTES: usize = 255;

/// The limits of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of the payload as delivered.
    pub max_payload_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_payload_bytes: 256 << 10 }
    }
}

/// The requested due time, and whether it means now. `None` when the request has none. Only a time that has certainly
/// passed means now: the task would be early otherwise.
pub(super) fn due(
    due_at: Option<UnixMicros>,
    delay_ms: Option<i64>,
    now: Present,
) -> Result<Option<(UnixMicros, bool)>, Problem> {
    let (requested, is_past) = match (due_at, delay_ms) {
        (None, None) => return Ok(None),
        (Some(due_at), None) => (due_at, due_at <= now.earliest),
        (None, Some(delay_ms)) => (after(now.latest, delay_ms).ok_or_else(|| too_late("delay_ms"))?, delay_ms <= 0),
        (Some(_), Some(_)) => return Err(both("delay_ms", "due_at")),
    };
    Ok(Some(if is_past { (now.latest, true) } else { (requested, false) }))
}

pub(super) fn expiry(
    expires_at: Option<UnixMicros>,
    expires_after_ms: Option<i64>,
    now: UnixMicros,
) -> Result<Option<UnixMicros>, Problem> {
    match (expires_at, expires_after_ms) {
        (Some(_), Some(_)) => Err(both("expires_after_ms", "expires_at")),
        (None, Some(wait_ms)) => after(now, wait_ms).map(Some).ok_or_else(|| too_late("expires_after_ms")),
        (expires_at, None) => Ok(expires_at),
    }
}

/// The longest delay, in milliseconds: 7,922 years, so that it ends before the year 10000 in every case.
const LONGEST_DELAY_MS: u64 = 250_000_000_000_000;

/// `now` plus so many milliseconds; `None` when that is too long.
fn after(now: UnixMicros, wait_ms: i64) -> Option<UnixMicros> {
    let Ok(wait_ms) = u64::try_from(wait_ms) else { return Some(now) };
    if wait_ms > LONGEST_DELAY_MS {
        return None;
    }
    let moment = now.plus(Duration::from_millis(wait_ms));
    (moment < UnixMicros::LAST).then_some(moment)
}

fn too_late(field: &'static str) -> Problem {
    Problem::invalid_field(field, format!("`{field}` reaches past the year 9999"))
}

fn both(field: &'static str, other: &'static str) -> Problem {
    Problem::invalid_field(field, format!("give either `{field}` or `{other}`, not both"))
}

/// The payload and its content type. `None` when the request has no payload.
pub(super) fn body(
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    limits: &Limits,
) -> Result<Option<(Vec<u8>, String)>, Problem> {
    let (bytes, content_type) = match (payload, payload_base64) {
        (Some(_), Some(_)) => return Err(both("payload_base64", "payload")),
        (Some(json), None) => (Box::<str>::from(json).into_string().into_bytes(), only_json(content_type)?),
        (None, Some(text)) => (decoded(&text, limits)?, content_type.unwrap_or_else(|| BYTES.to_owned())),
        (None, None) => {
            only_json(content_type)?;
            return Ok(None);
        }
    };
    check_size(bytes.len(), limits)?;
    check_short("content_type", &content_type)?;
    Ok(Some((bytes, content_type)))
}

pub(super) fn check_size(bytes: usize, limits: &Limits) -> Result<(), Problem> {
    if bytes > limits.max_payload_bytes { Err(too_large(bytes, limits)) } else { Ok(()) }
}

fn only_json(content_type: Option<String>) -> Result<String, Problem> {
    match content_type {
        Some(other) if other != JSON => {
            let detail = "`content_type` applies only to `payload_base64`; a `payload` is always application/json";
            Err(Problem::invalid_field("content_type", detail))
        }
        _ => Ok(JSON.to_owned()),
    }
}

fn decoded(text: &str, limits: &Limits) -> Result<Vec<u8>, Problem> {
    let at_least = (text.len() / 4 * 3).saturating_sub(2);
    if at_least > limits.max_payload_bytes {
        return Err(too_large(at_least, limits));
    }
    STANDARD.decode(text).map_err(|error| {
        Problem::invalid_field(
            "payload_base64",
            format!("`payload_base64` is not standard base64 with padding: {error}"),
        )
    })
}

fn too_large(bytes: usize, limits: &Limits) -> Problem {
    let detail = format!("the payload has {bytes} bytes or more; at most {} are allowed", limits.max_payload_bytes);
    Problem { field: Some("payload".into()), ..Problem::payload_too_large(detail) }
}

pub(super) fn check_priority(priority: i16) -> Result<(), Problem> {
    Ok(FieldError::within("priority", priority, 1, 5)?)
}

/// Whether the text has a NUL, which PostgreSQL cannot keep in text of any field.
fn has_nul(text: &str) -> bool {
    text.as_bytes().contains(&0)
}

pub fn check_key(field: &'static str, key: &str) -> Result<(), Problem> {
    // The number of bytes comes first: most keys are short and need no counting of characters.
    let fits = !key.is_empty() && (key.len() <= MAX_KEY_CHARS || key.chars().count() <= MAX_KEY_CHARS);
    if fits && !has_nul(key) {
        return Ok(());
    }
    Err(Problem::invalid_field(field, format!("`{field}` must be 1 to {MAX_KEY_CHARS} characters without a NUL")))
}

pub(super) fn check_short(field: &'static str, text: &str) -> Result<(), Problem> {
    if !text.is_empty() && text.len() <= MAX_SHORT_BYTES && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let detail = format!("`{field}` must be 1 to {MAX_SHORT_BYTES} bytes without control characters");
    Err(Problem::invalid_field(field, detail))
}

/// For `deserialize_with`: reads headers. The first one too many is refused before it takes memory, because a body may
/// have millions. A name that comes twice is refused like a field that does.
pub(super) fn read_headers<'de, D>(deserializer: D) -> Result<Option<BTreeMap<String, String>>, D::Error>
where
    D: Deserializer<'de>,
{
    Ok(Option::<Headers>::deserialize(deserializer)?.map(|Headers(headers)| headers))
}

struct Headers(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeadersVisitor).map(Self)
    }
}

struct HeadersVisitor;

impl<'de> Visitor<'de> for HeadersVisitor {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with text values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BTreeMap<String, String>, A::Error> {
        let mut headers = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, String>()? {
            if headers.contains_key(&name) {
                return Err(A::Error::custom(format!("the header `{}` is named twice", name.escape_debug())));
            }
            if headers.len() == MAX_HEADERS {
                return Err(A::Error::custom(format!("at most {MAX_HEADERS} headers are allowed")));
            }
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

pub(super) fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), Problem> {
    let refuse = |detail: String| Err(Problem::invalid_field("headers", detail));
    if headers.len() > MAX_HEADERS {
        return refuse(format!("at most {MAX_HEADERS} headers are allowed, not {}", headers.len()));
    }
    let mut bytes = 0;
    for (name, value) in headers {
        if is_reserved(name) {
            return refuse(format!("`{name}`: names that begin with `duetime-` or `x-`, `CC` and `BCC` are reserved"));
        }
        if name.is_empty() || name.len() > MAX_SHORT_BYTES || has_nul(name) || has_nul(value) {
            return refuse(format!(
                "`{}`: a header's name must be 1 to {MAX_SHORT_BYTES} bytes, and neither it nor its value may hold a NUL",
                name.escape_debug()
            ));
        }
        bytes += name.len() + value.len();
    }
    if bytes > MAX_HEADERS_BYTES {
        return refuse(format!("headers may have {MAX_HEADERS_BYTES} bytes in all, not {bytes}"));
    }
    Ok(())
}

fn is_reserved(name: &str) -> bool {
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    // RabbitMQ routes copies by `CC` and `BCC`, and closes the channel when they hold text.
    begins("duetime-") || begins("x-") || ["CC", "BCC"].contains(&name)
}
