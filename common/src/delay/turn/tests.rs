use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::{
    delay::heap::WakeKind,
    ids::{ShardId, TaskId},
};

/// The present of these tests.
const NOW: UnixMicros = UnixMicros::new(10_000_000);

/// A moment so long after the present.
fn at_ms(ahead_ms: i64) -> UnixMicros {
    UnixMicros::new(NOW.micros() + ahead_ms * 1_000)
}

fn entry(ahead_ms: i64, number: u16, kind: WakeKind) -> Entry {
    let id = TaskId::mint(Uuid::from_u128(u128::from(number) << 64), ShardId::new(0));
    Entry { wake_at: at_ms(ahead_ms), id, kind }
}

/// A heap of tasks to claim that are due so long after the present.
fn heap(ahead_ms: impl IntoIterator<Item = i64>) -> DelayHeap {
    let mut heap = DelayHeap::new(100_000);
    for (ahead_ms, number) in ahead_ms.into_iter().zip(0..) {
        heap.push(entry(ahead_ms, number, WakeKind::Claim));
    }
    heap
}

/// Entries of any kind leave 30 ms ahead, and tasks to claim 100 ms.
fn reach() -> Reach {
    Reach { now: NOW, until: at_ms(30), claims_until: at_ms(100), is_crowd: false, overdue_wait: false }
}

fn room(most: usize) -> Room {
    Room { most, overdue: most }
}

/// How long after the present those are due that leave the heap, in milliseconds.
fn taken(heap: &mut DelayHeap, room: Room) -> Vec<i64> {
    taken_within(reach(), heap, room)
}

fn taken_within(reach: Reach, heap: &mut DelayHeap, room: Room) -> Vec<i64> {
    take(heap, reach, room).iter().map(|entry| (entry.wake_at.micros() - NOW.micros()) / 1_000).collect()
}

#[test]
fn without_a_crowd_the_earliest_leave() {
    let mut heap = heap([80, 10, 50, 120]);
    heap.push(entry(40, 9, WakeKind::Deadline));
    assert_eq!(taken(&mut heap, room(2)), [10, 50]);
    assert_eq!(taken(&mut heap, room(9)), [80], "a deadline waits for its moment, and a task for its lead");
}

#[test]
fn tasks_that_come_due_after_a_crowd_are_claimed_before_its_last_one() {
    let mut heap = heap(std::iter::repeat_n(40, 1_000).chain([50, 60, 120]));
    let mut taken = |room| taken_within(Reach { is_crowd: true, ..reach() }, &mut heap, room);
    assert_eq!(taken(room(4)), [40, 40, 60, 50]);
    assert_eq!(taken(room(4)), [40; 4]);
    assert_eq!(taken(room(9_999)).len(), 1_000 - 6, "the last one is not within reach");
}

#[test]
fn tasks_that_come_due_during_a_burst_do_not_wait_for_its_last_one() {
    let mut heap = heap(std::iter::repeat_n(-1, 1_000).chain([20, 60]));
    assert_eq!(taken(&mut heap, room(10)), [-1, -1, -1, -1, -1, 60, 20, -1, -1, -1]);
}

#[test]
fn the_overdue_stay_while_many_messages_wait_to_be_sent() {
    let mut heap = heap([-300, -2, 20, 50]);
    heap.push(entry(-1, 9, WakeKind::Rescue));
    let reach = Reach { overdue_wait: true, ..reach() };
    let mut taken = || take(&mut heap, reach, room(5)).iter().map(|entry| entry.wake_at).collect::<Vec<_>>();
    assert_eq!(taken(), [at_ms(50), at_ms(20)]);
    assert!(taken().is_empty());
}

#[test]
fn the_oldest_keep_half_of_each_claim() {
    let mut heap = heap(-500..500);
    let (oldest, latest) = (-500..-450, 51..=100);
    assert_eq!(taken(&mut heap, room(100)), oldest.chain(latest.rev()).collect::<Vec<_>>());
}

#[test]
fn rescues_and_deadlines_do_not_wait_for_the_last_task_of_a_backlog() {
    let mut heap = heap(std::iter::repeat_n(-9_000, 1_000));
    let others = [(-1, WakeKind::Rescue), (0, WakeKind::Deadline), (20, WakeKind::Rescue), (40, WakeKind::Deadline)];
    for ((ahead_ms, kind), number) in others.into_iter().zip(2_000..) {
        heap.push(entry(ahead_ms, number, kind));
    }
    assert_eq!(taken(&mut heap, room(8)), [-9_000, -9_000, -1, 0, -9_000, -9_000, -9_000, -9_000], "a quarter");
    assert_eq!(taken(&mut heap, room(8))[..4], [-9_000, -9_000, -9_000, 20], "its moment is near");
    assert_eq!(taken(&mut heap, room(8)), [-9_000; 8], "the last one waits for its moment");
}

#[test]
fn the_oldest_tasks_to_claim_keep_a_part_beside_any_number_of_rescues() {
    for rescued_ms in [-1, -99_000] {
        let mut heap = heap(std::iter::repeat_n(-9_000, 100));
        (1_000..2_000).for_each(|number| heap.push(entry(rescued_ms, number, WakeKind::Rescue)));
        for most in [1, 2, 8] {
            let two = [taken(&mut heap, room(most)), taken(&mut heap, room(most))].concat();
            assert!(two.contains(&-9_000) && two.contains(&rescued_ms), "{rescued_ms} {most}: {two:?}");
        }
    }
}

