//! The realm: which keys in etcd coordinate a cluster.
//!
//! Fences keep two clusters on one database from firing a task twice, and not from taking each other's shards. So each
//! database serves one realm at a time. The realm's id is random, and its first node puts it under the prefix in etcd.

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, RealmId};

/// The most former realms that a node remembers. Each is an etcd that lost its data while the node ran.
const FORMER: usize = 8;

/// The record in etcd of the realm, and of the cluster whose databases its nodes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmRecord {
    pub cluster: ClusterId,
    pub realm: RealmId,
}

/// The realms that a node has found under its prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realms {
    current: Option<RealmId>,
    former: Vec<RealmId>,
}

impl Realms {
    /// The realm that this node coordinates with. `None`: it has not read etcd yet.
    pub fn current(&self) -> Option<RealmId> {
        self.current
    }

    /// The realms that this node knew before under the same prefix. A database that serves one of them may go over to
    /// the current one at once: etcd has lost its data, and the cluster is the same.
    pub fn former(&self) -> &[RealmId] {
        &self.former
    }

    /// The realm to put where etcd has none: the one that this node knows, so that nothing changes, or a fresh one.
    pub fn to_put(&self, fresh: RealmId) -> RealmId {
        self.current.unwrap_or(fresh)
    }

    /// Takes note of the realm that etcd has.
    pub fn found(&mut self, realm: RealmId) {
        let Some(before) = self.current.replace(realm).filter(|before| *before != realm) else { return };
        self.former.retain(|former| *former != before && *former != realm);
        self.former.push(before);
        if self.former.len() > FORMER {
            self.former.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn realm(number: u128) -> RealmId {
        RealmId::new(Uuid::from_u128(number))
    }

    #[test]
    fn a_node_puts_the_realm_that_it_knows_and_bridges_from_those_before() {
        let mut realms = Realms::default();
        assert_eq!((realms.current(), realms.to_put(realm(9))), (None, realm(9)));
        realms.found(realm(1));
        assert_eq!((realms.to_put(realm(9)), realms.former()), (realm(1), &[][..]));
        realms.found(realm(1));
        assert!(realms.former().is_empty());
        realms.found(realm(2));
        assert_eq!((realms.current(), realms.former()), (Some(realm(2)), &[realm(1)][..]));
        // An older backup of etcd brings a former realm back.
        realms.found(realm(1));
        assert_eq!((realms.current(), realms.former()), (Some(realm(1)), &[realm(2)][..]));
    }

    #[test]
    fn a_node_remembers_a_bounded_number_of_realms() {
        let mut realms = Realms::default();
        for number in 0..100 {
            realms.found(realm(number));
        }
        assert_eq!(realms.former(), (91..99).map(realm).collect::<Vec<_>>());
    }

    #[test]
    fn a_field_that_a_later_version_adds_to_the_record_changes_nothing() {
        let record = RealmRecord { cluster: ClusterId::new(Uuid::from_u128(5)), realm: realm(6) };
        let mut written = serde_json::to_value(record).unwrap();
        written["of_a_later_version"] = serde_json::json!({ "any": "thing" });
        assert_eq!(serde_json::from_value::<RealmRecord>(written).unwrap(), record);
    }
}
