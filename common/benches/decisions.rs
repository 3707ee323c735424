//! What the decisions on a task's way cost: the heap, its route, the assignment of shards, and its forms as text.
//!
//! `make bench-micro` measures. Without `--bench` each part runs once, on little data: so `make test` sees it work.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::time::Duration;

use common::{
    delay::heap::{DelayHeap, Entry, WakeKind},
    ids::{DatabaseName, Incarnation, NodeId, NodeName, QueueName, ShardId, TaskId},
    queue::Placement,
    shard::{
        Assignment,
        assign::{AssignmentProblem, ShardGroup, solve},
        route::{Routing, route},
    },
    task::NewTask,
    time::{Present, UnixMicros},
    wire::{Limits, TaskRequest, TaskView},
};
use divan::{Bencher, black_box};
use uuid::Uuid;

fn main() {
    divan::main();
}

const SHARDS: u32 = 256;

const NOW: UnixMicros = UnixMicros::new(1_800_000_000_000_000);

/// As many entries as a node holds at most by default, or few where nothing is measured.
fn heap_entries() -> u128 {
    if std::env::args().any(|argument| argument == "--bench") { 1_000_000 } else { 1_000 }
}

/// The entry of a number. Numbers in a row wake at moments that are spread over a minute.
fn entry(number: u128) -> Entry {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shard = ShardId::new((spread >> 8) as u16 % SHARDS as u16);
    let wake_at = NOW.plus(Duration::from_micros((spread >> 16) as u64 % 60_000_000));
    Entry { wake_at, id: TaskId::mint(Uuid::from_u128(spread | number << 64), shard), kind: WakeKind::Claim }
}

fn full_heap() -> DelayHeap {
    let mut heap = DelayHeap::new(usize::MAX);
    for number in 0..heap_entries() {
        heap.push(entry(number));
    }
    heap
}

#[divan::bench]
fn heap_push_and_remove(bencher: Bencher<'_, '_>) {
    let (mut heap, mut next) = (full_heap(), heap_entries());
    bencher.bench_local(|| {
        let entry = entry(next);
        next += 1;
        heap.push(black_box(entry));
        heap.remove(black_box(entry.id))
    });
}

#[divan::bench]
fn heap_pop_and_push(bencher: Bencher<'_, '_>) {
    let (mut heap, mut next) = (full_heap(), heap_entries());
    bencher.bench_local(|| {
        let due = heap.pop_due(UnixMicros::LAST, 1);
        heap.push(entry(next));
        next += 1;
        due
    });
}

#[divan::bench]
fn heap_pop_500_and_push_them(bencher: Bencher<'_, '_>) {
    let mut heap = full_heap();
    bencher.bench_local(|| {
        let due = heap.pop_due(UnixMicros::LAST, 500);
        for entry in &due {
            heap.push(Entry { wake_at: entry.wake_at.plus(Duration::from_secs(60)), ..*entry });
        }
        due.len()
    });
}

/// `None`: no key, due soon, so to one of the node's own shards.
#[divan::bench(args = [None, Some("order 4711")])]
fn route_to_a_shard(bencher: Bencher<'_, '_>, key: Option<&str>) {
    let owned: Vec<ShardId> = (0..85).map(ShardId::new).collect();
    let queue = QueueName::new("mail");
    let mut dice = 0_u64;
    bencher.bench_local(|| {
        dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        route(&Routing {
            queue: black_box(&queue),
            placement: Placement::Spread,
            partition_key: None,
            key,
            due_at: NOW,
            now: NOW,
            horizon: Duration::from_secs(60),
            owned: &owned,
            shard_count: SHARDS,
            dice,
        })
    });
}

fn nodes(count: u128) -> std::collections::BTreeSet<NodeId> {
    let node = |number: u128| NodeId {
        name: NodeName::new(format!("node-{number}")),
        incarnation: Incarnation::new(Uuid::from_u128(number)),
    };
    (0..count).map(node).collect()
}

fn problem(shards: u16, members: u128) -> AssignmentProblem {
    let shards = (0..shards).map(ShardId::new).collect();
    AssignmentProblem { groups: vec![ShardGroup { database: DatabaseName::new("main"), shards, fit: nodes(members) }] }
}

/// One of nine nodes has ended: its shards go to the eight others.
#[divan::bench(args = [256, 4_096])]
fn assign_the_shards_of_a_node_that_ended(bencher: Bencher<'_, '_>, shards: u16) {
    let before = solve(&problem(shards, 9), &Assignment::default());
    let after = problem(shards, 8);
    bencher.bench_local(|| solve(black_box(&after), black_box(&before)));
}

const REQUEST: &str = r#"{"queue": "mail", "due_at": 1800000060000, "key": "order 4711", "priority": 5, "headers": {"tenant": "a"},
    "payload": {"to": "someone@example.com", "template": "reminder", "order": 4711}}"#;

fn task() -> NewTask {
    let task = TaskRequest::parse(REQUEST).unwrap().validate(Present::exactly(NOW), &Limits::default()).unwrap();
    NewTask { id: entry(1).id, task }
}

#[divan::bench]
fn read_a_request() -> usize {
    let task =
        TaskRequest::parse(black_box(REQUEST)).unwrap().validate(Present::exactly(NOW), &Limits::default()).unwrap();
    task.content.payload.len()
}

#[divan::bench]
fn write_an_answer(bencher: Bencher<'_, '_>) {
    let task = task();
    bencher.bench_local(|| serde_json::to_vec(&TaskView::of_new(black_box(&task), NOW, 5)).unwrap());
}

#[divan::bench]
fn read_and_write_an_id() -> String {
    black_box("01890a5d-ac96-774b-bcce-b302099a0012").parse::<TaskId>().unwrap().to_string()
}
