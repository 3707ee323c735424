use common::{
    cluster::realm::RealmRecord,
    ids::{ClusterId, RealmId},
};

use super::*;

fn record() -> RealmRecord {
    RealmRecord { cluster: ClusterId::new(Uuid::new_v4()), realm: RealmId::new(Uuid::new_v4()) }
}

#[tokio::test]
async fn of_many_nodes_that_put_a_realm_at_once_all_return_the_same() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    assert_eq!(coordination.realm_read().await.unwrap(), None);
    let wanted: Vec<RealmRecord> = (0..8).map(|_| record()).collect();
    let kept = futures::future::join_all(wanted.iter().map(|wanted| coordination.realm_keep(wanted))).await;
    let kept: Vec<RealmRecord> = kept.into_iter().map(Result::unwrap).collect();
    assert!(wanted.contains(&kept[0]) && kept.iter().all(|record| *record == kept[0]), "{kept:?}");
    assert_eq!(coordination.realm_keep(&record()).await.unwrap(), kept[0]);
    assert_eq!(coordination.realm_read().await.unwrap(), Some(kept[0]));
}

#[tokio::test]
async fn a_realm_that_is_gone_or_cannot_be_read_is_put_again() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let known = record();
    coordination.realm_keep(&known).await.unwrap();
    let mut client = etcdctl(&endpoints).await;
    let key = format!("{prefix}/cluster");
    client.delete(key.clone(), None).await.unwrap();
    assert_eq!(coordination.realm_keep(&known).await.unwrap(), known);
    client.put(key, "no record", None).await.unwrap();
    assert_eq!(coordination.realm_keep(&known).await.unwrap(), known);
    assert_eq!(coordination.realm_read().await.unwrap(), Some(known));
}
