//! Names and numbers that must not be mistaken for one another.
//!
//! `Display` adds a letter where a number alone would not say what it counts: `s12` is a shard, `e5` an epoch, `t3` a
//! term. A log line is thus clear on its own.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A fixed slice of all tasks. Shards are numbered from 0; their number is fixed at the first migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(u16);

impl ShardId {
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// The place of a database in the configuration's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseIndex(usize);

impl DatabaseIndex {
    /// The first database, which also keeps the queues, the schedules and the quarantine.
    pub const HOME: Self = Self(0);

    pub const fn new(index: usize) -> Self {
        Self(index)
    }

    pub const fn get(self) -> usize {
        self.0
    }
}

/// A task's identity: a UUIDv7 whose last 16 bits are the number of its shard, so that an id alone finds its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(Uuid);

impl TaskId {
    /// Writes `shard` into the random bits of a fresh UUIDv7. 58 of its bits stay random, or counted within the
    /// millisecond.
    pub fn mint(fresh: Uuid, shard: ShardId) -> Self {
        let mut bytes = *fresh.as_bytes();
        bytes[14..16].copy_from_slice(&shard.number().to_be_bytes());
        Self(Uuid::from_bytes(bytes))
    }

    /// Wraps an id that was read back from storage.
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }

    pub fn shard(self) -> ShardId {
        let bytes = self.0.as_bytes();
        ShardId(u16::from_be_bytes([bytes[14], bytes[15]]))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for TaskId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

/// The number of an ownership of a shard; it rises with each. The shard's own database mints it, and refuses a claim
/// under any epoch but the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(i64);

impl Epoch {
    /// Before the first owner.
    pub const NONE: Self = Self(0);

    /// Wraps an epoch from the fence row. Only the store calls this.
    pub const fn from_store(number: i64) -> Self {
        Self(number)
    }

    pub const fn number(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// A master's term: the create revision of its candidate key, so a later master always has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(i64);

impl Term {
    /// Wraps a term from the candidate key. Only coordination calls this.
    pub const fn from_revision(revision: i64) -> Self {
        Self(revision)
    }

    pub const fn revision(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// The cluster that tasks, keys and messages belong to; the first migration makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(Uuid);

impl ClusterId {
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

/// One database of a cluster, whatever its URL and its name in the configuration; a migration makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatabaseId(Uuid);

impl DatabaseId {
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }
}

/// The keys of one cluster in etcd, under its prefix. The first node that writes there makes it at random, so another
/// etcd, another prefix and an etcd that lost its data are other realms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RealmId(Uuid);

impl RealmId {
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for RealmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of an attempt; 0 before the first claim. It never decreases, not even when a dead task is retried by
/// hand, so `<task id>:<attempt>` names one attempt for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(i32);

impl Attempt {
    pub const NONE: Self = Self(0);

    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Takes the text unchecked; names from outside are checked where they come in.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(text.as_ref().into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                std::borrow::Cow::<'de, str>::deserialize(deserializer).map(Self::new)
            }
        }
    };
}

name! {
    /// A named kind of task with its policy.
    QueueName
}
name! {
    /// A schedule's name. A schedule that is put under an existing name replaces the one there.
    ScheduleName
}
name! {
    /// One PostgreSQL that holds a range of shards.
    DatabaseName
}
name! {
    /// A node's lasting name, the same after a restart.
    NodeName
}

/// One start of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(Uuid);

impl Incarnation {
    pub const fn new(fresh: Uuid) -> Self {
        Self(fresh)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first group is enough to distinguish two starts of one node in a log.
        let text = self.0.simple().to_string();
        f.write_str(&text[..8])
    }
}

/// One running process: the node's name and the incarnation. Two starts of one node are two nodes to every other
/// node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId {
    pub name: NodeName,
    pub incarnation: Incarnation,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.incarnation)
    }
}

/// The name of one attempt, `<task id>:<attempt>`: the same in every copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub id: TaskId,
    pub attempt: Attempt,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.attempt)
    }
}

/// The text does not name an attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a message id of the form <task id>:<attempt>")]
pub struct NotAMessageId(String);

impl FromStr for MessageId {
    type Err = NotAMessageId;

    fn from_str(text: &str) -> Result<Self, NotAMessageId> {
        let parts = || {
            let (id, attempt) = text.split_once(':')?;
            let attempt = Attempt::new(attempt.parse().ok()?);
            (attempt > Attempt::NONE).then_some(Self { id: id.parse().ok()?, attempt })
        };
        parts().ok_or_else(|| NotAMessageId(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_alone_tells_its_shard() {
        let fresh = Uuid::from_u128(u128::MAX);
        for number in [0, 1, 255, 256, u16::MAX] {
            let id = TaskId::mint(fresh, ShardId::new(number));
            assert_eq!(id.shard(), ShardId::new(number));
            assert_eq!(id.uuid().as_bytes()[..14], fresh.as_bytes()[..14]);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn numbers_say_what_they_count() {
        let incarnation = Incarnation::new(Uuid::from_u128(0xabcd_1234 << 96));
        let node = NodeId { name: NodeName::new("node-1"), incarnation };
        let texts = [
            ShardId::new(12).to_string(),
            Epoch::from_store(5).to_string(),
            Term::from_revision(3).to_string(),
            node.to_string(),
        ];
        assert_eq!(texts, ["s12", "e5", "t3", "node-1#abcd1234"]);
    }

    #[test]
    fn names_are_plain_text_in_json() {
        let name = QueueName::new("mail");
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"mail\"");
        assert_eq!(serde_json::from_str::<QueueName>("\"ma\\u0069l\"").unwrap(), name);
        assert!(serde_json::from_str::<QueueName>("5").is_err());
    }

    #[test]
    fn a_message_id_reads_back_as_its_attempt() {
        let id = MessageId { id: TaskId::mint(Uuid::nil(), ShardId::new(1)), attempt: Attempt::new(2) };
        assert_eq!(id.to_string(), "00000000-0000-0000-0000-000000000001:2");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn what_does_not_name_an_attempt_is_not_a_message_id() {
        let task = "00000000-0000-0000-0000-000000000001";
        for text in [
            "",
            ":",
            task,
            &format!("{task}:"),
            &format!("{task}:0"),
            &format!("{task}:-1"),
            "x:1",
            &format!("{task}:1:2"),
        ] {
            assert!(text.parse::<MessageId>().is_err(), "{text}");
        }
    }
}
