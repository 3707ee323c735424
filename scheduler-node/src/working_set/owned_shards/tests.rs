//! What enters the heap and what is in flight, and what a drain waits for.

use futures::FutureExt;

use super::*;

fn id(shard: u16) -> TaskId {
    TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(shard))
}

fn entry(id: TaskId, wake_at: i64) -> Entry {
    Entry { wake_at: UnixMicros::new(wake_at), id, kind: WakeKind::Claim }
}

fn owned() -> OwnedShards {
    let owned = OwnedShards::new(100);
    owned.adopt(&[(ShardId::new(1), Epoch::from_store(1))]);
    owned
}

/// Takes what is due at `until` out of the heap.
fn take(owned: &OwnedShards, until: UnixMicros) -> Vec<Entry> {
    let reach = Reach { now: UnixMicros::FIRST, until, claims_until: until, is_crowd: false, overdue_wait: false };
    owned.take_due(reach, Room { most: 10, overdue: 10 })
}

#[test]
fn only_shards_that_are_owned_and_not_stopped_get_into_the_heap() {
    let owned = owned();
    owned.offer([entry(id(1), 5), entry(id(2), 4)]);
    assert_eq!((owned.heap_len(), owned.next_due()), (1, Some(UnixMicros::new(5))));
    owned.stop_claiming(&[ShardId::new(1)], Stop::Cut);
    owned.offer([entry(id(1), 3)]);
    assert_eq!(owned.heap_len(), 0);
    assert!(owned.claimable().is_empty() && owned.owned().len() == 1);
}

#[test]
fn the_list_of_shards_is_another_one_only_after_a_change() {
    let owned = owned();
    let (is_same, list) = (Arc::ptr_eq, owned.claimable_shards());
    owned.stop_claiming(&[ShardId::new(2)], Stop::Closed);
    owned.forget(&[ShardId::new(2)]);
    assert!(is_same(&list, &owned.claimable_shards()), "shard 2 is not its own");
    owned.stop_claiming(&[ShardId::new(1)], Stop::Closed);
    let list = owned.claimable_shards();
    assert!(list.is_empty());
    owned.stop_claiming(&[ShardId::new(1)], Stop::Closed);
    assert!(is_same(&list, &owned.claimable_shards()), "it was stopped before");
}

#[test]
fn an_entry_that_is_due_before_all_others_wakes_the_dispatcher() {
    let owned = owned();
    for (wake_at, wakes) in [(20, true), (30, false), (10, true)] {
        owned.offer([entry(id(1), wake_at)]);
        assert_eq!(owned.heap_changed.notified().now_or_never().is_some(), wakes, "{wake_at}");
    }
}

#[test]
fn a_task_in_flight_is_not_taken_twice_and_comes_back_when_it_came_due_meanwhile() {
    let owned = owned();
    let id = id(1);
    owned.offer([entry(id, 5)]);
    assert_eq!(take(&owned, UnixMicros::new(10)).len(), 1);
    owned.offer([entry(id, 7)]);
    assert!(take(&owned, UnixMicros::new(10)).is_empty());
    owned.end([id]);
    assert_eq!(take(&owned, UnixMicros::new(10)), [entry(id, 7)]);
}

#[test]
fn entries_that_are_given_back_are_as_they_were_but_for_tasks_that_a_pick_got() {
    let owned = owned();
    let deadline = Entry { kind: WakeKind::Deadline, ..entry(id(1), 5) };
    let (claim, picked, newer) = (entry(id(1), 6), entry(id(1), 7), entry(id(1), 8));
    owned.offer([deadline, claim, picked, newer]);
    let taken = take(&owned, UnixMicros::new(10));
    assert_eq!(taken, [deadline, claim, picked, newer]);
    owned.begin([picked.id]);
    let rescue = Entry { kind: WakeKind::Rescue, ..newer };
    owned.offer([rescue]);
    owned.give_back(taken);
    assert_eq!(owned.in_flight(), 1);
    assert_eq!(take(&owned, UnixMicros::new(10)), [deadline, claim, rescue]);
}

#[test]
fn entries_of_a_shard_that_is_released_are_given_back_to_no_heap_and_its_drain_ends() {
    let owned = owned();
    let rescue = Entry { kind: WakeKind::Rescue, ..entry(id(1), 6) };
    owned.offer([entry(id(1), 5), rescue]);
    let taken = take(&owned, UnixMicros::new(10));
    owned.begin_release(&[ShardId::new(1)]);
    assert!(owned.drained(&[ShardId::new(1)]).now_or_never().is_none());
    owned.give_back(taken);
    assert!(owned.drained(&[ShardId::new(1)]).now_or_never().is_some());
    assert_eq!((owned.heap_len(), owned.in_doubt(ShardId::new(1))), (0, vec![rescue.id]));
}

