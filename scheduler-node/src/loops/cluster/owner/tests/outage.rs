//! Owners that start with something to do while etcd refuses connections, or while the view is old.

use common::{cluster::AssignmentRecord, ids::TaskId, shard::assign::Assignment};
use futures::StreamExt;

use super::*;
use crate::coordination::{
    AssignmentWrite, LeaseId,
    tests::{coordination, kept_lease},
};

/// Requests without an answer in a second of an outage. A request is two of them, as a lone endpoint is tried twice.
const FAILURES_MOST: u64 = 10;

/// An owner without the other loops of a node, in a cluster of its own. The test writes what they would.
struct Lone {
    me: NodeId,
    other: NodeId,
    /// The connection of the mirror and of the test. The owner has one of its own, which counts its requests.
    cluster: Coordination,
    coordination: Coordination,
    lease: LeaseId,
    term: Term,
    owned_shards: Arc<OwnedShards>,
    views: Views,
    tasks: Vec<JoinHandle<()>>,
}

impl Lone {
    /// Every shard is assigned to the node, or else to another one.
    async fn new(endpoints: &[String], prefix: &str, is_assigned: bool) -> Self {
        let cluster = coordination(endpoints, prefix).await;
        let lease = kept_lease(&cluster).await;
        let (me, other) = (node("one"), node("two"));
        for node in [&me, &other] {
            cluster.member_put(&member(node), lease).await.unwrap();
        }
        let term = cluster.candidate_put(&me, lease).await.unwrap();
        let owner = if is_assigned { &me } else { &other };
        let assignment = Assignment { owners: vec![Some(owner.clone()); SHARDS as usize] };
        let record = AssignmentRecord { term, assignment };
        let written = cluster.assignment_write(None, &record, lease).await.unwrap();
        assert_eq!(written, AssignmentWrite::Done);
        let (mirror, views) = Mirror::new(cluster.clone());
        let tasks = vec![spawn_child(mirror.run(CancellationToken::new()))];
        let coordination = coordination(endpoints, prefix).await;
        let owned_shards = Arc::new(OwnedShards::new(100));
        Self { me, other, cluster, coordination, lease, term, owned_shards, views, tasks }
    }

    /// Holds the fence of every shard.
    fn owning(self) -> Self {
        let fences: Vec<_> = ShardRange::all(SHARDS).iter().map(|shard| (shard, Epoch::from_store(1))).collect();
        self.owned_shards.adopt(&fences);
        self
    }

    /// Has the owner keys of the first `count` shards.
    async fn keyed(self, count: usize) -> Self {
        for shard in ShardRange::all(SHARDS).iter().take(count) {
            self.cluster.owner_create(shard, &self.me, None, self.lease).await.unwrap().unwrap();
        }
        self
    }

    fn keys(&self) -> usize {
        self.views.borrow().owners.values().filter(|owner| owner.node == self.me).count()
    }

    fn owner(&self) -> Owner<Line> {
        let database = OwnerDatabase {
            name: main_database(),
            owned_shards: Arc::clone(&self.owned_shards),
            hearing: Arc::default(),
            fence: Arc::new(Line::new(Arc::default(), None)),
        };
        let places = Places::new(ByDatabase::default());
        places.presume(&[ShardRange::all(SHARDS)], u16::try_from(SHARDS).unwrap());
        let standing = SessionState::Joined { lease: self.lease, term: self.term };
        let session = Session { standing, last_renewal: None, refusal: None };
        Owner::new(
            self.me.clone(),
            self.coordination.clone(),
            [database].into_iter().collect(),
            places,
            self.views.clone(),
            watch::Sender::new(session).subscribe(),
            watch::Sender::new(fit()).subscribe(),
            CancellationToken::new(),
        )
    }

    fn start(&mut self) {
        self.tasks.push(spawn_child(self.owner().run(CancellationToken::new())));
    }

    fn failures(&self) -> u64 {
        self.coordination.metrics().request_failures.get()
    }
}

impl Drop for Lone {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test]
async fn acts_that_etcd_does_not_answer_pause_and_are_done_after_the_outage() {
    let (etcd, _) = own_etcd(1).await;
    let (endpoints, all) = (etcd.endpoints(), SHARDS as usize);
    let mut acquires = Lone::new(&endpoints, "/acquires", true).await;
    let mut registers_again = Lone::new(&endpoints, "/registers-again", true).await.owning();
    let mut releases = Lone::new(&endpoints, "/releases", false).await.owning().keyed(all).await;
    // Each key without a fence is a request of its own.
    let mut gives_up_key = Lone::new(&endpoints, "/gives-up-key", false).await.keyed(1).await;
    for (lone, keys) in [(&acquires, 0), (&registers_again, 0), (&releases, all), (&gives_up_key, 1)] {
        let is_shown = |view: &ClusterView| view.assignment.is_some() && view.members.contains_key(&lone.other.name);
        eventually("the view is complete", || is_shown(&lone.views.borrow()) && lone.keys() == keys).await;
    }
    let doubt = TaskId::mint(uuid::Uuid::nil(), ShardId::new(0));
    releases.owned_shards.end_unknown([doubt], UnixMicros::LAST);
    etcd.kill(0);
    for lone in [&mut acquires, &mut registers_again, &mut releases, &mut gives_up_key] {
        lone.start();
    }
    let lones = [&acquires, &registers_again, &releases, &gives_up_key];
    eventually("each has tried", || lones.iter().all(|lone| lone.failures() > 0)).await;
    let before = lones.map(|lone| lone.failures());
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let most = FAILURES_MOST * begun.elapsed().as_secs().max(1);
    let failures: Vec<u64> = lones.iter().zip(before).map(|(lone, before)| lone.failures() - before).collect();
    assert!(failures.iter().all(|count| *count < most), "requests to a dead etcd: {failures:?} of less than {most}");
    let left = releases.owned_shards.in_doubt(doubt.shard());
    assert_eq!(left, [doubt], "the node goes on with the shard, and with what is in doubt");
    etcd.restart_all().await.unwrap();
    eventually("it has the fences", || acquires.owned_shards.owned().len() == all).await;
    eventually("its keys are back", || registers_again.keys() == all).await;
    eventually("it has given the shards up", || releases.owned_shards.owned().is_empty() && releases.keys() == 0).await;
    eventually("it has given the key up", || gives_up_key.keys() == 0).await;
}

#[tokio::test]
async fn while_the_view_is_old_an_act_without_effect_is_not_repeated_at_once() {
    let (endpoints, prefix) = shared_etcd().await;
    let lone = Lone::new(&endpoints, &prefix, true).await;
    let is_shown = |view: &ClusterView| view.assignment.is_some() && view.members.contains_key(&lone.other.name);
    eventually("the view is complete", || is_shown(&lone.views.borrow())).await;
    lone.tasks.iter().for_each(JoinHandle::abort);
    for shard in ShardRange::all(SHARDS).iter() {
        lone.cluster.owner_create(shard, &lone.other, None, lone.lease).await.unwrap().expect("the key is free");
    }
    let mut owner = lone.owner();
    owner.activate();
    let done = owner.acts.next().await;
    assert!(done.is_some(), "the view shows no owner");
    owner.take(done);
    owner.activate();
    assert!(owner.acts.is_empty(), "another request about the same keys");
    // As after a change of the view.
    owner.seen = (0, 0);
    owner.activate();
    assert!(!owner.acts.is_empty());
}
