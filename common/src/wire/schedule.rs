//! Schedules in requests and answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use crate::{
    field::FieldError,
    ids::{ScheduleName, TaskId},
    json::{self, present},
    retry::RetryPolicy,
    schedule::{Calendar, MAX_PAYLOAD_BYTES, Overlap, Rules, When, calendar::DEFAULT_TIME_ZONE},
    time::{Present, UnixMicros},
    wire::{Limits, Problem, TaskRequest, check::read_headers, list::number, read, view::Body},
};

const DEFAULT_CATCH_UP_MS: i64 = 60_000;
/// The least catch-up. A node needs this long to notice that another has died, and until then a fire time is late,
/// not missed.
const MIN_CATCH_UP_MS: i64 = 10_000;
/// The longest catch-up: a week. After an outage every fire time within it is looked at.
const MAX_CATCH_UP_MS: i64 = 604_800_000;
const DEFAULT_NEXT: u32 = 5;
/// The most fire times to show: more than a month of days.
const MAX_NEXT: u32 = 100;

/// A schedule in a request. An absent or null field takes its default, not its previous value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleRequest {
    /// Absent: stays unchanged.
    pub paused: Option<bool>,
    pub queue: String,
    pub cron: Option<String>,
    #[serde(deserialize_with = "json::whole")]
    pub every_ms: Option<i64>,
    pub time_zone: Option<String>,
    pub overlap: Option<Overlap>,
    #[serde(deserialize_with = "json::whole")]
    pub catch_up_ms: Option<i64>,
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    pub content_type: Option<String>,
    #[serde(deserialize_with = "read_headers")]
    pub headers: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "json::whole")]
    pub priority: Option<i16>,
    pub partition_key: Option<String>,
    #[serde(deserialize_with = "json::whole")]
    pub max_attempts: Option<i32>,
    #[serde(deserialize_with = "json::whole")]
    pub timeout_ms: Option<i64>,
    pub retry: Option<RetryPolicy>,
    #[serde(deserialize_with = "json::whole")]
    pub expires_after_ms: Option<i64>,
}

/// A checked schedule.
#[derive(Debug)]
pub struct ValidSchedule {
    pub rules: Rules,
    pub payload: Vec<u8>,
    pub calendar: Calendar,
    pub paused: Option<bool>,
}

impl ScheduleRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }

    /// Checks everything that needs no look-up. The tasks of the schedule are checked like submissions.
    pub fn validate(self, now: UnixMicros, limits: &Limits) -> Result<ValidSchedule, Problem> {
        let when = when(self.cron, self.every_ms, self.time_zone)?;
        let calendar = when.calendar_that_fires(now)?;
        let catch_up_ms = self.catch_up_ms.unwrap_or(DEFAULT_CATCH_UP_MS);
        FieldError::within("catch_up_ms", catch_up_ms, MIN_CATCH_UP_MS, MAX_CATCH_UP_MS)?;
        let request = TaskRequest {
            queue: self.queue,
            payload: self.payload,
            payload_base64: self.payload_base64,
            content_type: self.content_type,
            headers: self.headers,
            priority: self.priority,
            partition_key: self.partition_key,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry,
            expires_after_ms: self.expires_after_ms,
            ..TaskRequest::default()
        };
        let limits = Limits { max_payload_bytes: limits.max_payload_bytes.min(MAX_PAYLOAD_BYTES) };
        let task = request.validate(Present::exactly(now), &limits)?;
        let rules = Rules {
            queue: task.queue,
            when,
            overlap: self.overlap.unwrap_or_default(),
            catch_up_ms,
            content_type: task.content.content_type,
            headers: task.content.headers,
            priority: task.priority,
            partition_key: task.partition_key,
            max_attempts: task.max_attempts,
            timeout_ms: task.timeout_ms,
            retry: task.retry,
            expires_after_ms: self.expires_after_ms,
        };
        Ok(ValidSchedule { rules, payload: task.content.payload, calendar, paused: self.paused })
    }
}

fn when(cron: Option<String>, every_ms: Option<i64>, time_zone: Option<String>) -> Result<When, FieldError> {
    match (cron, every_ms) {
        (Some(cron), None) => {
            Ok(When::Cron { cron, time_zone: time_zone.unwrap_or_else(|| DEFAULT_TIME_ZONE.to_owned()) })
        }
        (None, Some(_)) if time_zone.is_some() => {
            Err(FieldError::new("time_zone", "`time_zone` applies only to `cron`"))
        }
        (None, Some(every_ms)) => Ok(When::Every { every_ms }),
        (Some(_), Some(_)) => Err(FieldError::new("every_ms", "give either `every_ms` or `cron`, not both")),
        (None, None) => Err(FieldError::new("cron", "give `cron` or `every_ms` to say when the schedule fires")),
    }
}

/// How many of the next fire times to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NextQuery {
    #[serde(deserialize_with = "number")]
    pub next: Option<u32>,
}

impl NextQuery {
    pub fn count(self) -> Result<usize, FieldError> {
        let count = self.next.unwrap_or(DEFAULT_NEXT);
        FieldError::within("next", count, 0, MAX_NEXT)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }
}