#[test]
fn a_task_that_a_pick_got_stays_in_flight_when_a_claim_that_asked_for_it_too_ends() {
    let owned = owned();
    let (picked, other) = (id(1), id(1));
    owned.offer([entry(picked, 5), entry(other, 5)]);
    assert_eq!(take(&owned, UnixMicros::new(10)).len(), 2);
    owned.begin([picked]);
    assert_eq!(owned.unclaimed(&[picked, other]), [other]);
    owned.end_unclaimed([picked, other]);
    assert!(owned.is_in_flight(picked) && !owned.is_in_flight(other));
    owned.end([picked]);
    assert!(!owned.is_in_flight(picked));
}

#[test]
fn a_rescue_takes_the_place_of_what_a_nudge_has_put_into_the_heap() {
    let owned = owned();
    let id = id(1);
    owned.offer([entry(id, 5)]);
    owned.end_unknown([id], UnixMicros::new(20));
    assert_eq!(
        take(&owned, UnixMicros::new(20)).iter().map(|entry| entry.kind).collect::<Vec<_>>(),
        [WakeKind::Rescue]
    );
}

#[test]
fn a_new_task_is_in_flight_from_its_insert_on_where_it_may_be_claimed_and_nothing_due_waits() {
    let owned = owned();
    let (ours, anothers, full) = (id(1), id(2), id(1));
    let epochs = owned.begin_new(&[Some(ours), Some(anothers), None, Some(full)], UnixMicros::new(5), 1);
    assert_eq!(epochs, [Some(Epoch::from_store(1)), None, None, None]);
    assert!(owned.is_in_flight(ours) && !owned.is_in_flight(anothers) && !owned.is_in_flight(full));
    owned.offer([entry(id(1), 5)]);
    assert_eq!(owned.begin_new(&[Some(id(1))], UnixMicros::new(5), 10), [None], "what is due waits");
    assert!(owned.begin_new(&[Some(id(1))], UnixMicros::new(4), 10)[0].is_some(), "it is not due yet");
    owned.stop_claiming(&[ShardId::new(1)], Stop::Cut);
    assert_eq!(owned.begin_new(&[Some(id(1))], UnixMicros::new(4), 10), [None], "it is being drained");
}

#[test]
fn a_stale_entry_does_not_take_the_place_of_a_rescue() {
    let owned = owned();
    let id = id(1);
    owned.offer([entry(id, 5)]);
    take(&owned, UnixMicros::new(10));
    owned.offer([entry(id, 7)]);
    owned.end_unknown([id], UnixMicros::new(50));
    assert!(take(&owned, UnixMicros::new(49)).is_empty());
    let rescue = Entry { wake_at: UnixMicros::new(50), id, kind: WakeKind::Rescue };
    assert_eq!(take(&owned, UnixMicros::new(50)), [rescue]);
}

#[tokio::test]
async fn a_drain_waits_for_what_is_in_flight() {
    let owned = std::sync::Arc::new(owned());
    let id = id(1);
    owned.offer([entry(id, 5)]);
    take(&owned, UnixMicros::new(10));
    let shards = [ShardId::new(1)];
    owned.stop_claiming(&shards, Stop::Cut);
    let draining = std::sync::Arc::clone(&owned);
    let drained = crate::supervise::spawn_child(async move { draining.drained(&shards).await });
    tokio::task::yield_now().await;
    assert!(!drained.is_finished());
    owned.end([id]);
    drained.await.unwrap();
}

#[tokio::test]
async fn a_drain_waits_for_a_pick_that_may_take_something_of_its_shards() {
    let owned = std::sync::Arc::new(owned());
    let known = owned.claimable();
    let pick = owned.pick(&known);
    assert_eq!(pick.fences.keys().copied().collect::<Vec<_>>(), [ShardId::new(1)]);
    let shards = [ShardId::new(1)];
    owned.stop_claiming(&shards, Stop::Cut);
    assert!(owned.pick(&known).fences.is_empty(), "nothing further is picked");
    let draining = std::sync::Arc::clone(&owned);
    let drained = crate::supervise::spawn_child(async move { draining.drained(&shards).await });
    tokio::task::yield_now().await;
    assert!(!drained.is_finished());
    drop(pick);
    drained.await.unwrap();
}

#[test]
fn a_pick_leaves_out_shards_that_another_node_may_have_had_since_the_caller_counted() {
    let (owned, [lost, kept]) = (owned(), [1, 2].map(ShardId::new));
    owned.adopt(&[(kept, Epoch::from_store(4))]);
    let known = owned.claimable();
    owned.forget(&[lost]);
    owned.adopt(&[(lost, Epoch::from_store(3))]);
    assert_eq!(owned.pick(&known).fences, [(kept, Epoch::from_store(4))].into());
}

#[test]
fn a_refusal_of_an_old_epoch_says_nothing_about_a_newer_one() {
    let owned = owned();
    owned.adopt(&[(ShardId::new(1), Epoch::from_store(2))]);
    assert!(!owned.forget_epoch(ShardId::new(1), Epoch::from_store(1)));
    assert!(owned.forget_epoch(ShardId::new(1), Epoch::from_store(2)));
    assert!(owned.owned().is_empty());
}

