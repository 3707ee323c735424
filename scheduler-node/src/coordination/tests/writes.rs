use common::{
    cluster::{
        AssignmentRecord,
        seen::{Lineage, Lsn, Seen},
    },
    ids::{DatabaseName, Epoch, ShardId, Term},
    shard::Assignment,
};

use super::*;
use crate::coordination::{AssignmentWrite, Error, EtcdOp, KEYS_PER_TRANSACTION, LeaseId, OwnerKey};

fn record(term: Term, owner: &NodeId) -> AssignmentRecord {
    AssignmentRecord { term, assignment: Assignment { owners: vec![Some(owner.clone())] } }
}

async fn candidate(coordination: &Coordination, node: &NodeId) -> (Term, LeaseId) {
    let lease = coordination.lease_grant().await.unwrap();
    (coordination.candidate_put(node, lease).await.unwrap(), lease)
}

#[tokio::test]
async fn a_place_in_the_queue_is_kept_and_terms_rise() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, two) = (node("one"), node("two"));
    let (first, lease) = candidate(&coordination, &one).await;
    assert_eq!(coordination.candidate_put(&one, lease).await.unwrap(), first);
    let (second, _) = candidate(&coordination, &two).await;
    assert!(second > first);
    coordination.candidate_remove(lease).await.unwrap();
    let again = coordination.candidate_put(&one, lease).await.unwrap();
    assert!(again > second, "a candidate that returns queues at the end");
}

#[tokio::test]
async fn an_old_term_cannot_write_the_assignment() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, two) = (node("one"), node("two"));
    let (old, old_lease) = candidate(&coordination, &one).await;
    let by_old = record(old, &one);
    assert_eq!(coordination.assignment_write(None, &by_old, old_lease).await.unwrap(), AssignmentWrite::Done);
    coordination.candidate_remove(old_lease).await.unwrap();
    let late = record(old, &two);
    assert_eq!(coordination.assignment_write(Some(&by_old), &late, old_lease).await.unwrap(), AssignmentWrite::Deposed);
    // The write is refused even after the node has queued up again: that is another term.
    coordination.candidate_put(&one, old_lease).await.unwrap();
    assert_eq!(coordination.assignment_write(Some(&by_old), &late, old_lease).await.unwrap(), AssignmentWrite::Deposed);
    let (new, new_lease) = candidate(&coordination, &two).await;
    let by_new = record(new, &two);
    assert_eq!(coordination.assignment_write(Some(&by_old), &by_new, new_lease).await.unwrap(), AssignmentWrite::Done);
    assert_eq!(coordination.assignment_read().await.unwrap(), Some(by_new));
}

#[tokio::test]
async fn an_assignment_is_written_only_over_the_one_it_was_derived_from_and_may_be_repeated() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, two) = (node("one"), node("two"));
    let (term, lease) = candidate(&coordination, &one).await;
    let (first, second) = (record(term, &one), record(term, &two));
    assert_eq!(coordination.assignment_write(None, &first, lease).await.unwrap(), AssignmentWrite::Done);
    assert_eq!(coordination.assignment_write(None, &first, lease).await.unwrap(), AssignmentWrite::Done);
    assert_eq!(coordination.assignment_write(None, &second, lease).await.unwrap(), AssignmentWrite::Moved);
    assert_eq!(coordination.assignment_write(Some(&first), &second, lease).await.unwrap(), AssignmentWrite::Done);
    assert_eq!(coordination.assignment_read().await.unwrap(), Some(second));
}

#[tokio::test]
async fn two_nodes_never_own_the_same_shard_key() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let nodes: Vec<NodeId> = (0..8).map(|number| node(&format!("node-{number}"))).collect();
    let mut leases = Vec::new();
    for _ in &nodes {
        leases.push(coordination.lease_grant().await.unwrap());
    }
    for shard in (0..10).map(ShardId::new) {
        let tries = nodes.iter().zip(&leases).map(|(node, lease)| coordination.owner_create(shard, node, None, *lease));
        let created = futures::future::join_all(tries).await;
        assert_eq!(created.into_iter().filter(|created| created.as_ref().unwrap().is_some()).count(), 1);
    }
}

