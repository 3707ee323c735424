use common::cluster::{AssignmentRecord, OwnerRecord};
use etcd_client::PutOptions;

use super::*;
use crate::{
    clock,
    coordination::tests::etcdctl,
    loops::cluster::owner::{FENCE_RETRY, FENCE_RETRY_LONGEST, Retry},
};

#[tokio::test]
async fn a_crashed_nodes_shards_move_after_its_lease_and_the_next_in_the_queue_is_master() {
    for _ in 0..5 {
        let world = World::shared().await.with_short_leases();
        let one = world.start("one").await;
        eventually("the first is master", || one.is_master()).await;
        let two = world.start("two").await;
        eventually("the second is in the queue", || two.view().candidates.len() == 2).await;
        let three = world.start("three").await;
        eventually("the third is in the queue", || three.view().candidates.len() == 3).await;
        balanced(&[&one, &two, &three]).await;
        let terms = [&one, &two, &three].map(TestNode::term);
        let before = two.mastership.borrow().term;
        one.crash();
        let begun = Instant::now();
        balanced(&[&two, &three]).await;
        if !terms.is_sorted() || terms[1..] != [two.term(), three.term()] {
            // The machine stood still until the lease of a living node ran out, and that node queued up again.
            continue;
        }
        println!("moved {:?} after the crash, with leases of {TTL:?}", begun.elapsed());
        assert!(begun.elapsed() < TTL + Duration::from_secs(60), "moved after {:?}", begun.elapsed());
        assert_eq!(before, None);
        assert!(two.is_master() && !three.is_master());
        eventually("the gauge shows it", || two.coordination.metrics().master.get() == 1).await;
        assert_eq!(three.coordination.metrics().master.get(), 0);
        return;
    }
    panic!("leases of living nodes run out each time");
}

#[tokio::test]
async fn a_name_that_is_taken_is_waited_for() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let old = one.me.clone();
    let again = world.start("one").await;
    eventually("the name is taken", || again.standing() == SessionState::NameTaken { by: Some(old.clone()) }).await;
    assert_eq!(again.view().members.len(), 1);
    assert_eq!(again.view().candidates.len(), 1);
    one.vanish().await;
    let begun = Instant::now();
    balanced(&[&again]).await;
    assert!(begun.elapsed() < Duration::from_secs(60), "joined after {:?}", begun.elapsed());
    assert!(again.has_joined());
}

#[tokio::test]
async fn when_all_leases_run_out_together_the_same_nodes_keep_the_same_shards_and_epochs() {
    let (etcd, _) = own_etcd(1).await;
    let world = World::on(etcd.endpoints()).with_short_leases();
    let (one, two, three) = (world.start("one").await, world.start("two").await, world.start("three").await);
    let nodes = [&one, &two, &three];
    balanced(&nodes).await;
    let before = epochs(&nodes);
    let leases = nodes.map(|node| node.session.borrow().lease().unwrap());
    etcd.pause(0).unwrap();
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(epochs(&nodes), before, "an owner let go without etcd");
    etcd.resume(0).unwrap();
    eventually("all have new leases", || {
        let lease = |node: &TestNode| node.session.borrow().lease();
        nodes.iter().zip(leases).all(|(node, old)| lease(node).is_some_and(|new| new != old))
    })
    .await;
    balanced(&nodes).await;
    tokio::time::sleep(TTL).await;
    assert_eq!(epochs(&nodes), before, "a shard moved between nodes that were alive");
    assert_eq!(one.view().members.len(), 3);
}

/// As after a long stop of the node's process: another node had its shards meanwhile, and has ended.
#[tokio::test]
async fn an_owner_without_keys_takes_fences_again_that_it_has_lost_and_keeps_the_others() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let before = one.owned();
    let shards: Vec<ShardId> = before.keys().copied().collect();
    let (kept, lost) = shards.split_at(shards.len() / 2);
    let taken: BTreeMap<ShardId, Epoch> = one.line.take(lost).await.unwrap().into_iter().collect();
    one.line.next_look_fails.store(true, Ordering::Relaxed);
    one.coordination.owners_remove(&shards, &one.me).await.unwrap();
    eventually("it has the lost ones under epochs of its own", || {
        let owned = one.owned();
        owned.len() == shards.len() && lost.iter().all(|shard| owned[shard] > taken[shard])
    })
    .await;
    balanced(&[&one]).await;
    let after = one.owned();
    assert!(kept.iter().all(|shard| after[shard] == before[shard]), "{before:?}, {after:?}");
}

