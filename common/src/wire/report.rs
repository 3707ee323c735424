//! A consumer's report about an attempt, over AMQP or HTTP.

use std::{borrow::Cow, collections::BTreeMap, fmt::Display};

use serde::Deserialize;
use serde_json::{de::StrRead, value::RawValue};

use crate::{
    field::FieldError,
    json,
    retry::LONGEST_MS,
    task::report::{ReportStatus, ResultBody, keepable},
    wire::{Problem, problem::short_detail, read},
};

/// The longest text. A longer one is cut, not refused: the outcome matters more than the text about it.
const MAX_TEXT_CHARS: usize = 4_096;

const FIELDS: [&str; 8] =
    ["status", "status_code", "status_msg", "result", "retry_in_ms", "progress", "worker", "attempt"];

const REPEATED: &str = "a field is there more than once; its last value counts";
const WITHOUT_WORDS: &str = "numbers of the body are NaN or infinite, which JSON does not have; they count as null";
const REPLACED: &str = "bytes of the body are not UTF-8, and are replaced";

/// The words for numbers that JSON does not have. Some libraries write them, such as Python's `json`.
const WORDS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// A report with its values as they were sent, so that each of them is read on its own.
#[derive(Deserialize)]
struct Fields<'a> {
    status: ReportStatus,
    #[serde(borrow)]
    status_code: Option<&'a RawValue>,
    #[serde(borrow)]
    status_msg: Option<&'a RawValue>,
    result: Option<Box<RawValue>>,
    #[serde(borrow)]
    retry_in_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    progress: Option<&'a RawValue>,
    #[serde(borrow)]
    worker: Option<&'a RawValue>,
    #[serde(borrow)]
    attempt: Option<&'a RawValue>,
}

/// The field without which there is no report.
#[derive(Deserialize)]
struct Outcome {
    #[serde(rename = "status")]
    _status: ReportStatus,
}

impl Fields<'_> {
    /// The report without values that cannot be read or stored, and the reason for the first of them.
    fn body(self) -> (ResultBody, Option<FieldError>) {
        let mut left_out = None;
        let why = &mut left_out;
        let body = ResultBody {
            status: self.status,
            status_code: kept(number("status_code", self.status_code, i64::MIN, i64::MAX), why),
            status_msg: kept(text("status_msg", self.status_msg), why),
            result: kept(self.result.map(keepable).transpose(), why),
            retry_in_ms: kept(number("retry_in_ms", self.retry_in_ms, 0, LONGEST_MS), why),
            progress: kept(number("progress", self.progress, 0, 100), why),
            worker: kept(text("worker", self.worker), why),
            attempt: kept(number("attempt", self.attempt, i32::MIN, i32::MAX), why),
            trace: None,
        };
        (body, left_out)
    }
}

impl ResultBody {
    /// Reads a report from the broker and ignores unknown fields. A consumer's library may be newer than this node,
    /// and a refused success would be done again. So the report counts without values that cannot be read or stored,
    /// and the reason for the first of them comes back with it. It may also begin with a byte order mark. Bytes that
    /// are not UTF-8 are replaced, a number that JSON does not have counts as `null`, and of a field that is there
    /// twice the last value counts.
    pub fn parse_message(raw: &[u8]) -> Result<(Self, Option<FieldError>), Problem> {
        let text = String::from_utf8_lossy(raw);
        let json = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let (body, mut left_out) = match read::object::<Fields<'_>>(json) {
            Ok(fields) => fields.body(),
            Err(_) => {
                let tidy = without_words(json);
                let why = if tidy == json { REPEATED } else { WITHOUT_WORDS };
                let json = once(&tidy)?;
                let (body, left_out) = read::object::<Fields<'_>>(&json)?.body();
                (body, left_out.or_else(|| Some(FieldError::new("body", why))))
            }
        };
        if matches!(text, Cow::Owned(_)) {
            left_out.get_or_insert_with(|| FieldError::new("body", REPLACED));
        }
        Ok((body, left_out))
    }

    /// Reads a report, and ignores unknown fields.
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        let (body, left_out) = read::object::<Fields<'_>>(raw)?.body();
        left_out.map_or(Ok(body), |why| Err(why.into()))
    }

    /// Reads a report in a request: an unknown field is an error.
    pub fn parse_request(raw: &str) -> Result<Self, Problem> {
        let body = Self::parse(raw)?;
        let fields: std::collections::BTreeMap<String, serde::de::IgnoredAny> = read::json(raw)?;
        match fields.into_keys().find(|field| !FIELDS.contains(&field.as_str())) {
            Some(field) => {
                let detail = format!("unknown field `{field}`, expected one of {}", FIELDS.join(", "));
                Err(Problem::invalid_field(field, detail))
            }
            None => Ok(body),
        }
    }
}