#[tokio::test]
async fn an_owner_key_that_cannot_be_read_belongs_to_the_first_that_wants_it() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let lease = coordination.lease_grant().await.unwrap();
    let options = etcd_client::PutOptions::new().with_lease(lease.number());
    etcdctl(&endpoints).await.put(format!("{prefix}/owners/7"), "{", Some(options)).await.unwrap();
    let (one, two, shard) = (node("one"), node("two"), ShardId::new(7));
    let created = coordination.owners_create(&[(shard, None)], &one, lease).await.unwrap();
    assert_eq!(coordination.owners_confirm(&[(created[0], Epoch::from_store(1))], &one).await.unwrap(), [shard]);
    assert_eq!(coordination.owner_create(shard, &two, None, lease).await.unwrap(), None);
}

#[tokio::test]
async fn many_owner_keys_in_one_request_are_each_as_one_alone() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, two) = (node("one"), node("two"));
    let lease = coordination.lease_grant().await.unwrap();
    let count = u16::try_from(KEYS_PER_TRANSACTION).unwrap();
    let shards: Vec<ShardId> = (0..count).map(ShardId::new).collect();
    let wanted: Vec<(ShardId, Option<Epoch>)> = shards.iter().map(|shard| (*shard, None)).collect();
    let create = async || {
        let mut created = coordination.owners_create(&wanted, &one, lease).await.unwrap();
        created.sort_by_key(|key| key.shard);
        created
    };
    let confirm = async |created: &[OwnerKey]| {
        let taken: Vec<_> = created.iter().map(|key| (*key, Epoch::from_store(1))).collect();
        coordination.owners_confirm(&taken, &one).await.unwrap().len()
    };

    let created = create().await;
    assert_eq!(
        (created.len(), create().await),
        (shards.len(), created.clone()),
        "a repeated request finds its own keys"
    );
    assert_eq!(confirm(&created).await, shards.len());
    coordination.owner_remove(shards[3], &one).await.unwrap();
    assert_eq!(confirm(&created).await, shards.len() - 1, "one fence was taken too late");
    coordination.owner_create(shards[3], &two, None, lease).await.unwrap().unwrap();
    coordination.owners_remove(&shards, &one).await.unwrap();

    let created = create().await;
    assert!(
        created.len() == shards.len() - 1 && created.iter().all(|key| key.shard != shards[3]),
        "another's key stays"
    );
    coordination.lease_revoke(lease).await.unwrap();
    assert_eq!(confirm(&created).await, 0);
}

#[tokio::test]
async fn only_its_owner_deletes_a_shard_key() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, two, shard) = (node("one"), node("two"), ShardId::new(5));
    let lease = coordination.lease_grant().await.unwrap();
    coordination.owner_create(shard, &one, None, lease).await.unwrap().unwrap();
    coordination.owner_remove(shard, &two).await.unwrap();
    assert_eq!(coordination.owner_create(shard, &two, None, lease).await.unwrap(), None);
    coordination.owner_remove(shard, &one).await.unwrap();
    coordination.owner_create(shard, &two, None, lease).await.unwrap().unwrap();
    // Another start of the same node counts as another node.
    assert_eq!(coordination.owner_create(shard, &node("two"), None, lease).await.unwrap(), None);
}

#[tokio::test]
async fn an_epoch_is_confirmed_only_while_the_key_is_the_one_that_was_created() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (me, shard, epoch) = (node("one"), ShardId::new(5), Epoch::from_store(7));
    let lease = coordination.lease_grant().await.unwrap();
    let created = coordination.owner_create(shard, &me, None, lease).await.unwrap().unwrap();
    assert!(coordination.owner_confirm(&created, &me, epoch).await.unwrap());
    // A later acquire finds the key again, after a refused claim.
    assert_eq!(coordination.owner_create(shard, &me, None, lease).await.unwrap(), Some(created));
    coordination.owner_remove(shard, &me).await.unwrap();
    assert!(!coordination.owner_confirm(&created, &me, epoch).await.unwrap());
    let other = coordination.owner_create(shard, &me, None, lease).await.unwrap().unwrap();
    assert!(!coordination.owner_confirm(&created, &me, epoch).await.unwrap(), "a key of ours, but a later one");
    coordination.lease_revoke(lease).await.unwrap();
    assert!(!coordination.owner_confirm(&other, &me, epoch).await.unwrap());
}

