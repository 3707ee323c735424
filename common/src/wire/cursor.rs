//! What the pages of lists share. In JSON a cursor is a text that means nothing to a client.

use serde::Deserialize;

use crate::{
    field::FieldError,
    wire::list::{DEFAULT_LIMIT, MAX_LIMIT, number},
};

/// The page to show of a list that is in the order of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamePage {
    #[serde(deserialize_with = "number")]
    pub limit: Option<u32>,
    /// The last name of the previous page.
    pub cursor: Option<String>,
}

impl NamePage {
    /// `check_name`: the rule for the names of the list.
    pub fn validate(&self, check_name: impl Fn(&str) -> Result<(), FieldError>) -> Result<(), FieldError> {
        if let Some(cursor) = &self.cursor {
            check_name(cursor).map_err(|_| FieldError::new("cursor", NotACursor.to_string()))?;
        }
        FieldError::within("limit", self.limit(), 1, MAX_LIMIT)
    }

    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }
}

/// The error for a text that is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not valid; use the `next_cursor` of the previous answer")]
pub struct NotACursor;

/// Writes a cursor to JSON as its text, and reads it from there.
macro_rules! cursor_in_json {
    ($cursor:ty) => {
        impl serde::Serialize for $cursor {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $cursor {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use cursor_in_json;