#[tokio::test]
async fn an_owner_without_keys_is_one_again_while_its_database_is_away() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let (before, shards) = (one.owned(), one.owned().into_keys().collect::<Vec<_>>());
    one.line.down.store(true, Ordering::Relaxed);
    let revision = one.view().revision;
    one.coordination.owners_remove(&shards, &one.me).await.unwrap();
    eventually("its keys are back", || one.view().revision > revision && one.keyed() == shards.len()).await;
    assert_eq!(one.owned(), before);
}

#[tokio::test]
async fn most_of_the_nodes_vanishing_together_freezes_the_assignment_for_a_while() {
    let world = World::shared().await.with_short_leases();
    let (one, two, three) = (world.start("one").await, world.start("two").await, world.start("three").await);
    balanced(&[&one, &two, &three]).await;
    let before = one.owned();
    // Leases that run out by themselves may do so further apart than the master gathers lost nodes.
    tokio::join!(two.vanish(), three.vanish());
    eventually("the killed nodes are no members", || one.view().members.len() == 1).await;
    eventually("the one that is left is master", || one.is_master()).await;
    eventually("it reports the freeze", || one.frozen_until.borrow().is_some()).await;
    let frozen = || one.frozen_until.borrow().is_some_and(|until| until > clock::now());
    loop {
        let owned = one.owned();
        if !frozen() {
            break;
        }
        assert_eq!(owned, before, "moved in spite of the freeze");
        tokio::time::sleep(TTL / 10).await;
    }
    balanced(&[&one]).await;
    assert!(!frozen());
}

#[tokio::test]
async fn without_etcd_nothing_moves_and_afterwards_everything_is_as_before() {
    let (etcd, _) = own_etcd(1).await;
    let world = World::on(etcd.endpoints()).with_short_leases();
    let (one, two) = (world.start("one").await, world.start("two").await);
    balanced(&[&one, &two]).await;
    let before = epochs(&[&one, &two]);
    etcd.kill(0);
    // All leases would have ended.
    tokio::time::sleep(TTL * 2).await;
    eventually("etcd is known to be away", || one.coordination.is_away()).await;
    // A node that leaves does not wait while etcd is away: no node can take over.
    let begun = Instant::now();
    assert_eq!(epochs(&[&one, &two]), before);
    let left = two.owned();
    assert!(!two.leave().await);
    assert!(begun.elapsed() < Duration::from_secs(60), "tried to leave for {:?}", begun.elapsed());
    etcd.restart_all().await.unwrap();
    eventually("the one that is left has everything", || one.owned().len() == SHARDS as usize).await;
    let after = one.owned();
    assert!(
        before[0].iter().all(|(shard, epoch)| after[shard] == *epoch),
        "a shard that stayed owned gets no new epoch"
    );
    assert!(left.iter().all(|(shard, epoch)| after[shard] > *epoch));
}

