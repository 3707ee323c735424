//! A change of a task that is not claimed yet.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    json,
    time::{Present, UnixMicros},
    wire::{
        Limits, Problem,
        check::{body, check_headers, check_priority, due, expiry, read_headers},
        read,
    },
};

/// The fields to change; an absent field stays unchanged. `payload: null` sets the payload to JSON's null,
/// `expires_at: null` removes the expiry.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeRequest {
    pub due_at: Option<UnixMicros>,
    #[serde(deserialize_with = "json::whole")]
    pub delay_ms: Option<i64>,
    #[serde(deserialize_with = "json::present")]
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    pub content_type: Option<String>,
    #[serde(deserialize_with = "json::whole")]
    pub priority: Option<i16>,
    #[serde(deserialize_with = "read_headers")]
    pub headers: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "json::present")]
    pub expires_at: Option<Option<UnixMicros>>,
    #[serde(deserialize_with = "json::whole")]
    pub expires_after_ms: Option<i64>,
}

/// A checked change, with at least one field set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidChange {
    /// The new due time, never before the moment of the check.
    pub due_at: Option<UnixMicros>,
    pub payload: Option<Vec<u8>>,
    /// Set exactly when `payload` is.
    pub content_type: Option<String>,
    pub priority: Option<i16>,
    /// The complete set of headers, not additional ones.
    pub headers: Option<BTreeMap<String, String>>,
    /// `Some(None)` removes the expiry.
    pub expires_at: Option<Option<UnixMicros>>,
}

impl ChangeRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }

    /// Checks everything that needs no look-up of the task. The expiry is compared with the due time only when the
    /// request changes both; otherwise the caller that has the task compares them.
    pub fn validate(self, now: Present, limits: &Limits) -> Result<ValidChange, Problem> {
        let due_at = due(self.due_at, self.delay_ms, now)?.map(|(due_at, _)| due_at);
        let expires_at = match (self.expires_at, self.expires_after_ms) {
            (Some(None), None) => Some(None),
            (expires_at, expires_after_ms) => expiry(expires_at.flatten(), expires_after_ms, now.latest)?.map(Some),
        };
        if let Some(Some(expires_at)) = expires_at {
            let field = if self.expires_after_ms.is_some() { "expires_after_ms" } else { "expires_at" };
            if let Some(due_at) = due_at.filter(|due_at| expires_at <= *due_at) {
                let detail = format!("the task would expire at {expires_at}, before it is due at {due_at}");
                return Err(Problem::invalid_field(field, detail));
            }
            // The due time of an overdue task may lie before such an expiry, so the store would accept it.
            if expires_at <= now.latest {
                let detail =
                    format!("the task would expire at {expires_at}, which has passed; cancel the task instead");
                return Err(Problem::invalid_field(field, detail));
            }
        }
        if let Some(priority) = self.priority {
            check_priority(priority)?;
        }
        if let Some(headers) = &self.headers {
            check_headers(headers)?;
        }
        if self.content_type.is_some() && self.payload.is_none() && self.payload_base64.is_none() {
            let detail = "`content_type` can change only together with `payload_base64`";
            return Err(Problem::invalid_field("content_type", detail));
        }
        let (payload, content_type) = body(self.payload, self.payload_base64, self.content_type, limits)?.unzip();
        let change =
            ValidChange { due_at, payload, content_type, priority: self.priority, headers: self.headers, expires_at };
        if change == ValidChange::default() {
            return Err(Problem::unprocessable(
                "no change given: name at least one of due_at, delay_ms, payload, payload_base64, priority, headers, \
                 expires_at, expires_after_ms",
            ));
        }
        Ok(change)
    }
}