/// The report with `null` for each of [`WORDS`] outside of its texts.
fn without_words(raw: &str) -> String {
    let mut tidy = String::with_capacity(raw.len());
    let (mut rest, mut in_text) = (raw, false);
    while let Some(next) = rest.chars().next() {
        let word = WORDS.into_iter().find(|word| !in_text && rest.starts_with(*word));
        // A backslash takes the next character with it: an escaped quote ends no text.
        let escaped = rest.chars().nth(1).filter(|_| next == '\\');
        let length = match word {
            Some(word) => word.len(),
            None => next.len_utf8() + escaped.map_or(0, char::len_utf8),
        };
        tidy.push_str(if word.is_some() { "null" } else { &rest[..length] });
        in_text ^= next == '"';
        rest = &rest[length..];
    }
    tidy
}

/// The report with the last value of each field alone. The outcome must be there once: two of them contradict each
/// other.
fn once(raw: &str) -> Result<String, Problem> {
    let _: Outcome = read::object(raw)?;
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = read::json(raw)?;
    serde_json::to_string(&fields).map_err(|error| Problem::malformed(error.to_string()))
}

/// A value that could be read. Otherwise `left_out` gets the reason, unless it has one.
fn kept<T>(read: Result<Option<T>, FieldError>, left_out: &mut Option<FieldError>) -> Option<T> {
    read.unwrap_or_else(|why| {
        left_out.get_or_insert(why);
        None
    })
}

