//! Keys that belong to one node: created when absent, kept while the node lives, removed by that node alone.

use std::sync::Arc;

use etcd_client::{
    Client, Compare, CompareOp, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::{
    Coordination, Error, EtcdOp, LeaseId,
    client::REQUEST_TIMEOUT,
    error::{code, status},
};

/// The most tries of a write whose key changes between the read and the write. Only Duetime writes these keys,
/// so one such change is rare already.
const ROUNDS: usize = 4;

/// The outcome for a key that this node wants to own.
#[derive(Debug)]
pub(super) enum Kept {
    Ours { create_revision: i64 },
    Anothers { value: Vec<u8> },
}

/// A value as it was read.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) value: Vec<u8>,
    pub(super) mod_revision: i64,
    /// The number of the lease of the key, or 0.
    pub(super) lease: i64,
}

impl Coordination {
    /// Puts `value` under `key` on `lease`, if the key is free, is on no lease (a copy from another etcd), or has a
    /// value that it `may_overwrite`.
    pub(super) async fn record_keep(
        &self,
        op: EtcdOp,
        key: String,
        value: Vec<u8>,
        lease: LeaseId,
        may_overwrite: impl Fn(&[u8]) -> bool,
    ) -> Result<Kept, Error> {
        let put = TxnOp::put(key.clone(), value.clone(), Some(PutOptions::new().with_lease(lease.number())));
        let get = TxnOp::get(key.clone(), None);
        // The first try expects no key; each later try expects the state that the one before found.
        let mut unchanged = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let mut over = None;
        for _ in 0..ROUNDS {
            let txn = Txn::new().when([unchanged]).and_then([put.clone()]).or_else([get.clone()]);
            let answer = self.transact(op, txn).await?;
            if answer.succeeded() {
                let now = answer.header().map_or(0, |header| header.revision());
                return Ok(Kept::Ours { create_revision: over.unwrap_or(now) });
            }
            let Some(found) = found(&answer) else {
                unchanged = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
                over = None;
                continue;
            };
            if found.lease() != 0 && !may_overwrite(found.value()) {
                return Ok(Kept::Anothers { value: found.value().to_vec() });
            }
            if found.value() == value && found.lease() == lease.number() {
                return Ok(Kept::Ours { create_revision: found.create_revision() });
            }
            unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, found.mod_revision());
            over = Some(found.create_revision());
        }
        Err(Error::Contended { op })
    }

    /// Deletes `key` if it exists and is this node's.
    pub(super) async fn record_remove(
        &self,
        op: EtcdOp,
        key: &str,
        is_ours: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            let Some(seen) = self.record_read(op, key).await?.filter(|seen| is_ours(&seen.value)) else {
                return Ok(());
            };
            // The delete names the revision: a copy of this request that arrives late must not delete a later key.
            let unchanged = Compare::mod_revision(key, CompareOp::Equal, seen.mod_revision);
            let txn = Txn::new().when([unchanged]).and_then([TxnOp::delete(key, None)]);
            if self.transact(op, txn).await?.succeeded() {
                return Ok(());
            }
        }
        Err(Error::Contended { op })
    }

    /// The present value of `key`, read from the leader.
    pub(super) async fn record_read(&self, op: EtcdOp, key: &str) -> Result<Option<Seen>, Error> {
        let key: Arc<str> = key.into();
        let get = move |mut client: Client| {
            let key = Arc::clone(&key);
            async move { client.get(&*key, None).await }
        };
        let mut answer: GetResponse = self.endpoints.ask(op, REQUEST_TIMEOUT, get).await?;
        let found = answer.take_kvs().pop();
        Ok(found.map(|found| Seen {
            mod_revision: found.mod_revision(),
            lease: found.lease(),
            value: found.into_key_value().1,
        }))
    }

    pub(super) async fn transact(&self, op: EtcdOp, txn: Txn) -> Result<TxnResponse, Error> {
        let send = |mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.endpoints.ask(op, REQUEST_TIMEOUT, send).await.map_err(|error| match error {
            Error::Refused { op, source } if status(&source) == Some(code::NOT_FOUND) => Error::LeaseGone { op },
            other => other,
        })
    }
}

/// The value that the read in a failed transaction found.
pub(super) fn found(answer: &TxnResponse) -> Option<KeyValue> {
    match answer.op_responses().into_iter().next()? {
        TxnOpResponse::Get(mut get) => get.take_kvs().pop(),
        _ => None,
    }
}
