//! Errors in the form of RFC 9457: `application/problem+json`.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    field::FieldError,
    ids::TaskId,
    limit::Limit,
    task::{TaskState, state::InFlight},
};

/// The media type of a problem.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The most bytes of text about a value that was sent. A batch has a problem for each of 10,000 tasks, and a log keeps
/// some. The longest list of the fields of a request takes half of it.
const MAX_DETAIL_BYTES: usize = 1_000;
/// The most bytes of a field's name, which the sender of an unknown one chose.
const MAX_FIELD_BYTES: usize = 128;

/// Why a request failed, for a person (`title`, `detail`) and for a program (`type`, `field`, `state`, `index`).
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:duetime:problem:<slug>`; every problem of one kind has the same slug.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    pub title: Cow<'static, str>,
    /// The HTTP status.
    pub status: u16,
    /// A whole sentence: the fault of this very request, and what to do.
    pub detail: String,
    /// The field that caused the problem, spelled as in the request.
    pub field: Option<Cow<'static, str>>,
    /// The state of the task, which does not allow the request.
    pub state: Option<TaskState>,
    /// The index of the element in a batch, from 0.
    pub index: Option<u32>,
    /// The limit that is reached.
    pub limit: Option<Box<Reached>>,
    /// When to try again, in seconds; also the `Retry-After` header.
    pub retry_after_s: Option<u32>,
    /// For an internal error: the id under which the node's log has the reason.
    pub error_id: Option<String>,
    /// Whether the request waited in vain for a lock, or lost a conflict between two. For the node itself, not on the
    /// wire.
    #[serde(skip)]
    pub is_contention: bool,
}

/// A limit that leaves no room.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The name from [`Limit::text`].
    pub name: Cow<'static, str>,
    pub most: i64,
    /// The usage; absent for a rate.
    pub used: Option<i64>,
}

/// The kind, title and status of each problem. The wording is part of the API and never changes.
macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident = $status:literal, $slug:literal, $title:literal;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(detail: impl Into<String>) -> Self {
                Self {
                    kind: Cow::Borrowed(concat!("urn:duetime:problem:", $slug)),
                    title: Cow::Borrowed($title),
                    status: $status,
                    detail: detail.into(),
                    field: None,
                    state: None,
                    index: None,
                    limit: None,
                    retry_after_s: None,
                    error_id: None,
                    is_contention: false,
                }
            }
        )*
    };
}

impl Problem {
    problems! {
        /// The body is not JSON, or does not have the shape of a request at all.
        malformed = 400, "malformed", "Malformed request";
        /// The credentials are missing or unknown.
        unauthorized = 401, "unauthorized", "Missing or invalid credentials";
        /// The credentials are valid, but do not permit this request.
        forbidden = 403, "forbidden", "Permission denied";
        not_found = 404, "not_found", "Not found";
        method_not_allowed = 405, "method_not_allowed", "Method not allowed";
        /// The client did not send its request in time.
        request_timeout = 408, "timeout", "Request timeout";
        /// The existing state conflicts with the request.
        conflict = 409, "conflict", "Conflict with the current state";
        /// The report is about an attempt that is no longer the newest, or about a task that is not in flight.
        stale_attempt = 409, "stale_attempt", "Attempt no longer current";
        payload_too_large = 413, "payload_too_large", "Payload too large";
        unsupported_media_type = 415, "unsupported_media_type", "Unsupported media type";
        unprocessable = 422, "invalid", "Invalid request";
        too_many = 429, "too_many", "Too many requests";
        /// A limit of a queue or of a token is reached.
        limited = 429, "limit", "Limit reached";
        internal = 500, "internal", "Internal server error";
        /// The request could not be made durable, or a store it needs cannot be reached. Nothing was accepted.
        unavailable = 503, "unavailable", "Service unavailable";
    }

    /// The problem of a field that is missing, unknown or impossible. Both texts may hold what was sent, and are cut.
    pub fn invalid_field(field: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self {
            kind: Cow::Borrowed("urn:duetime:problem:invalid_field"),
            title: Cow::Borrowed("Invalid field"),
            field: Some(short_field(field.into())),
            ..Self::unprocessable(short_detail(detail.into()))
        }
    }

    /// The problem of a change that came too late: the task is claimed, or it has finished.
    pub fn in_flight(state: TaskState) -> Self {
        let detail = if state.is_final() {
            format!("the task has already finished: it is {state}")
        } else {
            format!("the task is {state}: a copy may be on its way to a consumer")
        };
        Self {
            kind: Cow::Borrowed("urn:duetime:problem:in_flight"),
            title: Cow::Borrowed("Task already claimed or finished"),
            state: Some(state),
            ..Self::conflict(detail)
        }
    }

    /// The problem of a task whose key an existing task has.
    pub fn duplicate(id: TaskId, state: TaskState) -> Self {
        let detail = format!("task {id} already has this key and is {state}");
        Self {
            kind: Cow::Borrowed("urn:duetime:problem:duplicate"),
            title: Cow::Borrowed("Key already in use"),
            state: Some(state),
            ..Self::conflict(detail)
        }
    }

    /// The problem of a retry by hand: another task has the key and version of the dead one.
    pub fn key_taken(id: TaskId) -> Self {
        let detail = format!("another task has the key of {id}: one that is not finished, or a newer version");
        Self {
            kind: Cow::Borrowed("urn:duetime:problem:duplicate"),
            title: Cow::Borrowed("Key already in use"),
            state: Some(TaskState::Dead),
            ..Self::conflict(detail)
        }
    }

    /// The problem of a submission that is older than the known version of its task.
    pub fn stale_version(id: TaskId, version: i64, state: TaskState) -> Self {
        let detail = format!("task {id} has this key with the newer version {version} and is {state}");
        Self {
            kind: Cow::Borrowed("urn:duetime:problem:stale_version"),
            title: Cow::Borrowed("Newer version exists"),
            state: Some(state),
            ..Self::conflict(detail)
        }
    }

    /// Whether the problem is one of the moment: nothing was accepted, and the same request may pass later.
    pub fn is_conflict(&self) -> bool {
        self.slug() == "conflict"
    }

    pub fn is_unavailable(&self) -> bool {
        self.slug() == "unavailable"
    }

    pub fn with_state(self, state: TaskState) -> Self {
        Self { state: Some(state), ..self }
    }

    /// Adds the index of the element in a batch.
    pub fn at(self, index: usize) -> Self {
        Self { index: u32::try_from(index).ok(), ..self }
    }

    pub fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// Adds the limit that is reached, with its figures.
    pub fn of_limit(self, limit: Limit, most: i64, used: Option<i64>) -> Self {
        let reached = Reached { name: Cow::Borrowed(limit.text()), most, used };
        Self { limit: Some(Box::new(reached)), ..self }
    }

    pub fn with_error_id(self, error_id: String) -> Self {
        Self { error_id: Some(error_id), ..self }
    }

    /// The last part of `type`: `not_found`, `invalid_field` ...
    pub fn slug(&self) -> &str {
        self.kind.rsplit(':').next().unwrap_or_default()
    }
}

/// A text about what was sent, cut where it is too long.
pub(super) fn short_detail(text: String) -> String {
    cut(&text, MAX_DETAIL_BYTES).unwrap_or(text)
}

/// The name of a field, cut where it is too long.
pub(super) fn short_field(name: Cow<'static, str>) -> Cow<'static, str> {
    cut(&name, MAX_FIELD_BYTES).map_or(name, Cow::Owned)
}

/// The beginning of a text that has more than `most` bytes: a copy, which keeps no memory for the rest.
fn cut(text: &str, most: usize) -> Option<String> {
    (text.len() > most).then(|| format!("{}…", &text[..text.floor_char_boundary(most)]))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        Self::invalid_field(error.field, error.detail)
    }
}

impl From<InFlight> for Problem {
    fn from(error: InFlight) -> Self {
        Self::in_flight(error.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_as_rfc_9457_has_it() {
        let json = serde_json::to_value(Problem::invalid_field("queue", "why").at(3)).unwrap();
        let expected = serde_json::json!({
            "type": "urn:duetime:problem:invalid_field", "title": "Invalid field", "status": 422,
            "detail": "why", "field": "queue", "index": 3,
        });
        assert_eq!(json, expected);
        let json = serde_json::to_value(Problem::in_flight(TaskState::Delivered)).unwrap();
        assert_eq!((&json["type"], &json["state"]), (&"urn:duetime:problem:in_flight".into(), &"delivered".into()));
        assert!(json.get("field").is_none() && json.get("index").is_none());
    }

    #[test]
    fn a_problem_stays_small_enough_to_be_an_error() {
        assert!(size_of::<Problem>() < 160, "{}, as clippy.toml allows", size_of::<Problem>());
    }

    #[test]
    fn every_kind_has_its_own_status() {
        let kinds = [
            (Problem::malformed(""), 400, "malformed"),
            (Problem::unauthorized(""), 401, "unauthorized"),
            (Problem::forbidden(""), 403, "forbidden"),
            (Problem::not_found(""), 404, "not_found"),
            (Problem::request_timeout(""), 408, "timeout"),
            (Problem::conflict(""), 409, "conflict"),
            (Problem::stale_attempt(""), 409, "stale_attempt"),
            (Problem::in_flight(TaskState::Running), 409, "in_flight"),
            (Problem::key_taken(TaskId::from_uuid(uuid::Uuid::nil())), 409, "duplicate"),
            (Problem::payload_too_large(""), 413, "payload_too_large"),
            (Problem::invalid_field("f", ""), 422, "invalid_field"),
            (Problem::too_many("").retry_after(3), 429, "too_many"),
            (Problem::limited("").of_limit(Limit::QueuePending, 5, Some(5)), 429, "limit"),
            (Problem::internal(""), 500, "internal"),
            (Problem::unavailable(""), 503, "unavailable"),
        ];
        for (problem, status, slug) in kinds {
            assert_eq!((problem.status, problem.slug()), (status, slug));
            assert_eq!(problem.is_unavailable(), status == 503);
            let json = serde_json::to_string(&problem).unwrap();
            assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
        }
    }

    #[test]
    fn errors_of_other_rooms_become_problems_that_keep_what_they_know() {
        let problem = Problem::from(FieldError::new("a.b", "bad"));
        assert_eq!((problem.field.as_deref(), problem.to_string().as_str()), (Some("a.b"), "bad"));
        assert_eq!(Problem::from(InFlight { state: TaskState::Dead }).state, Some(TaskState::Dead));
    }
}
