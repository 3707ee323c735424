//! What the nodes have seen of each database's server, kept for the nodes that start later.

use common::{cluster::seen::Seen, ids::DatabaseName};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{Coordination, Error, EtcdOp};

/// A record as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenRecord {
    /// `None`: there is none, or it cannot be parsed.
    pub seen: Option<Seen>,
    /// The revision of the key. 0: there is no key.
    pub mod_revision: i64,
}

impl Coordination {
    pub async fn seen_read(&self, database: &DatabaseName) -> Result<SeenRecord, Error> {
        let found = self.record_read(EtcdOp::SeenRead, &self.keys.seen(database)).await?;
        Ok(found.map_or_else(SeenRecord::default, |found| SeenRecord {
            seen: serde_json::from_slice(&found.value).ok(),
            mod_revision: found.mod_revision,
        }))
    }

    /// Writes what was seen, unless the key has changed since it was read. Returns the revision of the write.
    pub async fn seen_write(
        &self,
        database: &DatabaseName,
        read: &SeenRecord,
        next: &Seen,
    ) -> Result<Option<i64>, Error> {
        let key = self.keys.seen(database);
        let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, read.mod_revision);
        let value = serde_json::to_vec(next).expect("a record holds plain numbers");
        let txn = Txn::new().when([unchanged]).and_then([TxnOp::put(key, value, None)]);
        let answer = self.transact(EtcdOp::SeenWrite, txn).await?;
        Ok(answer.header().map(|header| header.revision()).filter(|_| answer.succeeded()))
    }
}