impl ValidChange {
    /// The new due time, if nothing else changes.
    pub fn only_due_time(&self) -> Option<UnixMicros> {
        let due_at = self.due_at?;
        (*self == Self { due_at: Some(due_at), ..Self::default() }).then_some(due_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMicros = UnixMicros::new(1_700_000_000_000_000);

    fn change(raw: &str) -> Result<ValidChange, Problem> {
        ChangeRequest::parse(raw)?.validate(Present::exactly(NOW), &Limits::default())
    }

    #[test]
    fn a_due_time_that_may_not_have_passed_is_kept() {
        let now = Present { earliest: NOW, latest: NOW.shifted(500) };
        let due = |raw: &str| ChangeRequest::parse(raw).unwrap().validate(now, &Limits::default()).unwrap().due_at;
        assert_eq!(due(r#"{"due_at":1700000000001}"#), Some(NOW.shifted(1)));
        assert_eq!(due(r#"{"due_at":5}"#), Some(now.latest));
    }

    #[test]
    fn only_what_is_given_changes() {
        let moved = ValidChange { due_at: Some(UnixMicros::new(1_700_000_001_000_000)), ..ValidChange::default() };
        assert_eq!(change(r#"{"delay_ms":1000}"#).unwrap(), moved);
        let to_now = ValidChange { due_at: Some(NOW), ..ValidChange::default() };
        assert_eq!(change(r#"{"due_at":5}"#).unwrap(), to_now);
        let priority = ValidChange { priority: Some(1), ..ValidChange::default() };
        assert_eq!(change(r#"{"priority":1,"due_at":null}"#).unwrap(), priority);
    }

    #[test]
    fn a_change_is_of_the_due_time_only_if_it_names_nothing_else() {
        let only = |raw: &str| change(raw).unwrap().only_due_time();
        assert_eq!(only(r#"{"delay_ms":1000}"#), Some(UnixMicros::new(1_700_000_001_000_000)));
        for more in [r#""priority":1"#, r#""payload":null"#, r#""headers":{}"#, r#""expires_at":null"#] {
            assert_eq!(only(&format!(r#"{{"delay_ms":1000,{more}}}"#)), None, "{more}");
        }
        assert_eq!(only(r#"{"priority":1}"#), None);
    }

    #[test]
    fn null_is_a_payload_and_takes_an_expiry_away() {
        let null = change(r#"{"payload":null}"#).unwrap();
        assert_eq!(
            (null.payload.as_deref(), null.content_type.as_deref()),
            (Some(&b"null"[..]), Some("application/json"))
        );
        assert_eq!(change(r#"{"expires_at":null}"#).unwrap().expires_at, Some(None));
        assert_eq!(
            change(r#"{"expires_after_ms":1,"priority":2}"#).unwrap().expires_at,
            Some(Some(NOW.plus(std::time::Duration::from_millis(1))))
        );
        assert_eq!(change(r#"{"priority":2}"#).unwrap().expires_at, None);
    }

    #[test]
    fn a_change_of_nothing_or_to_the_impossible_is_refused() {
        for (raw, field) in [
            ("{}", None),
            (r#"{"priority":null}"#, None),
            (r#"{"queue":"other"}"#, Some("queue")),
            (r#"{"priority":9}"#, Some("priority")),
            (r#"{"content_type":"text/plain"}"#, Some("content_type")),
            (r#"{"delay_ms":1,"due_at":1}"#, Some("delay_ms")),
            (r#"{"payload":1,"payload_base64":""}"#, Some("payload_base64")),
            (r#"{"headers":{"x-a":"1"}}"#, Some("headers")),
            (r#"{"headers":{"a":"1","a":"2"}}"#, Some("headers")),
            (r#"{"delay_ms":10,"expires_after_ms":5}"#, Some("expires_after_ms")),
            (r#"{"delay_ms":10,"expires_at":1700000000005}"#, Some("expires_at")),
            (r#"{"expires_after_ms":0}"#, Some("expires_after_ms")),
            (r#"{"expires_after_ms":-1}"#, Some("expires_after_ms")),
            (r#"{"expires_at":1699999999000}"#, Some("expires_at")),
            (r#"{"expires_at":1700000000000}"#, Some("expires_at")),
        ] {
            let problem = change(raw).unwrap_err();
            assert_eq!((problem.status, problem.field.as_deref()), (422, field), "{raw}: {problem:?}");
        }
    }
}
