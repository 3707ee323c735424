//! Whether etcd takes writes. It may answer reads and renew leases, and refuse all writes: its space is used up, the
//! data of its members differ, or the user has lost the right.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::{Coordination, Error, EtcdOp};

impl Coordination {
    /// Sends a write that never happens: etcd judges its alarms and the user's rights before it compares. The metric
    /// has the outcome: writable unless etcd refuses writes. One that does not answer has alerts of its own.
    pub async fn write_probe(&self) -> Result<(), Error> {
        let key = self.keys.realm();
        let never = Compare::create_revision(key.clone(), CompareOp::Less, 0);
        let txn = Txn::new().when([never]).and_then([TxnOp::put(key, "", None)]);
        let answer = self.transact(EtcdOp::WriteProbe, txn).await.map(drop);
        let refuses = answer.as_ref().is_err_and(Error::refuses_writes);
        self.metrics.etcd_writable.set(i64::from(!refuses));
        answer
    }
}
