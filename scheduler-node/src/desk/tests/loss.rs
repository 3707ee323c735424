//! Losses of commits that operators accept, on a real etcd and a real database.

use std::sync::Arc;

use common::{
    cluster::{
        realm::RealmRecord,
        seen::{Lineage, Lsn, Seen},
    },
    ids::{ClusterId, RealmId},
};
use tokio::sync::watch;
use uuid::Uuid;

use super::{PLAIN, counter_in};
use crate::{
    access::Access,
    config::Auth,
    coordination::tests::{SOON, coordination, etcdctl, shared_etcd, soon},
    store::tests::fixture,
};

#[tokio::test]
async fn no_loss_is_accepted_under_the_prefix_of_another_cluster() {
    let test = fixture::database().await;
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (access, views) = (Arc::new(Access::new(&Auth::default())), watch::channel(Arc::default()).1);
    let counter = counter_in(vec![Arc::clone(&test.database)], PLAIN, access, coordination.clone(), views);
    let name = test.database.name().as_str();
    let ours = test.database.cluster_ask(None, SOON).await.expect("it is migrated");

    // The other cluster has a server of its own.
    let stranger = Lineage { system: 8, timeline: 1, flushed: Lsn::new(1), left: None };
    test.database.ping().await.expect("no other server is known yet");
    test.database.learn(&Seen::beginning(&stranger, 0));
    let refused = async { while test.database.ping().await.is_ok() || test.database.loss().is_none() {} };
    soon("the server is a stranger", refused).await;

    let realm = RealmId::new(Uuid::new_v4());
    let theirs = RealmRecord { cluster: ClusterId::new(Uuid::new_v4()), realm };
    coordination.realm_keep(&theirs).await.expect("etcd answers");
    let refused = counter.desk.accept_loss(name, "ops").await.expect_err("it would end the other cluster's server");
    assert!(refused.is_conflict() && refused.detail.contains("belongs to cluster"), "{refused:?}");
    let record = coordination.seen_read(test.database.name()).await.expect("etcd answers");
    assert_eq!(record.seen, None);

    etcdctl(&endpoints).await.delete(format!("{prefix}/cluster"), None).await.expect("deleted");
    coordination.realm_keep(&RealmRecord { cluster: ours, realm }).await.expect("etcd answers");
    assert_eq!(counter.desk.accept_loss(name, "ops").await.expect("its own").losses_accepted, 1);
}
