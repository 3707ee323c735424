//! Nodes drained by operators, on a real etcd.

use std::{collections::BTreeSet, sync::Arc};

use common::{
    access::Scope,
    ids::{NodeId, NodeName},
};
use tokio_util::sync::CancellationToken;

use super::{Counter, PLAIN, counter_in};
use crate::{
    access::Access,
    config::Auth,
    coordination::{
        Coordination, Mirror,
        tests::{coordination, kept_lease, member, node, shared_etcd, soon},
    },
    store::tests::fixture::{self, TestDatabase},
    supervise::spawn_child,
};

/// The desk of a node in a cluster in which the nodes `names` have registered.
pub(crate) async fn among(names: &[&str]) -> (Counter, Coordination, Vec<NodeId>, TestDatabase) {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let nodes: Vec<NodeId> = names.iter().map(|name| node(name)).collect();
    let lease = kept_lease(&coordination).await;
    for node in &nodes {
        coordination.member_put(&member(node), lease).await.expect("registered");
    }
    let (mirror, mut views) = Mirror::new(coordination.clone());
    spawn_child(mirror.run(CancellationToken::new()));
    soon("the members", views.wait_for(|view| view.members.len() == nodes.len())).await.expect("it runs");
    let test = fixture::database().await;
    let access = Arc::new(Access::new(&Auth::default()));
    let counter = counter_in(vec![Arc::clone(&test.database)], PLAIN, access, coordination.clone(), views);
    (counter, coordination, nodes, test)
}

async fn drained(coordination: &Coordination) -> BTreeSet<NodeId> {
    coordination.drained_read().await.expect("etcd answers").roll.drained
}

#[tokio::test]
async fn a_node_is_drained_and_put_back_and_shown_so_with_the_answer() {
    let (counter, coordination, nodes, _test) = among(&["a", "b"]).await;
    for _ in 0..2 {
        assert!(counter.desk.node_drain("b", true, "ops").await.expect("done").drained);
        assert_eq!(drained(&coordination).await, [nodes[1].clone()].into());
    }
    let shown = counter.desk.cluster().await.expect("a cluster").nodes;
    assert_eq!(shown.iter().map(|node| node.drained).collect::<Vec<_>>(), [false, true]);
    for _ in 0..2 {
        assert!(!counter.desk.node_drain("b", false, "ops").await.expect("done").drained);
        assert_eq!(drained(&coordination).await, BTreeSet::new());
    }
}

#[tokio::test]
async fn an_unknown_node_and_the_last_one_are_refused_and_so_is_whoever_may_not_know_of_everything() {
    let (counter, coordination, ..) = among(&["a", "b"]).await;
    let unknown = counter.desk.node_drain("c", true, "ops").await.expect_err("unknown");
    assert_eq!((unknown.status, unknown.detail.ends_with("there are: a, b")), (404, true), "{unknown}");
    assert_eq!(counter.desk.node_drain("c", false, "ops").await.expect_err("unknown").status, 404);
    counter.desk.node_drain("a", true, "ops").await.expect("one is left");
    let last = counter.desk.node_drain("b", true, "ops").await.expect_err("the last one");
    assert_eq!((last.status, last.detail.contains("`b`")), (409, true), "{last}");
    let scope = Scope::of(Some(vec!["mine".to_owned()])).expect("a scope");
    let refused = counter.desk.within(scope).node_drain("a", false, "ops").await.expect_err("not for all queues");
    assert_eq!(refused.status, 403);
    assert_eq!(drained(&coordination).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_drain_the_last_two_nodes_at_once_one_is_refused() {
    let (counter, coordination, _, _test) = among(&["a", "b"]).await;
    for _ in 0..50 {
        let (one, other) =
            tokio::join!(counter.desk.node_drain("a", true, "ann"), counter.desk.node_drain("b", true, "bob"));
        let drained = drained(&coordination).await;
        assert_eq!(drained.len(), 1, "{one:?} {other:?}");
        let statuses: BTreeSet<u16> =
            [&one, &other].map(|done| done.as_ref().map_or_else(|no| no.status, |_| 200)).into();
        assert_eq!(statuses, [200, 409].into(), "{one:?} {other:?}");
        for node in drained {
            counter.desk.node_drain(node.name.as_str(), false, "ops").await.expect("undrained");
        }
    }
}

#[tokio::test]
async fn a_drain_ends_with_the_start_of_the_node() {
    let (counter, coordination, nodes, _test) = among(&["a", "b"]).await;
    counter.desk.node_drain("a", true, "ops").await.expect("drained");
    coordination.member_remove(&nodes[0]).await.expect("gone");
    let lease = kept_lease(&coordination).await;
    let reborn = node("a");
    coordination.member_put(&member(&reborn), lease).await.expect("registered");
    let answer = counter.desk.node_drain("b", true, "ops").await.expect("the new start of `a` is not drained");
    assert_eq!((answer.name, answer.drained), (NodeName::new("b"), true));
}

#[tokio::test]
async fn without_etcd_nothing_is_done_and_the_answer_says_so() {
    let (counter, _test) = super::fresh().await;
    let refused = counter.desk.node_drain("a", true, "ops").await.expect_err("no etcd");
    assert_eq!((refused.status, refused.detail.contains("nothing was changed")), (503, true), "{refused}");
}