/// The current state of a schedule. Fields that do not apply are left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScheduleView {
    pub name: ScheduleName,
    #[serde(flatten)]
    pub rules: Rules,
    pub paused: bool,
    /// Absent in lists.
    #[serde(default, deserialize_with = "present")]
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    /// The payload and headers are left out, because the caller's role shows no data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub data_hidden: bool,
    /// Empty while the schedule is paused.
    pub next_fire_times: Vec<UnixMicros>,
    /// A fire time that waits until the last task is finished.
    pub buffered_at: Option<UnixMicros>,
    pub last_fire_at: Option<UnixMicros>,
    pub last_task_id: Option<TaskId>,
    pub created_at: UnixMicros,
    pub updated_at: UnixMicros,
}

impl ScheduleView {
    pub fn with_payload(mut self, payload: Vec<u8>) -> Self {
        let body = Body::of(payload, &self.rules.content_type);
        (self.payload, self.payload_base64) = (body.payload, body.payload_base64);
        self
    }

    /// Leaves out the data of its tasks.
    #[must_use]
    pub fn without_data(self) -> Self {
        let rules = Rules { headers: BTreeMap::new(), ..self.rules };
        Self { rules, payload: None, payload_base64: None, data_hidden: true, ..self }
    }
}

/// One page of schedules, by name. The last page has no `next_cursor`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScheduleList {
    pub schedules: Vec<ScheduleView>,
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(raw: &str) -> Result<ValidSchedule, Problem> {
        ScheduleRequest::parse(raw)?.validate(UnixMicros::new(1_700_000_000_000_000), &Limits::default())
    }

    #[test]
    fn what_is_not_asked_for_takes_its_default() {
        let schedule = valid(r#"{"queue":"mails","cron":"0 3 * * *"}"#).unwrap();
        assert_eq!(schedule.rules.when, When::Cron { cron: "0 3 * * *".into(), time_zone: "UTC".into() });
        assert_eq!((schedule.rules.overlap, schedule.rules.catch_up_ms), (Overlap::Skip, 60_000));
        assert_eq!((schedule.payload.as_slice(), schedule.rules.priority), (&b"null"[..], 3));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (raw, field) in [
            (r#"{"cron":"0 3 * * *"}"#, "queue"),
            (r#"{"queue":"a b","cron":"0 3 * * *"}"#, "queue"),
            (r#"{"queue":"q"}"#, "cron"),
            (r#"{"queue":"q","cron":"0 3 30 2 *"}"#, "cron"),
            (r#"{"queue":"q","cron":"0 3 * * *","every_ms":1000}"#, "every_ms"),
            (r#"{"queue":"q","every_ms":999}"#, "every_ms"),
            (r#"{"queue":"q","every_ms":1000,"time_zone":"UTC"}"#, "time_zone"),
            (r#"{"queue":"q","cron":"0 3 * * *","time_zone":"Mars/Utopia"}"#, "time_zone"),
            (r#"{"queue":"q","every_ms":1000,"overlap":"cancel"}"#, "overlap"),
            (r#"{"queue":"q","every_ms":1000,"catch_up_ms":9999}"#, "catch_up_ms"),
            (r#"{"queue":"q","every_ms":1000,"priority":6}"#, "priority"),
            (r#"{"queue":"q","every_ms":1000,"expires_after_ms":0}"#, "expires_after_ms"),
            (r#"{"queue":"q","every_ms":1000,"headers":{"x-a":"b"}}"#, "headers"),
            (r#"{"queue":"q","every_ms":1000,"headers":{"a":"b","a":"b"}}"#, "headers"),
            (r#"{"queue":"q","every_ms":1000,"retry":{"kind":"fixed","delay_ms":-1}}"#, "retry.delay_ms"),
            (r#"{"queue":"q","every_ms":1000,"key":"k"}"#, "key"),
            (r#"{"queue":"q","every_ms":1000,"due_at":5}"#, "due_at"),
        ] {
            let problem = valid(raw).unwrap_err();
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{raw}: {problem:?}");
        }
        let large = format!(r#"{{"queue":"q","every_ms":1000,"payload":"{}"}}"#, "x".repeat(MAX_PAYLOAD_BYTES));
        assert_eq!(valid(&large).unwrap_err().status, 413);
    }

    #[test]
    fn a_view_reads_back() {
        let raw =
            r#"{"queue":"q","every_ms":1000,"payload":{"b": 1.0},"retry":{"kind":"immediate"},"headers":{"a":"b"}}"#;
        for (raw, when) in
            [(raw.to_owned(), "every_ms"), (raw.replace("\"every_ms\":1000", "\"cron\":\"@daily\""), "cron")]
        {
            let schedule = valid(&raw).unwrap();
            let view = ScheduleView {
                name: ScheduleName::new("s"),
                rules: schedule.rules,
                paused: false,
                payload: None,
                payload_base64: None,
                data_hidden: false,
                next_fire_times: vec![UnixMicros::new(1)],
                buffered_at: None,
                last_fire_at: None,
                last_task_id: None,
                created_at: UnixMicros::new(0),
                updated_at: UnixMicros::new(0),
            };
            let json = serde_json::to_string(&view.with_payload(schedule.payload)).unwrap();
            assert!(json.contains(r#""payload":{"b": 1.0}"#) && json.contains(when), "{json}");
            let read: ScheduleView = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), json);
        }
    }
}
