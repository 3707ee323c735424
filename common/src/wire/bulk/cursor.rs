//! The position of a series of bulk requests. The client keeps it; no node does.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize};

use super::Action;
use crate::{
    ids::{DatabaseName, QueueName, TaskId},
    queue::is_name,
    time::UnixMicros,
    wire::cursor::{NotACursor, cursor_in_json},
};

/// Where the next request continues. Opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub action: Action,
    #[serde(serialize_with = "micros", deserialize_with = "of_micros")]
    pub began_at: UnixMicros,
    /// The index of the database, without which nodes of 0.2.0 refuse the cursor. It decides nothing: other nodes may
    /// have the databases in another order.
    pub database: usize,
    pub name: DatabaseName,
    /// The databases that the walk has been through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub walked: Vec<DatabaseName>,
    /// The map of the shards with which the walk over the databases began (`ShardMap::fingerprint`).
    pub map: u32,
    /// The place in that database; `None`: at its start.
    pub place: Option<Place>,
}

/// A place between two tasks of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub queue: QueueName,
    /// The previous task; `None`: at the start of the queue.
    pub after: Option<Edge>,
}

/// The task at which a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    #[serde(serialize_with = "micros", deserialize_with = "of_micros")]
    pub due_at: UnixMicros,
    pub id: TaskId,
}

/// Writes a moment as microseconds, which are shorter than the text in answers.
fn micros<S: serde::Serializer>(moment: &UnixMicros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(moment.micros())
}

fn of_micros<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixMicros, D::Error> {
    let moment = UnixMicros::new(i64::deserialize(deserializer)?);
    if moment.is_writable() { Ok(moment) } else { Err(serde::de::Error::custom("no such time")) }
}

/// A position, encoded as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkCursor(pub Position);

impl std::ops::Deref for BulkCursor {
    type Target = Position;

    fn deref(&self) -> &Position {
        &self.0
    }
}

impl fmt::Display for BulkCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(&self.0).map_err(|_| fmt::Error)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(json))
    }
}

impl FromStr for BulkCursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| NotACursor)?;
        let position: Position = serde_json::from_slice(&json).map_err(|_| NotACursor)?;
        let names_a_queue = position.place.as_ref().is_none_or(|place| is_name(place.queue.as_str()));
        if names_a_queue { Ok(Self(position)) } else { Err(NotACursor) }
    }
}

cursor_in_json!(BulkCursor);
