//! What can be read of a policy that cannot be read as a whole.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::QueuePolicy;

/// The fields that must be readable even while a queue stands still: on which shards its tasks lie, and whose reports
/// count.
const NEEDED: [&str; 2] = ["placement", "receipt"];

impl QueuePolicy {
    /// Reads the fields that can be read; the others have their defaults, and are named. A later version or a hand has
    /// written those. `None`: a field that is needed cannot be read.
    pub fn salvage(stored: Value) -> Option<(Self, Vec<String>)> {
        let Value::Object(fields) = stored else { return None };
        let mut readable = Map::new();
        let mut unreadable = Vec::new();
        for (name, value) in fields {
            let alone = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
            if Self::deserialize(alone).is_ok() {
                readable.insert(name, value);
            } else if NEEDED.contains(&name.as_str()) {
                return None;
            } else {
                unreadable.push(name);
            }
        }
        Some((Self::deserialize(Value::Object(readable)).ok()?, unreadable))
    }
}
