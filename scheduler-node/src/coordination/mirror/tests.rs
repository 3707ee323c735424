use common::ids::Epoch;
use etcd_client::{CompactionOptions, PutOptions};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    coordination::tests::{coordination, etcdctl, eventually, member, node, own_etcd, shared_etcd, soon},
    supervise::{LoopKind, Pulse, spawn_child},
};

struct Running {
    views: Views,
    task: JoinHandle<()>,
}

impl Running {
    fn start(coordination: &Coordination) -> Self {
        let (mirror, views) = Mirror::new(coordination.clone());
        Self { views, task: spawn_child(mirror.run(CancellationToken::new())) }
    }

    async fn shows(&self, what: &str, shows: impl Fn(&ClusterView) -> bool) {
        soon(what, self.views.clone().wait_for(|view| shows(view))).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn the_mirror_shows_what_is_created_changed_and_deleted() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let me = node("one");
    let lease = coordination.lease_grant().await.unwrap();
    coordination.member_put(&member(&me), lease).await.unwrap();
    let running = Running::start(&coordination);
    running.shows("what was there before", |view| view.revision > 0 && view.member(&me).is_some()).await;
    let leaving = Member { leaving: true, ..member(&me) };
    coordination.member_put(&leaving, lease).await.unwrap();
    running.shows("a change", |view| view.member(&me).is_some_and(|member| member.leaving)).await;
    let term = coordination.candidate_put(&me, lease).await.unwrap();
    running.shows("a candidate", |view| view.master() == Some(&Candidate { term, node: me.clone() })).await;
    let shard = ShardId::new(3);
    let created = coordination.owner_create(shard, &me, None, lease).await.unwrap().unwrap();
    coordination.owner_confirm(&created, &me, Epoch::from_store(4)).await.unwrap();
    let owner = OwnerRecord { node: me.clone(), epoch: Some(Epoch::from_store(4)) };
    running.shows("an owner and its epoch", |view| view.owners.get(&shard) == Some(&owner)).await;
    let assignment = common::shard::Assignment { owners: vec![Some(me.clone())] };
    let record = AssignmentRecord { term, assignment };
    coordination.assignment_write(None, &record, lease).await.unwrap();
    running.shows("an assignment", |view| view.assignment.as_ref() == Some(&record)).await;
    let read = coordination.drained_read().await.unwrap();
    coordination.drained_write(&read, &[me.clone()].into()).await.unwrap();
    running.shows("a drained node", |view| view.drained.contains(&me)).await;
    coordination.lease_revoke(lease).await.unwrap();
    running.shows("what is left without the lease", |view| view.members.is_empty() && view.candidates.is_empty()).await;
    running.shows("no owner", |view| view.owners.is_empty() && view.assignment.is_some()).await;
}

#[tokio::test]
async fn candidates_are_shown_in_the_order_of_their_terms() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let mut terms = Vec::new();
    for number in 0..5 {
        // The leases' numbers, and with them the keys, are in no order.
        let lease = coordination.lease_grant().await.unwrap();
        terms.push(coordination.candidate_put(&node(&format!("node-{number}")), lease).await.unwrap());
    }
    let running = Running::start(&coordination);
    running.shows("all five", |view| view.candidates.len() == 5).await;
    let view = running.views.borrow().clone();
    assert_eq!(view.candidates.iter().map(|candidate| candidate.term).collect::<Vec<_>>(), terms);
}

#[tokio::test]
async fn keys_that_cannot_be_read_are_passed_over() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let me = node("one");
    let lease = coordination.lease_grant().await.unwrap();
    coordination.member_put(&member(&me), lease).await.unwrap();
    let mut etcd = etcdctl(&endpoints).await;
    let on_lease = || Some(PutOptions::new().with_lease(lease.number()));
    let foreign =
        ["nodes/two", "nodes/two/deep", "owners/0", "owners/x", "candidates/1", "assignment", "drained", "else", ""];
    for key in foreign {
        etcd.put(format!("{prefix}/{key}"), "{", on_lease()).await.unwrap();
    }
    let stolen = serde_json::to_vec(&member(&me)).unwrap();
    etcd.put(format!("{prefix}/nodes/three"), stolen, on_lease()).await.unwrap();
    let running = Running::start(&coordination);
    running.shows("the one that can be read", |view| view.member(&me).is_some()).await;
    let view = running.views.borrow().clone();
    assert_eq!((view.members.len(), view.owners.len(), view.candidates.len()), (1, 0, 0));
    assert_eq!(view.assignment, None);
    // An unreadable value also counts as absent when the watch brings it and it replaces a readable one.
    etcd.put(format!("{prefix}/nodes/one"), "{", Some(PutOptions::new().with_ignore_lease())).await.unwrap();
    running.shows("no member", |view| view.members.is_empty()).await;
}

