//! What all cursors share. In JSON a cursor is a text that means nothing to a client.

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