#[test]
fn rescues_and_tasks_to_claim_take_turns_at_a_single_place() {
    let mut heap = heap(std::iter::repeat_n(-9_000, 100));
    (1_000..1_002).for_each(|number| heap.push(entry(-1, number, WakeKind::Rescue)));
    let one_by_one = (0..6).flat_map(|_| taken(&mut heap, Room { most: 4, overdue: 1 }));
    assert_eq!(one_by_one.collect::<Vec<_>>(), [-9_000, -1, -9_000, -1, -9_000, -9_000]);
}

#[test]
fn a_task_that_is_late_waits_for_the_older_ones() {
    let late = -i64::try_from(ON_TIME.as_millis()).unwrap();
    let mut heap = heap([late - 2, late - 1, late]);
    assert_eq!(taken(&mut heap, Room { most: 2, overdue: 1 }), [late - 2]);
}

#[test]
fn the_last_quarter_of_a_window_takes_only_what_comes_due_now() {
    assert_eq!(Room::of(100, 0, 50), Room { most: 50, overdue: 50 });
    assert_eq!(Room::of(100, 60, 50), Room { most: 40, overdue: 15 });
    assert_eq!(Room::of(100, 80, 50), Room { most: 20, overdue: 0 });
    assert_eq!(Room::of(100, 200, 50), Room { most: 0, overdue: 0 });
    assert_eq!(Room::of(1, 0, 50), Room { most: 1, overdue: 1 }, "the smallest window takes a task");
    let mut heap = heap([-300, -2, 20]);
    assert_eq!(taken(&mut heap, Room { most: 5, overdue: 0 }), [20, -2]);
}

/// The shards of each claim of tasks of these shards.
fn divided(shards: impl IntoIterator<Item = u16>, each: usize, most: usize) -> Vec<Vec<u16>> {
    let of_shard = |(number, shard): (u16, u16)| {
        let id = TaskId::mint(Uuid::from_u128(u128::from(number) << 64), ShardId::new(shard));
        Entry { wake_at: NOW, id, kind: WakeKind::Claim }
    };
    let entries = (0_u16..).zip(shards).map(of_shard).collect();
    let shards = |claim: &Vec<Entry>| claim.iter().map(|entry| entry.id.shard().number()).collect();
    divide(entries, each, most).iter().map(shards).collect()
}

#[test]
fn the_claims_of_a_crowd_share_no_shard_where_their_sizes_allow_that() {
    assert_eq!(divided([1, 0], 2, 9), [[1, 0]], "one claim is as it comes");
    let crowd = || (0..504).map(|number| number % 85);
    let claims = divided(crowd(), 126, 500);
    assert_eq!(claims.len(), 4);
    assert!(claims.windows(2).all(|pair| pair[0].last() < pair[1].first()), "{claims:?}");
    let full = divided(crowd(), 126, 126);
    assert!(full.iter().all(|claim| claim.len() == 126), "no claim is larger than allowed: {full:?}");
    let one_shard: Vec<usize> = divided([7; 504], 126, 500).iter().map(Vec::len).collect();
    assert_eq!(one_shard, [126; 4]);
}

proptest! {
    #[test]
    fn each_entry_is_in_one_claim(
        shards in prop::collection::vec(0_u16..20, 0..300),
        each in 1_usize..50,
        more in 0_usize..50,
    ) {
        let most = each + more;
        let claims = divided(shards.clone(), each, most);
        prop_assert!(claims.len() <= shards.len().div_ceil(each).max(1));
        prop_assert!(claims.iter().all(|claim| claim.len() <= most), "{claims:?}");
        let (mut all, mut expected) = (claims.concat(), shards);
        all.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(all, expected);
    }

    #[test]
    fn every_entry_leaves_once_and_within_its_reach(
        wakes in prop::collection::vec((-1_000_i64..200, 0_usize..4), 0..200),
        most in 1_usize..40,
        overdue in 1_usize..40,
    ) {
        let kinds = [WakeKind::Claim, WakeKind::Deadline, WakeKind::Rescue, WakeKind::Look];
        let mut heap = DelayHeap::new(1_000);
        for ((ahead_ms, kind), number) in wakes.iter().zip(0..) {
            heap.push(entry(*ahead_ms, number, kinds[*kind]));
        }
        let room = Room { most, overdue: overdue.min(most) };
        let (mut left, mut waits) = (Vec::new(), false);
        loop {
            let first = heap.next_due();
            let entries = take(&mut heap, reach(), room);
            prop_assert!(entries.len() <= most);
            if entries.is_empty() {
                break;
            }
            if first < Some(NOW) {
                let has_left = entries.iter().any(|entry| Some(entry.wake_at) == first);
                prop_assert!(has_left || !waits, "the oldest never starve");
                waits = !has_left;
            }
            left.extend(entries);
        }
        let reached = |kind| if kind == WakeKind::Claim { at_ms(100) } else { at_ms(30) };
        prop_assert!(left.iter().all(|entry| entry.wake_at <= reached(entry.kind)));
        let expected = wakes.iter().filter(|(ahead_ms, kind)| at_ms(*ahead_ms) <= reached(kinds[*kind])).count();
        prop_assert_eq!(left.len(), expected);
    }
}
