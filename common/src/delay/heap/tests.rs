use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn at(micros: i64) -> UnixMicros {
    UnixMicros::new(micros)
}

fn id(number: u16) -> TaskId {
    TaskId::mint(Uuid::from_u128(u128::from(number) << 64), ShardId::new(number % 3))
}

fn claim(wake_at: i64, number: u16) -> Entry {
    Entry { wake_at: at(wake_at), id: id(number), kind: WakeKind::Claim }
}

fn heap(budget: usize, entries: &[(i64, u16)]) -> DelayHeap {
    let mut heap = DelayHeap::new(budget);
    for (wake_at, number) in entries {
        heap.push(claim(*wake_at, *number));
    }
    heap
}

fn drained(heap: &mut DelayHeap) -> Vec<i64> {
    heap.pop_due(UnixMicros::LAST, usize::MAX).into_iter().map(|entry| entry.wake_at.micros()).collect()
}

#[test]
fn what_is_due_comes_out_earliest_first_and_nothing_else_does() {
    let mut heap = heap(10, &[(30, 3), (10, 1), (20, 2), (40, 4)]);
    assert_eq!(heap.next_due(), Some(at(10)));
    assert_eq!(heap.pop_due(at(30), 2), [claim(10, 1), claim(20, 2)]);
    assert_eq!(heap.pop_due(at(30), 2), [claim(30, 3)]);
    assert_eq!(heap.pop_due(at(39), 2), []);
    assert_eq!(heap.next_due(), Some(at(40)));
}

#[test]
fn the_head_is_the_earliest_moment_of_any_push() {
    let mut heap = DelayHeap::new(10);
    for (wake_at, number, head) in [(20, 1, 20), (30, 2, 20), (10, 3, 10), (40, 3, 10), (5, 2, 5), (15, 1, 5)] {
        heap.push(claim(wake_at, number));
        assert_eq!(heap.next_due(), Some(at(head)));
    }
    assert_eq!(drained(&mut heap), [5, 10, 15]);
}

#[test]
fn tasks_to_claim_come_out_past_other_entries_that_stay() {
    let mut heap = heap(10, &[(10, 1), (30, 3), (40, 4)]);
    heap.push(Entry { kind: WakeKind::Deadline, ..claim(20, 2) });
    assert_eq!(heap.claims_until(at(30)).collect::<Vec<_>>(), [at(10), at(30)]);
    assert_eq!(heap.pop_claims(at(30), 1), [claim(10, 1)]);
    assert_eq!(heap.pop_claims(at(30), 10), [claim(30, 3)]);
    assert_eq!(drained(&mut heap), [20, 40]);
}

#[test]
fn tasks_to_claim_are_counted_some_milliseconds_at_a_time() {
    let mut heap = heap(10, &[(9_000, 1), (15_999, 2), (16_000, 3), (40_001, 4)]);
    heap.push(Entry { kind: WakeKind::Deadline, ..claim(8_500, 5) });
    let counts = |heap: &mut DelayHeap, until| heap.claim_counts(at(until)).collect::<Vec<_>>();
    assert!(counts(&mut heap, 8_999).is_empty(), "none is due");
    assert_eq!(counts(&mut heap, 20_000), [(at(9_000), 2), (at(16_000), 1)]);
    assert_eq!(
        counts(&mut heap, 40_000),
        [(at(9_000), 2), (at(16_000), 1), (at(40_000), 1)],
        "one comes a little later"
    );
    heap.push(Entry { kind: WakeKind::Rescue, ..claim(9_000, 1) });
    assert_eq!(counts(&mut heap, 20_000), [(at(15_999), 1), (at(16_000), 1)]);
}

#[test]
fn tasks_to_claim_that_were_due_long_ago_are_counted_together() {
    let minute = 60_000_000;
    // Also before the epoch.
    for now in [0, 3 * minute] {
        let due = |number: u16| now - 2 * minute + i64::from(number) * 10_000;
        let mut heap = DelayHeap::new(10_000);
        (0..1_000).for_each(|number| heap.push(claim(due(number), number)));
        heap.push(claim(now - 1, 1_000));
        assert_eq!(heap.claims.len(), 1_001);
        let tasks = |heap: &mut DelayHeap| heap.claim_counts(at(now)).map(|(_, tasks)| tasks).collect::<Vec<_>>();
        assert_eq!((tasks(&mut heap), heap.claims.len()), (vec![1, 999, 1], 2));
        heap.push(claim(due(500) + 1, 1_001));
        assert_eq!(heap.claims.len(), 2, "it is counted with those around it");
        assert_eq!(heap.pop_due(at(due(499)), 10_000).len(), 500);
        assert_eq!(heap.claim_counts(at(now)).next(), Some((at(due(500)), 1)), "the first is exact");
        assert_eq!(tasks(&mut heap), [1, 500, 1]);
        assert_eq!(heap.pop_due(at(now), 10_000).len(), 502);
        assert_eq!((tasks(&mut heap), heap.claims.len()), (vec![], 0));
    }
}

