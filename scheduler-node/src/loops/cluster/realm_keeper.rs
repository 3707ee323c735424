//! Keeps the record of the realm in etcd, and finds out whether the prefix there belongs to this node's cluster.
//!
//! A node joins the cluster after it has found that. If the record is gone, because etcd has lost its data, a running
//! node puts it back. If it stops, this node never joins, or goes on with the realm that it knows.

use std::time::Duration;

use common::{
    cluster::realm::{RealmRecord, Realms},
    ids::{ClusterId, RealmId},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    causes::explained,
    coordination::{Coordination, Error, ForeignPrefix},
    supervise::at_work,
};

/// The interval of the looks at the record.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The interval while this node cannot join: etcd does not answer or refuses, or the prefix belongs to another cluster.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What this node knows of its realm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealmStanding {
    pub realms: Realms,
    /// Why this node must not join under the prefix, or cannot.
    pub refusal: Option<String>,
}

impl RealmStanding {
    /// Draws the conclusions from the record that etcd has.
    fn read(&mut self, cluster: ClusterId, prefix: &str, found: &RealmRecord) {
        if found.cluster == cluster {
            self.realms.found(found.realm);
            self.refusal = None;
        } else {
            let prefix = prefix.to_owned();
            self.refusal = Some(ForeignPrefix { prefix, found: found.cluster, expected: cluster }.to_string());
        }
    }

    /// Notes that etcd has not taken the record, as without room or the right to write. A node that knows its realm
    /// goes on with it. Returns whether this is new.
    fn refuse(&mut self, error: &Error) -> bool {
        let why = Some(explained(error));
        let is_new = self.realms.current().is_none() && self.refusal != why;
        if is_new {
            self.refusal = why;
        }
        is_new
    }
}

/// Keeps the record; the module says how.
#[derive(Debug)]
pub struct RealmKeeper {
    pub coordination: Coordination,
    pub prefix: String,
    /// The cluster of the databases, once one of them has answered.
    pub cluster: watch::Receiver<Option<ClusterId>>,
    pub standing: watch::Sender<RealmStanding>,
}

impl RealmKeeper {
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&mut self) {
        let Ok(cluster) = self.cluster.wait_for(Option::is_some).await.map(|known| *known) else { return };
        let Some(cluster) = cluster else { return };
        // The same at each try, so that a repeated request puts the same record.
        let fresh = RealmId::new(uuid::Uuid::new_v4());
        let mut refused = false;
        loop {
            let settled = self.look(cluster, fresh, &mut refused).await;
            tokio::time::sleep(if settled { LOOK_EVERY } else { LOOK_AGAIN }).await;
        }
    }

    /// Whether the record is there and is this cluster's. `refused`: the log says already that etcd does not take it.
    async fn look(&self, cluster: ClusterId, fresh: RealmId, refused: &mut bool) -> bool {
        let _work = at_work();
        let wanted = RealmRecord { cluster, realm: self.standing.borrow().realms.to_put(fresh) };
        let found = match self.coordination.realm_keep(&wanted).await {
            Ok(found) => found,
            Err(error) => {
                self.report(&error, refused);
                return false;
            }
        };
        *refused = false;
        self.standing.send_if_modified(|standing| {
            let before = standing.clone();
            standing.read(cluster, &self.prefix, &found);
            let changed = before != *standing;
            if let (Some(why), true) = (&standing.refusal, changed) {
                tracing::error!(why, "this node does not join");
            } else if changed && before.realms.current().is_some() && before.refusal.is_none() {
                tracing::warn!(realm = %found.realm, "etcd has another realm now: it has lost its data or was restored");
            }
            changed
        });
        found.cluster == cluster
    }

    /// The client says once that etcd does not answer. A refusal is an answer, so this keeper says it.
    fn report(&self, error: &Error, refused: &mut bool) {
        let cause = error as &dyn std::error::Error;
        if error.is_news(refused) {
            tracing::warn!(error = cause, "etcd does not take the record of the realm; retrying");
        } else {
            tracing::debug!(error = cause, "cannot keep the record of the realm");
        }
        if !matches!(error, Error::Unanswered { .. }) {
            self.standing.send_if_modified(|standing| standing.refuse(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{
        coordination::{
            EtcdOp,
            tests::{coordination, own_etcd},
        },
        loops::tests::LONG,
        working_set::failures::tests::Log,
    };

    #[tokio::test]
    async fn a_refusal_of_etcd_is_the_reason_why_a_node_does_not_join_until_etcd_takes_the_record() {
        let log = Log::keep();
        let (etcd, _) = own_etcd(1).await;
        etcd.raise_no_space().await.unwrap();
        let prefix = "/duetime".to_owned();
        let keeper = RealmKeeper {
            coordination: coordination(&etcd.endpoints(), &prefix).await,
            prefix,
            cluster: watch::channel(None).1,
            standing: watch::Sender::default(),
        };
        let (ours, fresh) = (ClusterId::new(Uuid::from_u128(1)), RealmId::new(Uuid::from_u128(2)));
        let mut refused = false;
        for _ in 0..3 {
            assert!(!keeper.look(ours, fresh, &mut refused).await);
        }
        let why = keeper.standing.borrow().refusal.clone().expect("etcd refuses");
        assert!(why.contains("etcd refused") && why.contains("space exceeded"), "{why}");
        assert_eq!(log.count("etcd does not take the record of the realm"), 1);
        etcd.clear_no_space().await.unwrap();
        // A busy etcd may not answer the first request in time.
        let taken = async {
            while !keeper.look(ours, fresh, &mut refused).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, taken).await.expect("etcd takes the record");
        let standing = keeper.standing.borrow().clone();
        assert_eq!((standing.realms.current(), standing.refusal), (Some(fresh), None));
    }

    #[test]
    fn a_node_that_knows_its_realm_goes_on_with_it_while_etcd_refuses() {
        let mut standing = RealmStanding::default();
        standing.realms.found(RealmId::new(Uuid::from_u128(1)));
        assert!(!standing.refuse(&Error::Contended { op: EtcdOp::RealmKeep }));
        assert_eq!(standing.refusal, None);
    }

    #[test]
    fn a_prefix_of_another_cluster_is_refused_and_the_realm_stays() {
        let (ours, theirs) = (ClusterId::new(Uuid::from_u128(1)), ClusterId::new(Uuid::from_u128(2)));
        let realm = RealmId::new(Uuid::from_u128(3));
        let mut standing = RealmStanding::default();
        standing.read(ours, "/duetime", &RealmRecord { cluster: ours, realm });
        assert_eq!((standing.realms.current(), standing.refusal.clone()), (Some(realm), None));
        let foreign = RealmRecord { cluster: theirs, realm: RealmId::new(Uuid::from_u128(4)) };
        standing.read(ours, "/duetime", &foreign);
        let refusal = standing.refusal.clone().expect("another cluster's");
        assert!(refusal.contains(&theirs.to_string()) && refusal.contains("/duetime/cluster"), "{refusal}");
        assert_eq!(standing.realms.current(), Some(realm));
        standing.read(ours, "/duetime", &RealmRecord { cluster: ours, realm });
        assert_eq!(standing.refusal, None);
    }
}