#[tokio::test]
async fn a_watch_from_a_compacted_revision_lists_again() {
    let (etcd, _) = own_etcd(1).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let (mut mirror, views) = Mirror::new(coordination.clone());
    mirror.list().await.unwrap();
    let lease = coordination.lease_grant().await.unwrap();
    let me = node("one");
    let mut client = etcdctl(&etcd.endpoints()).await;
    let mut newest = 0;
    for number in 0..10 {
        let change = Member { version: number.to_string(), ..member(&me) };
        coordination.member_put(&change, lease).await.unwrap();
        newest = client.get("none", None).await.unwrap().header().unwrap().revision();
    }
    client.compact(newest, Some(CompactionOptions::new().with_physical())).await.unwrap();
    let (_, mut stream) = mirror.watch().await.unwrap();
    let cancelled = loop {
        let response = soon("an answer", stream.message()).await.unwrap().unwrap();
        if let Some(End::Cancelled(_)) = mirror.take(&mut stream, response) {
            break true;
        }
    };
    assert!(cancelled && views.borrow().members.is_empty());
    let task = spawn_child(mirror.run(CancellationToken::new()));
    eventually("the newest change", || views.borrow().member(&me).is_some_and(|member| member.version == "9")).await;
    task.abort();
}

#[tokio::test]
async fn the_mirror_moves_on_when_its_endpoint_is_killed_or_frozen() {
    let (etcd, _) = own_etcd(3).await;
    let endpoints = etcd.endpoints();
    // The mirror uses the first member, the writer the last.
    let running = Running::start(&coordination(&endpoints, "/duetime").await);
    let me = node("one");
    put(&endpoints[2], &me, "before").await;
    let has = |view: &ClusterView, version: &str| view.member(&me).is_some_and(|member| member.version == version);
    running.shows("a member", |view| has(view, "before")).await;
    etcd.kill(0);
    put(&endpoints[2], &me, "after the kill").await;
    running.shows("a change after the kill", |view| has(view, "after the kill")).await;
    etcd.restart_all().await.unwrap();
    etcd.pause(1).unwrap();
    put(&endpoints[2], &me, "after the freeze").await;
    running.shows("a change after the freeze", |view| has(view, "after the freeze")).await;
    etcd.resume(1).unwrap();
}

/// Puts a member on a long lease, as the tests do not renew one. Repeats until it succeeds, because the members
/// may be electing a leader.
async fn put(endpoint: &str, node: &NodeId, version: &str) {
    let mut etcd = etcdctl(&[endpoint.to_owned()]).await;
    let member = Member { version: version.to_owned(), ..member(node) };
    let value = serde_json::to_vec(&member).unwrap();
    let written = async {
        loop {
            let put = async {
                let lease = etcd.lease_grant(600, None).await?.id();
                let options = PutOptions::new().with_lease(lease);
                etcd.put(format!("/duetime/nodes/{}", node.name), value.clone(), Some(options)).await
            };
            if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(1), put).await {
                return;
            }
        }
    };
    soon("a write", written).await;
}

#[tokio::test]
async fn without_etcd_the_last_picture_stays_and_a_wiped_etcd_is_believed() {
    let (etcd, folder) = own_etcd(1).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let running = Running::start(&coordination);
    let me = node("one");
    for _ in 0..5 {
        let lease = coordination.lease_grant().await.unwrap();
        coordination.member_put(&member(&me), lease).await.unwrap();
    }
    running.shows("a member", |view| view.member(&me).is_some()).await;
    let before = running.views.borrow().revision;
    etcd.kill(0);
    eventually("etcd is away", || coordination.is_away()).await;
    assert!(running.views.borrow().member(&me).is_some());
    std::fs::remove_dir_all(folder.join("etcd-1").join("data")).unwrap();
    etcd.restart_all().await.unwrap();
    running.shows("an empty cluster", |view| view.members.is_empty() && view.revision < before).await;
    let lease = coordination.lease_grant().await.unwrap();
    coordination.member_put(&member(&me), lease).await.unwrap();
    running.shows("a member again", |view| view.member(&me).is_some()).await;
}

#[tokio::test]
async fn a_mirror_whose_etcd_is_silent_is_stalled_until_etcd_answers() {
    let (etcd, _folder) = own_etcd(1).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    etcd.pause(0).unwrap();
    let pulse = Pulse::with_bound(|_| Duration::from_millis(300));
    let (mirror, views) = Mirror::new(coordination);
    let task = spawn_child(pulse.run(LoopKind::Mirror, mirror.run(CancellationToken::new())));
    let running = Running { views, task };
    let stalled = || pulse.stalled(std::time::Instant::now()) == [LoopKind::Mirror].into();
    eventually("it waits for a list", stalled).await;
    etcd.resume(0).unwrap();
    running.shows("a list", |view| view.revision > 0).await;
    let idle = || pulse.stalled(std::time::Instant::now() + Duration::from_secs(3_600)).is_empty();
    eventually("it waits for news", idle).await;
}