#[tokio::test]
async fn of_two_who_have_read_the_same_drained_nodes_only_one_writes() {
    let (endpoints, prefix) = shared_etcd().await;
    let (one, other) = (coordination(&endpoints, &prefix).await, coordination(&endpoints, &prefix).await);
    let nodes = ["a", "b", "c"].map(node);
    let lease = kept_lease(&one).await;
    for node in &nodes {
        one.member_put(&member(node), lease).await.unwrap();
    }
    let drained = |node: &NodeId| [node.clone()].into();
    // In the first round the key does not exist, in the second it does.
    for node in &nodes[..2] {
        let (seen, seen_too) = (one.drained_read().await.unwrap(), other.drained_read().await.unwrap());
        assert_eq!(seen.roll.members.len(), 3);
        assert!(one.drained_write(&seen, &drained(node)).await.unwrap().is_some());
        assert_eq!(other.drained_write(&seen_too, &drained(&nodes[2])).await.unwrap(), None);
        assert_eq!(other.drained_read().await.unwrap().roll.drained, drained(node));
    }
}

#[tokio::test]
async fn what_was_seen_is_written_only_over_what_was_read() {
    let (endpoints, prefix) = shared_etcd().await;
    let (one, other) = (coordination(&endpoints, &prefix).await, coordination(&endpoints, &prefix).await);
    let main = DatabaseName::new("main");
    let seen = |flushed| {
        let lineage = Lineage { system: i64::MAX, timeline: 1, flushed: Lsn::new(flushed), left: None };
        Seen::beginning(&lineage, 0)
    };
    for round in 1..3 {
        let (read, read_too) = (one.seen_read(&main).await.unwrap(), other.seen_read(&main).await.unwrap());
        assert!(one.seen_write(&main, &read, &seen(round)).await.unwrap().is_some());
        assert_eq!(other.seen_write(&main, &read_too, &seen(9)).await.unwrap(), None);
        assert_eq!(other.seen_read(&main).await.unwrap().seen, Some(seen(round)));
    }
    assert_eq!(one.seen_read(&DatabaseName::new("west")).await.unwrap().seen, None);
}

async fn takes_writes(coordination: &Coordination) {
    while coordination.write_probe().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn refuses_writes(coordination: &Coordination) {
    while !matches!(coordination.write_probe().await, Err(Error::Refused { .. })) {}
}

#[tokio::test]
async fn a_probe_finds_out_whether_etcd_takes_writes_and_writes_nothing() {
    let (etcd, _) = own_etcd(1).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let writable = || coordination.metrics().etcd_writable.get();
    soon("etcd takes writes", takes_writes(&coordination)).await;
    let found = coordination.record_read(EtcdOp::RealmRead, &coordination.keys.realm()).await.unwrap();
    assert!(found.is_none(), "{found:?}");
    etcd.raise_no_space().await.unwrap();
    soon("etcd refuses writes", refuses_writes(&coordination)).await;
    assert_eq!(writable(), 0);
    etcd.clear_no_space().await.unwrap();
    soon("etcd takes writes again", takes_writes(&coordination)).await;
    assert_eq!(writable(), 1);
    coordination.metrics().etcd_writable.set(0);
    etcd.kill_all();
    let silent = async { while !matches!(coordination.write_probe().await, Err(Error::Unanswered { .. })) {} };
    soon("etcd does not answer", silent).await;
    assert_eq!(writable(), 1, "an etcd that is away is not said to refuse writes");
}

#[tokio::test]
async fn an_etcd_whose_members_differ_is_one_that_refuses_writes_and_answers_reads() {
    let (etcd, _) = own_etcd(1).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let writable = || coordination.metrics().etcd_writable.get();
    soon("etcd takes writes", takes_writes(&coordination)).await;
    etcd.raise_corrupt().await.unwrap();
    soon("etcd refuses writes", refuses_writes(&coordination)).await;
    assert_eq!(writable(), 0);
    coordination.record_read(EtcdOp::RealmRead, &coordination.keys.realm()).await.unwrap();
    etcd.clear_corrupt().await.unwrap();
    soon("etcd takes writes again", takes_writes(&coordination)).await;
    assert_eq!(writable(), 1);
}