#[test]
fn the_latest_tasks_to_claim_come_out_first_and_other_entries_stay() {
    let mut heap = heap(10, &[(10, 1), (20, 2), (40, 4), (50, 5), (60, 6)]);
    heap.push(Entry { kind: WakeKind::Deadline, ..claim(30, 3) });
    assert_eq!(heap.pop_latest_claims(at(10), at(50), 2), [claim(50, 5), claim(40, 4)]);
    assert_eq!(heap.pop_latest_claims(at(10), at(50), 9), [claim(20, 2)], "neither what is due at `from` nor later");
    assert_eq!(heap.pop_latest_claims(at(60), at(10), 9), []);
    assert_eq!(drained(&mut heap), [10, 30, 60]);
}

#[test]
fn other_entries_come_out_past_older_tasks_to_claim_that_stay() {
    let mut heap = heap(10, &[(10, 1), (20, 2), (40, 4)]);
    let others = [(30, 3, WakeKind::Rescue), (50, 5, WakeKind::Deadline), (60, 6, WakeKind::Look)];
    let [rescue, deadline, look] = others.map(|(at, number, kind)| Entry { kind, ..claim(at, number) });
    for entry in [look, rescue, deadline] {
        heap.push(entry);
    }
    assert_eq!(heap.pop_others(at(60), 1), [rescue]);
    assert_eq!(heap.pop_others(at(59), 9), [deadline]);
    assert_eq!(drained(&mut heap), [10, 20, 40, 60]);
}

#[test]
fn an_id_is_in_once_at_its_earliest_moment() {
    let mut heap = heap(10, &[(20, 1), (30, 1), (10, 1), (15, 1)]);
    assert_eq!(heap.len(), 1);
    assert_eq!(heap.pop_due(at(100), 9), [claim(10, 1)]);
}

#[test]
fn of_two_reasons_for_the_same_moment_the_newer_counts() {
    let mut heap = heap(10, &[(20, 1)]);
    let deadline = Entry { kind: WakeKind::Deadline, ..claim(20, 1) };
    heap.push(deadline);
    heap.push(Entry { kind: WakeKind::Rescue, ..claim(25, 1) });
    assert_eq!(heap.pop_due(at(100), 9), [deadline]);
}

#[test]
fn a_full_heap_keeps_the_earliest_and_says_from_when_on_it_is_incomplete() {
    let mut heap = heap(3, &[(10, 1), (20, 2), (30, 3)]);
    assert_eq!(heap.complete_until(), None);
    for (wake_at, number, complete_until) in [(50, 4, 50), (30, 5, 30), (15, 6, 30), (5, 7, 20)] {
        heap.push(claim(wake_at, number));
        assert_eq!((heap.len(), heap.complete_until()), (3, Some(at(complete_until))));
    }
    assert_eq!(drained(&mut heap), [5, 10, 15]);
}

#[test]
fn a_full_heap_drops_tasks_to_claim_for_later_rescues_that_are_few() {
    let budget = u16::try_from(2 * PART_OF_OTHERS).unwrap();
    let claims: Vec<(i64, u16)> = (0..budget).map(|number| (i64::from(number), number)).collect();
    let mut heap = heap(budget.into(), &claims);
    let rescue = |number: u16| Entry { kind: WakeKind::Rescue, ..claim(100 + i64::from(number), number) };
    for (number, complete_until) in [(40, 31), (41, 30), (42, 30)] {
        heap.push(rescue(number));
        assert_eq!((heap.len(), heap.complete_until()), (budget.into(), Some(at(complete_until))));
    }
    heap.push(claim(5, 50));
    heap.push(claim(35, 51));
    assert_eq!(heap.pop_others(UnixMicros::LAST, 9), [rescue(40), rescue(41)], "no task to claim took their place");
    assert_eq!(heap.complete_until(), Some(at(29)));
    assert_eq!(drained(&mut heap).len(), 30);
}

#[test]
fn room_made_later_does_not_make_a_heap_complete_until_it_is_reopened() {
    let mut heap = heap(1, &[(10, 1), (20, 2)]);
    assert_eq!(heap.pop_due(at(10), 9).len(), 1);
    assert_eq!(heap.complete_until(), Some(at(20)));
    heap.reopen();
    assert_eq!(heap.complete_until(), None);
    heap.push(claim(20, 2));
    assert_eq!(heap.next_due(), Some(at(20)));
}

