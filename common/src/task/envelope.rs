//! The envelope of a message that waits here for its delay: its target exchange, and everything it carried besides
//! its body.
//!
//! The envelope is kept as JSON beside the task. Values that JSON or PostgreSQL's text cannot hold (bytes that are
//! not text, NUL, NaN) are encoded, so that they read back unchanged, bit for bit.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::skip_serializing_none;

/// The deepest nesting of tables. Beyond some forty levels JSON is not read back.
pub(crate) const MAX_DEPTH: usize = 16;

/// Where a message goes when it is due, and its properties.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub exchange: String,
    pub routing_key: Text,
    pub properties: Properties,
    /// Whether RabbitMQ had delivered the message to a node before, so that there may be another task of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redelivered: bool,
}

/// All properties of an AMQP message.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Properties {
    pub content_type: Option<Text>,
    pub content_encoding: Option<Text>,
    pub headers: Option<Table>,
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<Text>,
    pub reply_to: Option<Text>,
    /// The time to live in ms, as text.
    pub expiration: Option<Text>,
    pub message_id: Option<Text>,
    /// A moment in Unix seconds.
    pub timestamp: Option<u64>,
    #[serde(rename = "type")]
    pub kind: Option<Text>,
    pub user_id: Option<Text>,
    pub app_id: Option<Text>,
    pub cluster_id: Option<Text>,
}

/// Headers with their names, each name once. They are pairs, because a name may hold bytes that a JSON object's key
/// may not.
pub type Table = Vec<(Text, Field)>;

/// A header's value with the type it came with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    /// The bits of the float: JSON has no NaN.
    F32(u32),
    F64(u64),
    Decimal {
        scale: u8,
        value: u32,
    },
    Text(Text),
    Bytes(Text),
    Array(Vec<Self>),
    /// A moment in Unix seconds.
    Time(u64),
    Table(Table),
    Void,
}

impl Field {
    /// The depth of nested tables and arrays. It uses no recursion, because its result limits how deep other code may
    /// recurse.
    pub(crate) fn depth(&self) -> usize {
        let mut deepest = 0;
        let mut open = vec![(self, 1)];
        while let Some((field, depth)) = open.pop() {
            match field {
                Self::Array(fields) => open.extend(fields.iter().map(|field| (field, depth + 1))),
                Self::Table(fields) => open.extend(fields.iter().map(|(_, field)| (field, depth + 1))),
                _ => continue,
            }
            deepest = deepest.max(depth);
        }
        deepest
    }
}

/// AMQP's text: bytes, mostly UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// The text, or `None` when it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum TextForm<'a> {
    Plain(std::borrow::Cow<'a, str>),
    Encoded { base64: String },
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_str().filter(|text| !text.contains('\0')) {
            Some(text) => TextForm::Plain(text.into()),
            None => TextForm::Encoded { base64: STANDARD.encode(&self.0) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match TextForm::deserialize(deserializer)? {
            TextForm::Plain(text) => Ok(Self(text.into_owned().into_bytes())),
            TextForm::Encoded { base64 } => STANDARD.decode(base64).map(Self).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
