//! Keeps the record of the realm in etcd, and finds out whether the prefix there belongs to this node's cluster.
//!
//! A node joins the cluster after it has found that. If the record is gone, because etcd has lost its data, a running
//! node puts it back. A node that has found another cluster's record leaves the prefix to that cluster for a while. It
//! also finds out whether etcd takes writes: a node may write nothing for days while all is well. If this loop stops,
//! the node never joins, or goes on with the realm that it knows.

use std::time::Duration;

use common::{
    cluster::realm::{RealmRecord, Realms},
    ids::{ClusterId, RealmId},
};
use tokio::{sync::watch, time::Instant};
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

/// The time for which another cluster's record must be gone before this node puts its own. If etcd has lost its data,
/// each node of that cluster puts the record back within one interval; the second one is for nodes that are held up.
const YIELD_FOR: Duration = LOOK_EVERY.saturating_mul(2);

/// The interval of the probes of whether etcd takes writes. Each is an entry in etcd's log.
const PROBE_EVERY: Duration = Duration::from_secs(30);

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

/// What the looks before have found.
#[derive(Debug, Default)]
struct Past {
    /// The log says already that etcd does not take the record.
    refused: bool,
    /// The log says already that etcd takes no writes.
    unwritable: bool,
    /// The last record that was found is another cluster's.
    is_foreign: bool,
    /// Since when that record is gone.
    gone_since: Option<Instant>,
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
        let mut past = Past::default();
        let mut probe_at = Instant::now();
        loop {
            let settled = self.look(cluster, fresh, &mut past).await;
            if Instant::now() >= probe_at {
                self.probe(&mut past.unwritable).await;
                probe_at = Instant::now() + PROBE_EVERY;
            }
            tokio::time::sleep(if settled { LOOK_EVERY } else { LOOK_AGAIN }).await;
        }
    }

    /// Finds out whether etcd takes writes. While it takes none, all goes on, and a node that is lost is not replaced.
    async fn probe(&self, refused: &mut bool) {
        let _work = at_work();
        match self.coordination.write_probe().await {
            Ok(()) => {
                if std::mem::take(refused) {
                    tracing::info!("etcd takes writes again");
                }
            }
            Err(error) => {
                let is_news = error.refuses_writes() && error.is_news(refused);
                let error = &error as &dyn std::error::Error;
                if is_news {
                    tracing::warn!(error, "etcd takes no writes; a node that is lost now is not replaced");
                } else {
                    tracing::debug!(error, "could not probe whether etcd takes writes");
                }
            }
        }
    }

    /// Whether the record is there and is this cluster's.
    async fn look(&self, cluster: ClusterId, fresh: RealmId, past: &mut Past) -> bool {
        let _work = at_work();
        let wanted = RealmRecord { cluster, realm: self.standing.borrow().realms.to_put(fresh) };
        let found = match self.keep_or_yield(&wanted, past).await {
            Ok(found) => found,
            Err(error) => {
                // While etcd does not answer, the other cluster cannot put its record back either.
                past.gone_since = None;
                self.report(&error, &mut past.refused);
                return false;
            }
        };
        past.refused = false;
        let Some(found) = found else { return false };
        (past.is_foreign, past.gone_since) = (found.cluster != cluster, None);
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

    /// The record that is there, or `wanted`, which is put. `None`: another cluster's record is gone, and that cluster
    /// may still put it back.
    async fn keep_or_yield(&self, wanted: &RealmRecord, past: &mut Past) -> Result<Option<RealmRecord>, Error> {
        if past.is_foreign {
            let found = self.coordination.realm_read().await?;
            if found.is_some() {
                return Ok(found);
            }
            let gone_since = *past.gone_since.get_or_insert_with(Instant::now);
            if gone_since.elapsed() <= YIELD_FOR {
                return Ok(None);
            }
        }
        self.coordination.realm_keep(wanted).await.map(Some)
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
            tests::{coordination, etcdctl, own_etcd, shared_etcd},
        },
        loops::tests::LONG,
        working_set::failures::tests::Log,
    };

    async fn keeper(endpoints: &[String], prefix: &str) -> RealmKeeper {
        RealmKeeper {
            coordination: coordination(endpoints, prefix).await,
            prefix: prefix.to_owned(),
            cluster: watch::channel(None).1,
            standing: watch::Sender::default(),
        }
    }

    #[tokio::test]
    async fn a_refusal_of_etcd_is_the_reason_why_a_node_does_not_join_until_etcd_takes_the_record() {
        let log = Log::keep();
        let (etcd, _) = own_etcd(1).await;
        etcd.raise_no_space().await.unwrap();
        let keeper = keeper(&etcd.endpoints(), "/duetime").await;
        let (ours, fresh) = (ClusterId::new(Uuid::from_u128(1)), RealmId::new(Uuid::from_u128(2)));
        let mut past = Past::default();
        for _ in 0..3 {
            assert!(!keeper.look(ours, fresh, &mut past).await);
        }
        let why = keeper.standing.borrow().refusal.clone().expect("etcd refuses");
        assert!(why.contains("etcd refused") && why.contains("space exceeded"), "{why}");
        assert_eq!(log.count("etcd does not take the record of the realm"), 1);
        etcd.clear_no_space().await.unwrap();
        // A busy etcd may not answer the first request in time.
        let taken = async {
            while !keeper.look(ours, fresh, &mut past).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, taken).await.expect("etcd takes the record");
        let standing = keeper.standing.borrow().clone();
        assert_eq!((standing.realms.current(), standing.refusal), (Some(fresh), None));
    }

    #[tokio::test]
    async fn the_cluster_that_had_the_prefix_gets_it_again_when_etcd_has_lost_its_data() {
        let (endpoints, prefix) = shared_etcd().await;
        let (one, other) = (keeper(&endpoints, &prefix).await, keeper(&endpoints, &prefix).await);
        let [ours, theirs] = [1, 2].map(|number| ClusterId::new(Uuid::from_u128(number)));
        let fresh = RealmId::new(Uuid::from_u128(3));
        let (mut our_past, mut their_past) = (Past::default(), Past::default());
        let story = async {
            while !one.look(ours, fresh, &mut our_past).await {}
            while other.standing.borrow().refusal.is_none() {
                assert!(!other.look(theirs, fresh, &mut their_past).await);
            }
            let mut client = etcdctl(&endpoints).await;
            client.delete(format!("{prefix}/cluster"), None).await.unwrap();
            for _ in 0..5 {
                assert!(!other.look(theirs, fresh, &mut their_past).await);
            }
            assert_eq!(one.coordination.realm_read().await.unwrap(), None, "it is left to the first cluster");
            while !one.look(ours, fresh, &mut our_past).await {}
            assert!(!other.look(theirs, fresh, &mut their_past).await);
            assert_eq!(one.coordination.realm_read().await.unwrap().map(|record| record.cluster), Some(ours));
            // No node puts it back: the first cluster is gone.
            client.delete(format!("{prefix}/cluster"), None).await.unwrap();
            while !other.look(theirs, fresh, &mut their_past).await {
                their_past.gone_since = Instant::now().checked_sub(2 * YIELD_FOR);
            }
        };
        tokio::time::timeout(LONG, story).await.expect("etcd answers");
        let standing = other.standing.borrow().clone();
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
