//! The page of a list that is in the order of its names.

use serde::Deserialize;

use crate::{
    field::FieldError,
    wire::{
        cursor::NotACursor,
        list::{DEFAULT_LIMIT, MAX_LIMIT, number},
    },
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