#[test]
fn an_entry_that_is_known_moves_even_when_the_heap_is_full() {
    let mut heap = heap(2, &[(10, 1), (20, 2)]);
    heap.push(claim(5, 2));
    assert_eq!(heap.complete_until(), None);
    assert_eq!(drained(&mut heap), [5, 10]);
}

#[test]
fn a_shard_that_is_given_up_leaves_nothing_behind() {
    let mut heap = heap(100, &[(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6)]);
    heap.drop_shards(&[ShardId::new(0), ShardId::new(9)]);
    heap.drop_shards(&[ShardId::new(0)]);
    assert_eq!(drained(&mut heap), [2, 3, 5, 6]);
}

#[test]
fn what_is_taken_out_is_gone() {
    let mut heap = heap(10, &[(10, 1), (20, 2)]);
    assert_eq!(heap.remove(id(1)), Some(claim(10, 1)));
    assert_eq!(heap.remove(id(1)), None);
    assert_eq!((heap.len(), heap.is_empty(), heap.budget), (1, false, 10));
}

#[test]
fn an_empty_heap_gives_its_memory_back_and_goes_on() {
    let mut heap = DelayHeap::new(10_000);
    for _ in 0..2 {
        for number in 0..10_000 {
            heap.push(claim(i64::from(number), number));
        }
        assert_eq!(drained(&mut heap).len(), 10_000);
        assert_eq!((heap.slots.capacity(), heap.free.capacity()), (0, 0));
    }
}

#[test]
fn an_entry_has_32_bytes() {
    assert_eq!(size_of::<Entry>(), 32);
}

#[derive(Clone, Debug)]
enum Step {
    Push(i64, u16),
    Pop(i64, usize),
    Remove(u16),
    DropShard(u16),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..200_i64, 0..40_u16).prop_map(|(wake_at, number)| Step::Push(wake_at, number)),
        2 => (0..200_i64, 0..6_usize).prop_map(|(until, max)| Step::Pop(until, max)),
        2 => (0..40_u16).prop_map(Step::Remove),
        1 => (0..3_u16).prop_map(Step::DropShard),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 0..200)
}

/// A model of the heap as a sorted list. Every id has a different moment, so that "the latest" is never ambiguous.
#[derive(Default)]
struct Model {
    budget: usize,
    wakes: BTreeMap<u16, i64>,
    complete_until: Option<i64>,
}

fn moment(wake_at: i64, number: u16) -> i64 {
    wake_at * 100 + i64::from(number)
}

impl Model {
    fn sorted(&self) -> Vec<(i64, u16)> {
        let mut sorted: Vec<_> = self.wakes.iter().map(|(number, wake_at)| (*wake_at, *number)).collect();
        sorted.sort_unstable();
        sorted
    }

    fn push(&mut self, wake_at: i64, number: u16) {
        let known = self.wakes.get(&number).copied();
        self.wakes.insert(number, known.map_or(wake_at, |known| known.min(wake_at)));
        if self.wakes.len() > self.budget {
            let (latest, number) = *self.sorted().last().unwrap();
            self.wakes.remove(&number);
            self.complete_until = Some(self.complete_until.map_or(latest, |until| until.min(latest)));
        }
    }

    fn pop(&mut self, until: i64, max: usize) -> Vec<i64> {
        let due: Vec<_> = self.sorted().into_iter().take_while(|(wake_at, _)| *wake_at <= until).take(max).collect();
        for (_, number) in &due {
            self.wakes.remove(number);
        }
        due.into_iter().map(|(wake_at, _)| wake_at).collect()
    }
}

/// The counts of a walk over all tasks to claim.
fn walked(heap: &DelayHeap) -> Vec<(UnixMicros, usize)> {
    let mut counts = BTreeMap::<i64, usize>::new();
    for due in heap.claims_until(UnixMicros::LAST) {
        *counts.entry(due.micros().div_euclid(8_000)).or_default() += 1;
    }
    let first = heap.claims_until(UnixMicros::LAST).next();
    counts.into_iter().map(|(number, tasks)| (at(number * 8_000).max(first.unwrap()), tasks)).collect()
}

/// A change of the heap: which one, its moment in a unit of the test's, the number of its task, and a small number.
type Change = (u8, i64, u16, usize);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((0..10_u8, -50..50_i64, 0..40_u16, 0..4_usize), 0..200)
}

fn change(heap: &mut DelayHeap, (step, moment, number, more): Change, unit_micros: i64) {
    let kinds = [WakeKind::Claim, WakeKind::Claim, WakeKind::Deadline, WakeKind::Rescue];
    let until = at(moment * unit_micros);
    match step {
        0..4 => heap.push(Entry { kind: kinds[more], ..claim(moment * unit_micros, number) }),
        4 => drop(heap.pop_due(until, more)),
        5 => drop(heap.pop_claims(until, more)),
        6 => drop(heap.pop_latest_claims(at(8 * unit_micros), until, more)),
        7 => drop(heap.pop_others(until, more)),
        8 => assert!(heap.remove(id(number)).is_none_or(|removed| removed.id == id(number))),
        _ => heap.drop_shards(&[ShardId::new(number % 3)]),
    }
}

