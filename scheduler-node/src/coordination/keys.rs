//! The only place that spells a key.

use common::ids::{DatabaseName, NodeName, ShardId};

use super::LeaseId;

/// The keys of one cluster.
#[derive(Debug)]
pub(super) struct Keys {
    /// Ends with a slash, so that no other cluster's prefix begins with it.
    prefix: String,
}

/// The subject of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Node(NodeName),
    Candidate(LeaseId),
    Assignment,
    Owner(ShardId),
    Drained,
    /// The key of one database. Its loop reads it by itself.
    Database,
    /// Only the loop of the realm reads it: the mirror passes it over.
    Realm,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{}/", prefix.trim_end_matches('/')) }
    }

    /// The beginning of every key of the cluster.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The beginning of every node's key.
    pub(super) fn nodes(&self) -> String {
        format!("{}nodes/", self.prefix)
    }

    pub(super) fn node(&self, name: &NodeName) -> String {
        format!("{}{name}", self.nodes())
    }

    pub(super) fn candidate(&self, lease: LeaseId) -> String {
        format!("{}candidates/{lease}", self.prefix)
    }

    pub(super) fn assignment(&self) -> String {
        format!("{}assignment", self.prefix)
    }

    pub(super) fn owner(&self, shard: ShardId) -> String {
        format!("{}owners/{}", self.prefix, shard.number())
    }

    pub(super) fn drained(&self) -> String {
        format!("{}drained", self.prefix)
    }

    /// What the nodes have seen of a database.
    pub(super) fn seen(&self, database: &DatabaseName) -> String {
        format!("{}databases/{database}/seen", self.prefix)
    }

    pub(super) fn realm(&self) -> String {
        format!("{}cluster", self.prefix)
    }

    /// Parses a key. `None`: it is none of these.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Key> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        match key {
            "assignment" => return Some(Key::Assignment),
            "drained" => return Some(Key::Drained),
            "cluster" => return Some(Key::Realm),
            _ => {}
        }
        match key.split_once('/')? {
            ("nodes", name) if !name.is_empty() => Some(Key::Node(NodeName::new(name))),
            ("databases", _) => Some(Key::Database),
            ("candidates", lease) => LeaseId::parse(lease).map(Key::Candidate),
            // Accepts one spelling only: a second key for a shard must not hide the first.
            ("owners", shard) => {
                shard.parse().ok().filter(|number: &u16| number.to_string() == shard).map(ShardId::new).map(Key::Owner)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back_as_what_it_was_written_for() {
        let keys = Keys::new("/duetime");
        let lease = LeaseId::parse("7f3a0000000000ff").unwrap();
        for (text, key) in [
            (keys.node(&NodeName::new("a/b")), Key::Node(NodeName::new("a/b"))),
            (keys.candidate(lease), Key::Candidate(lease)),
            (keys.assignment(), Key::Assignment),
            (keys.owner(ShardId::new(65_535)), Key::Owner(ShardId::new(65_535))),
            (keys.drained(), Key::Drained),
            (keys.seen(&DatabaseName::new("main")), Key::Database),
            (keys.realm(), Key::Realm),
        ] {
            assert_eq!(keys.parse(text.as_bytes()), Some(key), "{text}");
        }
    }

    #[test]
    fn a_key_of_anything_else_is_nobodys() {
        let keys = Keys::new("/duetime");
        for text in [
            "/duetime2/assignment",
            "/duetime/owners/65536",
            "/duetime/owners/007",
            "/duetime/owners/+7",
            "/duetime/owners/x",
            "/duetime/candidates/zz",
            "/duetime/nodes/",
            "/duetime/drained/a",
            "/duetime/cluster/a",
            "/duetime/else",
        ] {
            assert_eq!(keys.parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(keys.parse(b"/duetime/nodes/\xff"), None);
    }

    #[test]
    fn the_spelling_is_the_one_that_operators_know() {
        let keys = Keys::new("/duetime");
        assert_eq!(keys.prefix(), "/duetime/");
        assert_eq!(keys.node(&NodeName::new("node-1")), "/duetime/nodes/node-1");
        assert_eq!(keys.candidate(LeaseId::parse("00000000000000ff").unwrap()), "/duetime/candidates/00000000000000ff");
        assert_eq!(keys.assignment(), "/duetime/assignment");
        assert_eq!(keys.owner(ShardId::new(12)), "/duetime/owners/12");
        assert_eq!(keys.drained(), "/duetime/drained");
        assert_eq!(keys.seen(&DatabaseName::new("main")), "/duetime/databases/main/seen");
        assert_eq!(keys.realm(), "/duetime/cluster");
    }
}