#[tokio::test]
async fn an_etcd_that_has_lost_everything_is_told_again_who_owns_what() {
    let (etcd, folder) = own_etcd(1).await;
    // The revision is far above all that the nodes will write into the new etcd.
    let mut client = etcdctl(&etcd.endpoints()).await;
    for _ in 0..100 {
        client.put("elsewhere", "", None).await.unwrap();
    }
    let world = World::on(etcd.endpoints());
    let (one, two) = (world.start("one").await, world.start("two").await);
    let nodes = [&one, &two];
    balanced(&nodes).await;
    let before = epochs(&nodes);
    let revisions = nodes.map(|node| node.view().revision);
    etcd.kill(0);
    std::fs::remove_dir_all(folder.join("etcd-1").join("data")).unwrap();
    etcd.restart_all().await.unwrap();
    eventually("both see the new etcd", || {
        nodes.iter().zip(revisions).all(|(node, before)| node.view().revision < before)
    })
    .await;
    eventually("the assignment names the owners", || {
        let is_assigned =
            |node: &TestNode, record: &AssignmentRecord| record.assignment.of(&node.me).eq(node.owned().into_keys());
        nodes.iter().all(|node| node.view().assignment.as_ref().is_some_and(|record| is_assigned(node, record)))
    })
    .await;
    balanced(&nodes).await;
    assert_eq!(epochs(&nodes), before);
}

#[tokio::test]
async fn keys_that_were_copied_from_another_etcd_keep_no_node_out() {
    let world = World::shared().await;
    let (copied, ghost) = (node("one"), node("ghost"));
    let owner = OwnerRecord { node: ghost.clone(), epoch: Some(Epoch::from_store(7)) };
    let mut client = etcdctl(&world.endpoints).await;
    for (key, value) in [
        ("nodes/one", serde_json::to_vec(&member(&copied))),
        ("nodes/ghost", serde_json::to_vec(&member(&ghost))),
        ("candidates/00000000000000ff", serde_json::to_vec(&ghost)),
        ("owners/3", serde_json::to_vec(&owner)),
    ] {
        client.put(format!("{}/{key}", world.prefix), value.unwrap(), None).await.unwrap();
    }
    let one = world.start("one").await;
    balanced(&[&one]).await;
    assert!(one.is_master());
    assert_eq!(one.view().members.len(), 1);
}

/// Nodes that notice the same at most so far apart have noticed it together: the master waits for two seconds.
const TOGETHER: Duration = Duration::from_millis(1_500);

/// Lets one node after another notice what it reaches. Returns whether they did so together.
async fn notice(nodes: &[&TestNode], fitness: &MemberFitness) -> bool {
    let mut longest = Duration::ZERO;
    for node in nodes {
        let begun = Instant::now();
        // Further apart than the master gathers changes of the membership.
        tokio::time::sleep(Duration::from_millis(200)).await;
        node.fitness.send_replace(fitness.clone());
        let shows = |view: &ClusterView| view.member(&node.me).is_some_and(|member| member.unfit == fitness.unfit);
        eventually("it is shown", || shows(&nodes[0].view())).await;
        longest = longest.max(begun.elapsed());
    }
    longest < TOGETHER
}

#[tokio::test]
async fn an_outage_that_all_nodes_share_moves_no_shard_and_neither_does_its_end() {
    let world = World::shared().await;
    let (one, two, three) = (world.start("one").await, world.start("two").await, world.start("three").await);
    let nodes = [&one, &two, &three];
    for _ in 0..5 {
        balanced(&nodes).await;
        let before = epochs(&nodes);
        let mut are_together = true;
        for unfit in [BTreeSet::from([main_database()]), BTreeSet::new()] {
            are_together &= notice(&nodes, &MemberFitness { unfit, ..fit() }).await;
            tokio::time::sleep(TTL).await;
            let moved = "a shard moved between nodes that reach the same";
            assert!(!are_together || epochs(&nodes) == before, "{moved}: {before:?} -> {:?}", epochs(&nodes));
        }
        if are_together {
            return;
        }
        // The machine stood still in between, so a node alone seemed to have lost its way, or to have found it again.
    }
    panic!("the nodes notice it too far apart each time");
}