fn number<T>(field: &'static str, value: Option<&RawValue>, first: T, last: T) -> Result<Option<T>, FieldError>
where
    T: TryFrom<i64> + PartialOrd + Display + Copy,
{
    let number = value_of(field, value, |json| json::whole(json))?;
    number.map(|number| FieldError::within(field, number, first, last).map(|()| number)).transpose()
}

fn text(field: &'static str, value: Option<&RawValue>) -> Result<Option<String>, FieldError> {
    let mut text = value_of(field, value, |json| json::text(json))?;
    text.as_mut().map(tidy);
    Ok(text)
}

fn value_of<'a, T>(
    field: &'static str,
    value: Option<&'a RawValue>,
    read: impl FnOnce(&mut serde_json::Deserializer<StrRead<'a>>) -> serde_json::Result<Option<T>>,
) -> Result<Option<T>, FieldError> {
    let Some(value) = value else { return Ok(None) };
    read(&mut serde_json::Deserializer::from_str(value.get())).map_err(|error| {
        let error = error.to_string();
        // The place of the error is one in the value, not in the report.
        let why = error.split(" at line ").next().unwrap_or(&error);
        FieldError::new(field, short_detail(format!("`{field}`: {why}")))
    })
}

/// Removes characters that PostgreSQL's text cannot hold, and cuts text that is too long.
fn tidy(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::report::MAX_RESULT_BYTES;

    #[test]
    fn a_report_is_read_with_its_result_as_it_was_sent() {
        let raw = r#"{"status":"failed","status_code":503,"status_msg":"no","result":{"b": 1.0},"retry_in_ms":5,
                      "progress":100,"worker":"w","attempt":2}"#;
        let body = ResultBody::parse_request(raw).unwrap();
        assert_eq!(
            (body.status, body.status_code, body.status_msg.as_deref()),
            (ReportStatus::Failed, Some(503), Some("no"))
        );
        assert_eq!(body.result.as_deref().map(RawValue::get), Some(r#"{"b": 1.0}"#));
        assert_eq!((body.retry_in_ms, body.progress, body.worker.as_deref()), (Some(5), Some(100), Some("w")));
        assert_eq!(body.attempt, Some(2));
    }

    #[test]
    fn a_field_from_the_future_is_passed_over_on_the_broker_and_refused_over_http() {
        let raw = r#"{"status":"succeeded","mood":"good"}"#;
        assert_eq!(ResultBody::parse(raw).unwrap().status, ReportStatus::Succeeded);
        let problem = ResultBody::parse_request(raw).unwrap_err();
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some("mood")));
    }

    #[test]
    fn what_cannot_be_a_report_is_refused_by_name() {
        let deep = format!(r#"{{"status":"succeeded","result":{}{}}}"#, "[".repeat(500), "]".repeat(500));
        let long = format!(r#"{{"status":"succeeded","result":"{}"}}"#, "x".repeat(MAX_RESULT_BYTES));
        for (raw, field) in [
            ("{}", Some("status")),
            (r#"{"status":"done"}"#, Some("status")),
            (r#"{"status":"running","progress":101}"#, Some("progress")),
            (r#"{"status":"running","progress":-1}"#, Some("progress")),
            (r#"{"status":"failed","retry_in_ms":-1}"#, Some("retry_in_ms")),
            (r#"{"status":"failed","retry_in_ms":315360000001}"#, Some("retry_in_ms")),
            (r#"{"status":"failed","status_code":"x"}"#, Some("status_code")),
            (r#"{"status":"succeeded","result":"\ud800"}"#, Some("result")),
            (r#"{"status":"succeeded","result":1e999999}"#, Some("result")),
            (&deep, Some("result")),
            (&long, Some("result")),
            ("5", None),
        ] {
            let problem = ResultBody::parse(raw).unwrap_err();
            assert_eq!((problem.status, problem.field.as_deref()), (422, field), "{raw:.60}: {problem:?}");
        }
        assert_eq!(ResultBody::parse("{").unwrap_err().status, 400);
    }

    #[test]
    fn the_outcome_in_a_message_counts_without_values_that_cannot_be_read_or_stored() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let long = format!(r#""{}""#, "x".repeat(MAX_RESULT_BYTES));
        for result in [r#""\ud800""#, "1e999999", &deep, &long] {
            let raw = format!(r#"{{"status":"succeeded","result":{result},"status_msg":"done \ud83d","worker":null}}"#);
            let (body, left_out) = ResultBody::parse_message(raw.as_bytes()).unwrap();
            assert_eq!((body.status, body.result.is_none()), (ReportStatus::Succeeded, true));
            assert_eq!(body.status_msg.as_deref(), Some("done \u{fffd}"));
            assert_eq!(left_out.unwrap().field, "result", "{raw:.60}");
        }
        for (field, value) in [
            ("status_code", r#""ECONNRESET""#),
            ("status_code", "1e300"),
            ("status_msg", "{}"),
            ("retry_in_ms", "1500.5"),
            ("retry_in_ms", "-1"),
            ("retry_in_ms", "1800000000000"), // a Unix time in ms
            ("progress", "33.3"),
            ("progress", "101"),
            ("worker", "12345"),
            ("attempt", r#""1""#),
        ] {
            let raw = format!(r#"{{"{field}":{value},"status":"succeeded","result":7}}"#);
            let (body, left_out) = ResultBody::parse_message(raw.as_bytes()).unwrap();
            let kept = serde_json::to_string(&body).unwrap();
            assert_eq!((kept.as_str(), body.attempt), (r#"{"status":"succeeded","result":7}"#, None), "{raw}");
            assert_eq!(left_out.unwrap().field, field, "{raw}");
            assert_eq!(ResultBody::parse_request(&raw).unwrap_err().field.as_deref(), Some(field), "{raw}");
        }
        for (raw, kept, is_whole) in [
            (&b"\xef\xbb\xbf{\"status\":\"succeeded\",\"worker\":\"w\"}"[..], r#""worker":"w""#, true),
            (b"{\"status\":\"succeeded\",\"status_msg\":\"caf\xe9\"}", "\"status_msg\":\"caf\u{fffd}\"", false),
            (br#"{"result":1,"status":"succeeded","result":7}"#, r#""result":7"#, false),
            (br#"{"worker":"a","status":"succeeded","worker":null,"worker":"b"}"#, r#""worker":"b""#, false),
            (
                br#"{"status":"succeeded","result":{"a":NaN,"b":-Infinity,"c":"NaN \" Infinity"},"progress":NaN}"#,
                r#""result":{"a":null,"b":null,"c":"NaN \" Infinity"}"#,
                false,
            ),
        ] {
            let (body, left_out) = ResultBody::parse_message(raw).unwrap();
            assert_eq!(serde_json::to_string(&body).unwrap(), format!(r#"{{"status":"succeeded",{kept}}}"#));
            assert_eq!(left_out.is_none(), is_whole, "{left_out:?}");
            let strict = std::str::from_utf8(raw).map(ResultBody::parse_request);
            assert!(!matches!(strict, Ok(Ok(_))), "HTTP takes {kept}");
        }
        for raw in [
            &br#"{"status":"failed","status":"succeeded"}"#[..],
            br#"{"worker":"a","worker":"b","status":"failed","status":"succeeded"}"#,
            b"\xff{\"status\":\"succeeded\"}",
            br#"{"worker":"a","worker":"b"}"#,
            br#"{"status":NaN}"#,
            br#"{"status":"succeeded","result":NaNo}"#,
        ] {
            assert!(ResultBody::parse_message(raw).is_err(), "{}", raw.escape_ascii());
        }
        let long = format!(r#"{{"status":"succeeded","progress":"{}"}}"#, "x".repeat(6_600));
        let (_, left_out) = ResultBody::parse_message(long.as_bytes()).unwrap();
        assert!(left_out.unwrap().detail.len() < 2_000, "the reason is short");
        let (_, left_out) = ResultBody::parse_message(br#"{"status":"succeeded","result":7}"#).unwrap();
        assert!(left_out.is_none());
    }

    #[test]
    fn a_nul_is_replaced_where_postgresql_could_not_keep_it() {
        let raw =
            r#"{"status":"failed","status_msg":"a\u0000b","worker":"\u0000","result":{"\u0000":"\\u0000 \\\u0000"}}"#;
        let body = ResultBody::parse(raw).unwrap();
        assert_eq!(body.status_msg.as_deref(), Some("a\u{fffd}b"));
        assert_eq!(body.worker.as_deref(), Some("\u{fffd}"));
        assert_eq!(body.result.unwrap().get(), r#"{"\ufffd":"\\u0000 \\\ufffd"}"#);
    }

    #[test]
    fn words_about_an_outcome_are_cut_and_not_refused() {
        let raw = format!(r#"{{"status":"failed","status_msg":"{}"}}"#, "ä".repeat(5_000));
        assert_eq!(ResultBody::parse(&raw).unwrap().status_msg.unwrap().chars().count(), 4_096);
    }

    #[test]
    fn what_is_kept_of_a_report_leaves_out_what_was_not_said() {
        let body = ResultBody::parse(r#"{"status":"succeeded","attempt":1,"result":[1]}"#).unwrap();
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"status":"succeeded","result":[1]}"#);
    }
}
