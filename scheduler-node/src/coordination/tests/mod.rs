//! Tests with a real etcd, and helpers for other rooms' tests that need one.

mod login;
mod realm;
mod revocation;
mod session;
mod writes;

use std::{future::Future, path::PathBuf, time::Duration};

use common::{
    cluster::Member,
    ids::{Incarnation, NodeId, NodeName},
    time::UnixMicros,
};
use etcd_client::Client;
use integration_tests::sandbox::{Etcd, Tether, scratch, shared};
use prometheus::Registry;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Coordination, CoordinationMetrics, EtcdSettings, LeaseId};
use crate::supervise::spawn_child;

/// A generous limit, because the machine may be busy. No healthy step takes that long.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// The time to live of a lease that is to run out within a test.
pub(crate) const TTL: Duration = Duration::from_secs(3);

/// The time to live of every other lease: longer than a busy machine stands still.
pub(crate) const KEPT: Duration = Duration::from_secs(30);

/// The etcd that the tests share, and a prefix of this test's own.
pub(crate) async fn shared_etcd() -> (Vec<String>, String) {
    let endpoints = shared::etcd().await.unwrap().endpoints();
    (endpoints, format!("/{}", shared::unique("coordination")))
}

/// An etcd of the test's own, for a test that breaks it.
pub(crate) async fn own_etcd(members: usize) -> (Etcd, PathBuf) {
    let folder = scratch().join(shared::unique("coordination-etcd"));
    (Etcd::start(&folder, members, Tether::Tethered).await.unwrap(), folder)
}

pub(crate) async fn coordination(endpoints: &[String], prefix: &str) -> Coordination {
    connect(settings(endpoints, prefix)).await
}

pub(crate) async fn coordination_for(endpoints: &[String], prefix: &str, lease_ttl: Duration) -> Coordination {
    connect(EtcdSettings { lease_ttl, ..settings(endpoints, prefix) }).await
}

fn settings(endpoints: &[String], prefix: &str) -> EtcdSettings {
    EtcdSettings { endpoints: endpoints.to_vec(), prefix: prefix.to_owned(), lease_ttl: KEPT, user: None, tls: None }
}

async fn connect(settings: EtcdSettings) -> Coordination {
    Coordination::new(settings, CoordinationMetrics::register(&Registry::new()).unwrap()).await.unwrap()
}

/// A second client, for actions that a person would take with etcdctl.
pub(crate) async fn etcdctl(endpoints: &[String]) -> Client {
    Client::connect(endpoints, None).await.unwrap()
}

/// A fresh start of the node `name`.
pub(crate) fn node(name: &str) -> NodeId {
    NodeId { name: NodeName::new(name), incarnation: Incarnation::new(Uuid::new_v4()) }
}

pub(crate) fn member(node: &NodeId) -> Member {
    Member {
        node: node.clone(),
        url: None,
        leaving: false,
        unfit: [].into(),
        databases: None,
        broker_unfit: false,
        presence: true,
        version: "0.0.0".to_owned(),
        started_at: UnixMicros::new(1),
    }
}

/// The number of a lease that no etcd has.
pub(crate) fn some_lease() -> LeaseId {
    LeaseId::parse("00000000000000ff").unwrap()
}

/// A lease that lives as long as the test.
pub(crate) async fn kept_lease(coordination: &Coordination) -> LeaseId {
    let lease = coordination.lease_grant().await.unwrap();
    let coordination = coordination.clone();
    spawn_child(async move {
        loop {
            tokio::time::sleep(coordination.lease_ttl() / 6).await;
            // The next renewal makes up for a failed one.
            let _ = coordination.lease_renew(lease).await;
        }
    });
    lease
}

/// Waits until `done` returns true; fails the test after the limit.
pub(crate) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}
