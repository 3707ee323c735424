//! What is wrong with one field of something given from outside.

use std::borrow::Cow;

/// One field that cannot be taken as it was given. `detail` is a whole sentence for the person who sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct FieldError {
    /// The field as it is spelled outside, with a dot between levels: `retry.base_ms`.
    pub field: Cow<'static, str>,
    pub detail: String,
}

impl FieldError {
    pub fn new(field: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }

    /// A field of the agreed interface whose behaviour does not exist yet.
    pub fn not_available(field: impl Into<Cow<'static, str>>) -> Self {
        let field = field.into();
        let detail = format!("`{field}` is not available in this version");
        Self { field, detail }
    }

    /// Refuses a number outside `first..=last`.
    pub fn within<T>(field: &'static str, value: T, first: T, last: T) -> Result<(), Self>
    where
        T: PartialOrd + std::fmt::Display + Copy,
    {
        if value >= first && value <= last {
            return Ok(());
        }
        Err(Self::new(field, format!("`{field}` must be between {first} and {last}, not {value}")))
    }
}
