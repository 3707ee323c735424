//! The audit: what callers did or tried to do, and the answers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use uuid::Uuid;

use crate::{
    field::FieldError,
    time::UnixMicros,
    wire::{
        Problem,
        check::check_key,
        cursor::{NotACursor, cursor_in_json},
        list::{DEFAULT_LIMIT, MAX_LIMIT, moment, number},
    },
};

/// A filter of deeds. A deed must match every given field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditFilter {
    pub who: Option<String>,
    pub what: Option<String>,
    pub target: Option<String>,
    /// The earliest moment, inclusive.
    #[serde(deserialize_with = "moment")]
    pub after: Option<UnixMicros>,
    /// The latest moment, exclusive.
    #[serde(deserialize_with = "moment")]
    pub before: Option<UnixMicros>,
    #[serde(deserialize_with = "number")]
    pub limit: Option<u32>,
    pub cursor: Option<AuditCursor>,
}

impl AuditFilter {
    /// Refuses a filter that cannot match anything; the problem names the field.
    pub fn validate(&self) -> Result<(), Problem> {
        for (field, text) in [("who", &self.who), ("what", &self.what), ("target", &self.target)] {
            if let Some(text) = text {
                check_key(field, text)?;
            }
        }
        Ok(FieldError::within("limit", self.limit(), 1, MAX_LIMIT)?)
    }

    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }

    /// The place in the order of (moment, id) before which the page begins.
    pub fn edge(&self) -> AuditCursor {
        let before = self.before.map(|at| AuditCursor { at, id: Uuid::nil() });
        let edges = [self.cursor, before].into_iter().flatten().min();
        edges.unwrap_or(AuditCursor { at: UnixMicros::LAST, id: Uuid::max() })
    }
}

/// One action, done or refused.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEventView {
    pub at: UnixMicros,
    /// The name of the token, or `anonymous`.
    pub who: String,
    /// The id of the token, if it was made over the API.
    pub who_id: Option<i64>,
    pub what: String,
    pub target: String,
    pub address: Option<String>,
    /// The HTTP status of the answer.
    pub status: u16,
    pub detail: Option<String>,
    pub request_id: Option<String>,
    /// The node that answered.
    pub node: String,
}

/// The last deed of the previous page. Opaque to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditCursor {
    pub at: UnixMicros,
    pub id: Uuid,
}

impl fmt::Display for AuditCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.at.micros(), self.id.simple())
    }
}

impl FromStr for AuditCursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let (at, id) = text.split_once('_').ok_or(NotACursor)?;
        let at = UnixMicros::new(at.parse().map_err(|_| NotACursor)?);
        let id = Uuid::try_parse(id).map_err(|_| NotACursor)?;
        Ok(Self { at: at.clamp(UnixMicros::FIRST, UnixMicros::LAST), id })
    }
}

cursor_in_json!(AuditCursor);

/// One page, newest first. The last page has no `next_cursor`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditList {
    pub deeds: Vec<AuditEventView>,
    pub next_cursor: Option<AuditCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_does() {
        let cursor = AuditCursor { at: UnixMicros::new(-7), id: Uuid::from_u128(77) };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for text in ["", "7", "_", "7_x", "x_00000000000000000000000000000007", "9223372036854775807_00"] {
            assert_eq!(text.parse::<AuditCursor>(), Err(NotACursor), "{text}");
        }
    }

    #[test]
    fn a_page_goes_on_where_the_one_before_ended_and_not_after_what_was_asked() {
        let at = |micros| UnixMicros::new(micros);
        let cursor = AuditCursor { at: at(5), id: Uuid::from_u128(1) };
        let filter = |before| AuditFilter { cursor: Some(cursor), before, ..AuditFilter::default() };
        assert_eq!(filter(None).edge(), cursor);
        assert_eq!(filter(Some(at(9))).edge(), cursor);
        assert_eq!(filter(Some(at(3))).edge(), AuditCursor { at: at(3), id: Uuid::nil() });
    }
}