#[tokio::test]
async fn a_fence_taken_too_late_is_given_up() {
    let world = World::shared().await;
    let claims = Semaphore::new(0);
    let slow = world.start_as(node("slow"), Some(claims)).await;
    eventually("it waits for its first fence", || slow.keyed() == SHARDS as usize).await;
    // The node loses its keys while the statement is on its way.
    for shard in ShardRange::all(SHARDS).iter() {
        slow.coordination.owner_remove(shard, &slow.me).await.unwrap();
    }
    let lease = slow.coordination.lease_grant().await.unwrap();
    let other = node("other");
    for shard in ShardRange::all(SHARDS).iter() {
        slow.coordination.owner_create(shard, &other, None, lease).await.unwrap();
    }
    slow.line.slow.as_ref().unwrap().add_permits(1_000);
    eventually("the statement is through", || !slow.line.statements.lock().is_empty()).await;
    eventually("the others' keys are seen", || slow.keyed() == 0).await;
    slow.coordination.lease_revoke(lease).await.unwrap();
    balanced(&[&slow]).await;
    // A late fence that was kept is of the first epoch. One that was kept until the next look counts as acquired.
    assert!(slow.owned().values().all(|epoch| *epoch == Epoch::from_store(2)), "{:?}", slow.owned());
    assert_eq!(slow.coordination.metrics().acquisitions.get(), u64::from(SHARDS));
}

#[tokio::test]
async fn what_another_has_taken_is_dropped_at_once() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let shard = ShardId::new(3);
    let before = one.owned()[&shard];
    let mut client = etcdctl(&world.endpoints).await;
    // The lease is longer than the test, which does not renew it.
    let lease = client.lease_grant(600, None).await.unwrap().id();
    // In one step: between two, the node could register again before the other.
    let taken = serde_json::to_vec(&OwnerRecord { node: node("other"), epoch: None }).unwrap();
    let options = PutOptions::new().with_lease(lease);
    client.put(format!("{}/owners/{}", world.prefix, shard.number()), taken, Some(options)).await.unwrap();
    eventually("it is dropped", || !one.owned().contains_key(&shard)).await;
    client.lease_revoke(lease).await.unwrap();
    balanced(&[&one]).await;
    assert!(one.owned()[&shard] > before);
}

#[tokio::test]
async fn a_fence_that_cannot_be_taken_is_tried_again() {
    let world = World::shared().await;
    let one = world.start_as(node("one"), Some(Semaphore::new(0))).await;
    one.line.down.store(true, Ordering::Relaxed);
    one.line.slow.as_ref().unwrap().add_permits(3);
    eventually("three tries", || one.line.slow.as_ref().unwrap().available_permits() == 0).await;
    assert!(one.owned().is_empty());
    one.line.down.store(false, Ordering::Relaxed);
    one.line.slow.as_ref().unwrap().add_permits(1_000);
    balanced(&[&one]).await;
}

#[tokio::test]
async fn a_shard_whose_fence_is_held_delays_no_other_shard() {
    let world = World::shared().await;
    let (held, other) = (ShardId::new(1), ShardId::new(2));
    world.fences.held.send_replace([held].into());
    let one = world.start("one").await;
    eventually("it owns the others", || one.owned().len() == SHARDS as usize - 1).await;
    assert!(!one.owned().contains_key(&held));
    // A shard that comes while the node waits for the held one.
    let epoch = one.owned()[&other];
    assert!(one.owned_shards.forget_epoch(other, epoch));
    eventually("it is back", || one.owned().get(&other).is_some_and(|newer| *newer > epoch)).await;
    assert!(!one.owned().contains_key(&held));
    world.fences.held.send_replace([].into());
    balanced(&[&one]).await;
}

#[test]
fn a_fence_that_stays_held_is_waited_for_now_and_then() {
    let mut retry = None;
    let mut waits = Vec::new();
    for attempt in 0..=40 {
        if Retry::waits(retry.as_ref()) {
            waits.push(attempt);
        }
        retry = Some(Retry::after(retry, FENCE_RETRY, FENCE_RETRY_LONGEST).held());
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40]);
}

#[tokio::test]
async fn a_shard_that_a_claim_was_refused_for_is_acquired_again_under_a_new_epoch() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let shard = ShardId::new(7);
    let epoch = one.owned()[&shard];
    assert!(one.owned_shards.forget_epoch(shard, epoch));
    eventually("it is back", || one.owned().get(&shard).is_some_and(|newer| *newer > epoch)).await;
    balanced(&[&one]).await;
}