proptest! {
    #[test]
    fn the_counts_of_tasks_to_claim_are_those_of_a_walk(budget in 1..30_usize, changes in changes()) {
        let mut heap = DelayHeap::new(budget);
        for step in changes {
            change(&mut heap, step, 1_000);
            prop_assert_eq!(heap.claim_counts(at(50_000)).collect::<Vec<_>>(), walked(&heap));
        }
    }

    /// The moments are seconds, and the looks go back, too, as with the clock of another server.
    #[test]
    fn tasks_that_are_counted_together_are_all_counted(
        budget in 1..30_usize,
        changes in changes(),
        looks in prop::collection::vec(-100..150_i64, 200),
    ) {
        let (mut heap, second) = (DelayHeap::new(budget), 1_000_000);
        for (step, look) in changes.into_iter().zip(looks) {
            change(&mut heap, step, second);
            let until = at(look * second);
            let first = heap.claim_counts(until).next().map(|(due, _)| due);
            prop_assert_eq!(first, heap.claims_until(until).next());
            let counted: usize = heap.claims.until(UnixMicros::LAST).map(|(_, tasks)| tasks).sum();
            prop_assert_eq!(counted, heap.claims_until(UnixMicros::LAST).count());
        }
    }

    #[test]
    fn a_full_heap_tells_from_when_on_it_is_incomplete_and_keeps_the_first_few_other_entries(
        budget in 1..60_usize,
        pushed in prop::collection::vec((0..50_i64, 0..4_usize), 0..200),
    ) {
        let kinds = [WakeKind::Claim, WakeKind::Claim, WakeKind::Claim, WakeKind::Rescue];
        let entry = |(number, (wake_at, kind)): (u16, &(i64, usize))| {
            Entry { kind: kinds[*kind], ..claim(*wake_at, number) }
        };
        let entries: Vec<Entry> = (0..).zip(&pushed).map(entry).collect();
        let mut heap = DelayHeap::new(budget);
        entries.iter().for_each(|entry| heap.push(*entry));
        prop_assert_eq!(heap.len(), entries.len().min(budget));
        let complete_until = heap.complete_until().unwrap_or(UnixMicros::LAST);
        let are_others = entries.iter().filter(|entry| entry.kind != WakeKind::Claim).count();
        let kept = heap.pop_due(UnixMicros::LAST, usize::MAX);
        prop_assert!(entries.iter().all(|entry| entry.wake_at >= complete_until || kept.contains(entry)));
        let others = kept.iter().filter(|entry| entry.kind != WakeKind::Claim).count();
        prop_assert!(others >= are_others.min(budget / PART_OF_OTHERS));
    }

    #[test]
    fn the_heap_behaves_like_a_sorted_list(budget in 1..30_usize, steps in steps()) {
        let mut heap = DelayHeap::new(budget);
        let mut model = Model { budget, ..Model::default() };
        for step in steps {
            match step {
                Step::Push(wake_at, number) => {
                    let wake_at = moment(wake_at, number);
                    heap.push(claim(wake_at, number));
                    model.push(wake_at, number);
                }
                Step::Pop(until, max) => {
                    let popped: Vec<i64> =
                        heap.pop_due(at(until * 100), max).iter().map(|entry| entry.wake_at.micros()).collect();
                    prop_assert_eq!(popped, model.pop(until * 100, max));
                }
                Step::Remove(number) => {
                    let removed = heap.remove(id(number)).map(|entry| entry.wake_at.micros());
                    prop_assert_eq!(removed, model.wakes.remove(&number));
                }
                Step::DropShard(shard) => {
                    model.wakes.retain(|number, _| number % 3 != shard);
                    heap.drop_shards(&[ShardId::new(shard)]);
                }
                Step::Reopen => {
                    heap.reopen();
                    model.complete_until = None;
                }
            }
            prop_assert_eq!(heap.len(), model.wakes.len());
            prop_assert!(heap.len() <= budget);
            prop_assert_eq!(heap.next_due(), model.sorted().first().map(|(wake_at, _)| at(*wake_at)));
            prop_assert_eq!(heap.complete_until(), model.complete_until.map(at));
        }
        let rest: Vec<i64> = model.sorted().into_iter().map(|(wake_at, _)| wake_at).collect();
        prop_assert_eq!(drained(&mut heap), rest);
    }
}
