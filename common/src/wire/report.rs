//! A consumer's report about an attempt, over AMQP or HTTP.

use crate::{
    field::FieldError,
    task::report::{ResultBody, keepable},
    wire::{Problem, read},
};

/// The longest text. A longer one is cut, not refused: the outcome matters more than the text about it.
const MAX_TEXT_CHARS: usize = 4_096;

const FIELDS: [&str; 8] =
    ["status", "status_code", "status_msg", "result", "retry_in_ms", "progress", "worker", "attempt"];

impl ResultBody {
    /// Reads a report from the broker and ignores unknown fields. A consumer's library may be newer than this node,
    /// and a refused success would be done again. So the report counts without a result that cannot be stored, and the
    /// reason comes back with it.
    pub fn parse_message(raw: &str) -> Result<(Self, Option<FieldError>), Problem> {
        let mut body = Self::parse_all(raw)?;
        let (result, left_out) = match body.result.map(keepable).transpose() {
            Ok(result) => (result, None),
            Err(why) => (None, Some(why)),
        };
        body.result = result;
        Ok((body, left_out))
    }

    /// Reads a report, and ignores unknown fields.
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        let (body, left_out) = Self::parse_message(raw)?;
        left_out.map_or(Ok(body), |why| Err(why.into()))
    }

    fn parse_all(raw: &str) -> Result<Self, Problem> {
        let mut body: Self = read::object(raw)?;
        if let Some(progress) = body.progress {
            FieldError::within("progress", progress, 0, 100)?;
        }
        if let Some(retry_in_ms) = body.retry_in_ms {
            FieldError::within("retry_in_ms", retry_in_ms, 0, i64::MAX)?;
        }
        for text in [&mut body.status_msg, &mut body.worker].into_iter().flatten() {
            tidy(text);
        }
        Ok(body)
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
    use serde_json::value::RawValue;

    use super::*;
    use crate::task::report::{MAX_RESULT_BYTES, ReportStatus};

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
    fn the_outcome_in_a_message_counts_without_a_result_that_cannot_be_stored() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let long = format!(r#""{}""#, "x".repeat(MAX_RESULT_BYTES));
        for result in [r#""\ud800""#, "1e999999", &deep, &long] {
            let raw = format!(r#"{{"status":"succeeded","result":{result},"status_msg":"done \ud83d","worker":null}}"#);
            let (body, left_out) = ResultBody::parse_message(&raw).unwrap();
            assert_eq!((body.status, body.result.is_none()), (ReportStatus::Succeeded, true));
            assert_eq!(body.status_msg.as_deref(), Some("done \u{fffd}"));
            assert_eq!(left_out.unwrap().field, "result", "{raw:.60}");
        }
        let (_, left_out) = ResultBody::parse_message(r#"{"status":"succeeded","result":7}"#).unwrap();
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