#[test]
fn an_order_about_an_old_epoch_does_not_stop_a_newer_one() {
    let (owned, shard) = (owned(), ShardId::new(1));
    owned.adopt(&[(shard, Epoch::from_store(1))]);
    owned.adopt_own(shard, Epoch::from_store(2), Epoch::from_store(1));
    owned.stop_claiming_under(shard, Epoch::from_store(1), Stop::Closed);
    assert!(owned.is_claimable(shard), "no map would let it go on: the stop is noted under the old epoch");
    owned.stop_claiming_under(shard, Epoch::from_store(2), Stop::Closed);
    assert!(!owned.is_claimable(shard));
}

#[test]
fn a_shard_that_has_moved_keeps_the_claims_of_its_owner_apart_from_those_of_earlier_owners() {
    let owned = OwnedShards::new(100);
    let (shard, epoch) = (ShardId::new(1), Epoch::from_store);
    owned.adopt_own(shard, epoch(7), epoch(4));
    assert_eq!(owned.take_adopted().get(&shard), Some(&epoch(4)), "claims since then are not taken over");
    assert_eq!((owned.claimable().get(&shard), owned.own_since(shard)), (Some(&epoch(7)), Some(epoch(4))));
    owned.stop_claiming(&[shard], Stop::Cut);
    owned.resume_claiming(shard, epoch(6), Stop::Cut);
    assert!(!owned.is_claimable(shard), "another epoch");
    owned.resume_claiming(shard, epoch(7), Stop::Cut);
    assert_eq!((owned.is_claimable(shard), owned.own_since(shard)), (true, Some(epoch(4))));
}

#[test]
fn what_is_in_doubt_outlives_a_cut_that_is_given_up() {
    let owned = owned();
    let (shard, early, late) = (ShardId::new(1), id(1), id(1));
    owned.offer([entry(late, 5)]);
    take(&owned, UnixMicros::new(10));
    owned.end_unknown([early], UnixMicros::new(50));
    owned.stop_claiming(&[shard], Stop::Cut);
    owned.end_unknown([late], UnixMicros::new(60));
    assert!(take(&owned, UnixMicros::LAST).is_empty());
    owned.resume_claiming(shard, Epoch::from_store(1), Stop::Cut);
    let rescued = |owned: &OwnedShards| -> BTreeSet<TaskId> {
        let taken = take(owned, UnixMicros::FIRST);
        taken.iter().filter(|entry| entry.kind == WakeKind::Rescue).map(|entry| entry.id).collect()
    };
    assert_eq!(rescued(&owned), BTreeSet::from([early, late]));
    assert!(owned.in_doubt(shard).is_empty(), "they are in flight");
    owned.end_unknown([early, late], UnixMicros::new(50));
    owned.adopt_own(shard, Epoch::from_store(2), Epoch::from_store(1));
    assert_eq!(rescued(&owned), BTreeSet::from([early, late]));
    owned.end_unknown([early, late], UnixMicros::new(50));
    owned.adopt(&[(shard, Epoch::from_store(3))]);
    assert!(owned.in_doubt(shard).is_empty(), "the first read under a newer epoch finds them");
}

#[test]
fn claims_stop_until_the_last_reason_has_ended() {
    let (owned, shard, epoch) = (owned(), ShardId::new(1), Epoch::from_store(1));
    owned.stop_claiming(&[shard], Stop::Cut);
    owned.begin_release(&[shard]);
    owned.resume_claiming(shard, epoch, Stop::Cut);
    assert!(!owned.is_claimable(shard), "another node takes the shard, whatever becomes of the cut");
    owned.resume_claiming(shard, epoch, Stop::Closed);
    assert!(!owned.is_claimable(shard), "the shard was not closed");
    owned.adopt_own(shard, Epoch::from_store(2), epoch);
    assert!(!owned.is_claimable(shard), "a source that is open again is given away all the same");
    owned.end_release([shard]);
    assert!(owned.is_claimable(shard), "under whichever epoch");
    owned.stop_claiming(&[shard], Stop::Cut);
    owned.adopt_own(shard, Epoch::from_store(3), epoch);
    assert!(owned.is_claimable(shard), "the cut has ended");
}

#[test]
fn a_shard_that_moves_while_it_is_released_is_not_claimed_from_in_its_target() {
    let (target, shard) = (OwnedShards::new(100), ShardId::new(1));
    target.begin_release(&[shard]);
    target.adopt_own(shard, Epoch::from_store(2), Epoch::from_store(1));
    target.offer([entry(id(1), 5)]);
    assert!(!target.is_claimable(shard) && target.claimable_shards().is_empty());
    assert!(take(&target, UnixMicros::LAST).is_empty());
    target.end_release([shard]);
    assert!(target.is_claimable(shard) && target.take_adopted().contains_key(&shard), "it is read at once");
}
