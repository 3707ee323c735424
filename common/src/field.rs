//! An error about one field of a request, a message or a configuration.

use std::borrow::Cow;

/// A field whose value is refused. `detail` is a whole sentence for the sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct FieldError {
    /// The field's name in the sender's JSON, with a dot between levels: `retry.base_ms`.
    pub field: Cow<'static, str>,
    pub detail: String,
}

impl FieldError {
    pub fn new(field: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }

    /// Refuses a name that clients over HTTP drop from a path: no request could show, change or delete what has it.
    pub fn path_part(field: &'static str, name: &str) -> Result<(), Self> {
        if matches!(name, "." | "..") {
            let detail = "`.` and `..` cannot be new names, because clients drop them from the path of a request";
            return Err(Self::new(field, detail));
        }
        Ok(())
    }

    /// Refuses a number outside `first..=last`.
    pub(crate) fn within<T>(field: &'static str, value: T, first: T, last: T) -> Result<(), Self>
    where
        T: PartialOrd + std::fmt::Display + Copy,
    {
        if value >= first && value <= last {
            return Ok(());
        }
        Err(Self::new(field, format!("`{field}` must be between {first} and {last}, not {value}")))
    }
}
