use common::{
    ids::{DatabaseIndex, TaskId},
    shard::{ShardStatus, map::FenceRow},
};
use uuid::Uuid;

use super::*;

/// The shard that moves.
const SHARD: ShardId = ShardId::new(3);

#[tokio::test]
async fn a_lone_node_takes_every_shard_several_a_statement_and_gives_all_back() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    assert!(one.is_master());
    let metrics = one.coordination.metrics();
    eventually("the gauges show it", || {
        (metrics.shards_owned.get(), metrics.shards_unowned.get()) == (i64::from(SHARDS), 0)
    })
    .await;
    assert_eq!(metrics.acquisitions.get(), u64::from(SHARDS));
    let statements = one.line.statements.lock().clone();
    assert_eq!(statements.iter().sum::<usize>(), SHARDS as usize);
    assert!(statements.iter().any(|shards| *shards > 1), "one statement a shard: {statements:?}");
    let first = Some(Epoch::from_store(1));
    eventually("the epochs are in etcd", || one.view().owners.values().all(|owner| owner.epoch == first)).await;
    let begun = Instant::now();
    let owned_shards = Arc::clone(&one.owned_shards);
    assert!(one.leave().await);
    assert!(begun.elapsed() < Duration::from_secs(60), "left after {:?}", begun.elapsed());
    assert!(owned_shards.owned().is_empty());
    let watcher = world.start("watcher").await;
    eventually("only the newcomer is there", || watcher.view().members.len() == 1).await;
    balanced(&[&watcher]).await;
    assert!(watcher.owned().values().all(|epoch| *epoch == Epoch::from_store(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_move_is_quick_and_nobody_ever_claims_from_the_same_shard() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let two = world.start("two").await;
    let helds = [Arc::clone(&one.owned_shards), Arc::clone(&two.owned_shards)];
    let watching = CancellationToken::new();
    let watcher = spawn_child(watch_claims(helds, watching.clone()));
    balanced(&[&one, &two]).await;
    let before = one.owned();
    assert!(one.leave().await);
    balanced(&[&two]).await;
    watching.cancel();
    let longest = watcher.await.unwrap();
    println!("the longest time without a claim from a shard: {longest:?}");
    assert!(longest < Duration::from_secs(5), "no node claimed from a shard for {longest:?}");
    let after = two.owned();
    assert!(before.iter().all(|(shard, epoch)| after[shard] > *epoch), "each move is a new epoch");
}

/// The most that counts of the time between two looks. In the rest the machine stood still, and the nodes with it.
const LOOKED_WITHIN: Duration = Duration::from_millis(100);

/// Watches both nodes all the time; returns the longest time a shard had no owner. Does not count the time in which the
/// machine stood still.
async fn watch_claims(helds: [Arc<OwnedShards>; 2], stop: CancellationToken) -> Duration {
    let mut unclaimed: BTreeMap<ShardId, Instant> = BTreeMap::new();
    let (mut longest, mut looked) = (Duration::ZERO, Instant::now());
    while !stop.is_cancelled() {
        let stood_still = looked.elapsed().saturating_sub(LOOKED_WITHIN);
        looked = Instant::now();
        for since in unclaimed.values_mut() {
            *since += stood_still;
        }
        // Reads the taker first: a shard that the taker has by then, the giver must have released before.
        let [giver, taker] = &helds;
        let (second, first) = (taker.claimable(), giver.claimable());
        let both: Vec<_> = first.keys().filter(|shard| second.contains_key(shard)).collect();
        assert!(both.is_empty(), "both claim from {both:?}");
        for shard in ShardRange::all(SHARDS).iter() {
            if first.contains_key(&shard) || second.contains_key(&shard) {
                if let Some(since) = unclaimed.remove(&shard) {
                    longest = longest.max(since.elapsed());
                }
            } else {
                unclaimed.entry(shard).or_insert_with(Instant::now);
            }
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    longest
}

#[tokio::test]
async fn the_cluster_grows_and_shrinks_with_no_more_moves_than_needed() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let two = world.start("two").await;
    balanced(&[&one, &two]).await;
    let three = world.start("three").await;
    balanced(&[&one, &two, &three]).await;
    let taken = || world.fences.rows.lock().values().map(|epoch| epoch.number()).sum::<i64>();
    let shards = i64::from(SHARDS);
    assert_eq!(taken(), shards + shards / 2 + shards / 3);
    assert!(two.leave().await);
    balanced(&[&one, &three]).await;
    assert_eq!(taken(), shards + shards / 2 + 2 * shards / 3);
    assert!(one.leave().await);
    balanced(&[&three]).await;
    assert!(three.is_master());
}

#[tokio::test]
async fn a_release_waits_for_what_is_in_flight() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let ids: Vec<TaskId> = (0..u16::try_from(SHARDS).unwrap())
        .map(|shard| TaskId::mint(Uuid::from_u128(u128::from(shard) + 1), ShardId::new(shard)))
        .collect();
    one.owned_shards.begin(ids.iter().copied());
    let two = world.start("two").await;
    eventually("half is no longer claimed from", || one.owned_shards.claimable().len() == SHARDS as usize / 2).await;
    // The shards go one after the other, each as soon as it can. While one moves, the others show that they wait.
    let draining: Vec<TaskId> = ids.into_iter().filter(|id| !one.owned_shards.is_claimable(id.shard())).collect();
    let mut free = BTreeSet::new();
    for id in draining {
        let waits = "a shard was handed over with a task in flight";
        assert!(two.owned().keys().all(|shard| free.contains(shard)), "{waits}: {:?}", two.owned());
        free.insert(id.shard());
        one.owned_shards.end([id]);
        eventually("one more shard has moved", || two.owned().len() >= free.len()).await;
    }
    assert_eq!(two.owned().into_keys().collect::<BTreeSet<_>>(), free);
    balanced(&[&one, &two]).await;
}

#[tokio::test]
async fn shards_of_a_database_that_a_node_cannot_reach_move_to_those_that_can_and_stay_when_nobody_can() {
    let world = World::shared().await;
    let (one, two) = (world.start("one").await, world.start("two").await);
    balanced(&[&one, &two]).await;
    let unfit = MemberFitness { unfit: [main_database()].into(), ..fit() };
    one.fitness.send_replace(unfit.clone());
    eventually("everything is with the other", || two.owned().len() == SHARDS as usize).await;
    assert!(one.owned().is_empty());
    two.fitness.send_replace(unfit);
    eventually("both nodes report it", || one.view().members.values().all(|member| !member.unfit.is_empty())).await;
    let before = two.owned();
    // The master has waited for other nodes to notice the same.
    tokio::time::sleep(TTL).await;
    assert_eq!(two.owned(), before, "an owner in trouble is better than none");
    one.fitness.send_replace(fit());
    eventually("everything is with the one that can", || one.owned().len() == SHARDS as usize).await;
}

/// Drains a node, or ends its drain, as an operator does.
async fn drain(by: &TestNode, node: &TestNode, drained: bool) {
    let read = by.coordination.drained_read().await.unwrap();
    let next = read.roll.set(&node.me.name, drained).unwrap();
    by.coordination.drained_write(&read, &next).await.unwrap().expect("no other node drains");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_stays_and_owns_nothing_through_a_change_of_master_until_it_is_undrained() {
    let world = World::shared().await;
    // Starts one node after the other, so that they lead in this order.
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let two = world.start("two").await;
    balanced(&[&one, &two]).await;
    let three = world.start("three").await;
    balanced(&[&one, &two, &three]).await;
    let kept = epochs(&[&one, &three]);
    drain(&three, &two, true).await;
    eventually("the others have its shards", || two.owned().is_empty() && is_balanced(&[&one, &three])).await;
    eventually("it shows", || two.coordination.metrics().drained.get() == 1).await;
    for (before, after) in kept.iter().zip(epochs(&[&one, &three])) {
        assert!(
            before.iter().all(|(shard, epoch)| after.get(shard) == Some(epoch)),
            "the shards of the others did not move"
        );
    }
    // A master may be drained too, and a node that was away when the operator asked for it knows all the same.
    assert!(one.is_master() && two.has_joined());
    one.vanish().await;
    let four = world.start("four").await;
    balanced(&[&three, &four]).await;
    assert!(two.owned().is_empty() && two.is_master(), "{:?}", two.view().candidates);
    drain(&four, &two, false).await;
    balanced(&[&two, &three, &four]).await;
    assert_eq!(two.coordination.metrics().drained.get(), 0);
}

#[tokio::test]
async fn when_only_drained_nodes_are_left_they_own_what_there_is() {
    let world = World::shared().await;
    let one = world.start("one").await;
    let two = world.start("two").await;
    balanced(&[&one, &two]).await;
    drain(&one, &two, true).await;
    eventually("one has all", || two.owned().is_empty() && one.owned().len() == SHARDS as usize).await;
    assert!(one.leave().await);
    balanced(&[&two]).await;
    let three = world.start("three").await;
    balanced(&[&three]).await;
    assert!(two.owned().is_empty());
}

#[tokio::test]
async fn a_shard_that_moved_is_forgotten_in_one_database_and_acquired_in_the_other() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let (east, shard) = (DatabaseIndex::new(1), ShardId::new(3));
    let former = one.owned()[&shard];
    one.places.moved(shard, east, Epoch::from_store(former.number() + 1));
    eventually("the node owns it in its new place", || one.east.owned().contains_key(&shard)).await;
    assert!(!one.owned().contains_key(&shard));
    assert!(one.east.is_claimable(shard));
    assert_eq!(one.owned().len() + one.east.owned().len(), SHARDS as usize, "the others stay");
}

#[tokio::test]
async fn what_the_mover_has_adopted_in_the_new_place_stays_there() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let (east, shard) = (DatabaseIndex::new(1), ShardId::new(3));
    let own_since = one.owned()[&shard];
    let epoch = Epoch::from_store(own_since.number() + 1);
    one.east.adopt_own(shard, epoch, own_since);
    // The map still has the former place. Another move makes the owner look.
    let other = ShardId::new(7);
    one.places.moved(other, east, Epoch::from_store(one.owned()[&other].number() + 1));
    eventually("the owner has looked", || one.east.owned().contains_key(&other)).await;
    assert_eq!(one.east.owned().get(&shard), Some(&epoch), "its epoch is above that of the map");
    one.places.moved(shard, east, epoch);
    eventually("it is forgotten in its former place", || !one.owned().contains_key(&shard)).await;
    assert_eq!(one.east.owned().get(&shard), Some(&epoch));
}

/// Tells the node how the fence rows of `SHARD` are in both databases. The other shards are in the first.
fn tell(node: &TestNode, main: (ShardStatus, i64), east: (ShardStatus, i64)) {
    let row = |shard, (status, epoch)| FenceRow { shard, status, epoch: Epoch::from_store(epoch) };
    let of_main = |shard| row(shard, if shard == SHARD { main } else { (ShardStatus::Here, 0) });
    node.places.tell(&[Some(ShardRange::all(SHARDS).iter().map(of_main).collect()), Some(vec![row(SHARD, east)])]);
}

/// A node that has taken the fence of a closed shard, under this epoch.
async fn with_a_closed_shard() -> (TestNode, i64) {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let epoch = one.owned()[&SHARD].number();
    tell(&one, (ShardStatus::Gone, epoch), (ShardStatus::Arriving, 0));
    eventually("nothing is claimed from it", || !one.owned_shards.is_claimable(SHARD)).await;
    (one, epoch)
}

#[tokio::test]
async fn a_closed_shard_is_forgotten_once_it_is_open_in_its_target_whatever_its_epoch() {
    let (one, epoch) = with_a_closed_shard().await;
    let unowned = &one.coordination.metrics().shards_unowned;
    eventually("it counts as unowned", || unowned.get() == 1).await;
    // The former owner has opened it. Its new epoch is the one that this node took in the source.
    tell(&one, (ShardStatus::Gone, epoch), (ShardStatus::Here, epoch));
    eventually("the node owns it in its new place", || one.east.is_claimable(SHARD)).await;
    assert!(!one.owned().contains_key(&SHARD));
    eventually("every shard is owned", || unowned.get() == 0).await;
}

#[tokio::test]
async fn an_acquired_shard_is_forgotten_once_it_is_open_elsewhere_although_its_close_was_not_seen() {
    let world = World::shared().await;
    let one = world.start("one").await;
    balanced(&[&one]).await;
    let epoch = one.owned()[&SHARD].number();
    // The node has taken the fence of the closed shard, and an older look has shown the shard open since.
    tell(&one, (ShardStatus::Leaving, epoch - 1), (ShardStatus::Arriving, 0));
    tell(&one, (ShardStatus::Gone, epoch), (ShardStatus::Here, epoch));
    eventually("the node owns it in its new place", || one.east.is_claimable(SHARD)).await;
    assert!(!one.owned().contains_key(&SHARD));
}

#[tokio::test]
async fn a_closed_shard_that_opens_in_its_target_before_its_fence_is_taken_is_acquired_there() {
    let world = World::shared().await;
    let slow = world.start_as(node("slow"), Some(Semaphore::new(0))).await;
    tell(&slow, (ShardStatus::Gone, 0), (ShardStatus::Arriving, 0));
    eventually("it waits for its first fence", || slow.keyed() == SHARDS as usize).await;
    tell(&slow, (ShardStatus::Gone, 0), (ShardStatus::Here, 1));
    slow.line.slow.as_ref().unwrap().add_permits(1_000);
    eventually("the node owns it in its new place", || slow.east.is_claimable(SHARD)).await;
    assert!(!slow.owned().contains_key(&SHARD));
    assert_eq!(slow.owned().len(), SHARDS as usize - 1);
}

#[tokio::test]
async fn claims_from_a_closed_shard_go_on_when_its_source_has_opened_it_again() {
    let (one, epoch) = with_a_closed_shard().await;
    tell(&one, (ShardStatus::Leaving, epoch), (ShardStatus::Arriving, 0));
    eventually("it is claimed from again", || one.owned_shards.is_claimable(SHARD)).await;
    assert_eq!(one.owned()[&SHARD].number(), epoch);
}

/// Another node has opened it, and may have died since. Reports on its tasks were held until then.
#[tokio::test]
async fn where_a_node_begins_to_claim_from_a_shard_that_has_opened_lately_deadlines_wait_for_reports() {
    let (one, epoch) = with_a_closed_shard().await;
    assert_eq!(one.hears_first(), [false, false], "no other takeover delays deadlines");
    tell(&one, (ShardStatus::Gone, epoch), (ShardStatus::Here, epoch + 1_000));
    eventually("the node owns it in its new place", || one.east.is_claimable(SHARD)).await;
    assert_eq!(one.hears_first(), [false, true]);

    let (one, epoch) = with_a_closed_shard().await;
    tell(&one, (ShardStatus::Leaving, epoch), (ShardStatus::Arriving, 0));
    eventually("it is claimed from again", || one.owned_shards.is_claimable(SHARD)).await;
    assert_eq!(one.hears_first(), [true, false]);
}
