use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Standing::{Draining, Removed, Serving};

fn shard(number: u16, database: usize, rows: u64) -> ShardLoad {
    let weight = Weight { rows, bytes: rows * 100, rate: rows / 2 };
    ShardLoad { shard: ShardId::new(number), database: DatabaseIndex::new(database), weight, is_fixed: false }
}

/// As many equal shards in each database as `counts` says.
fn equal(counts: &[usize]) -> Vec<ShardLoad> {
    let places = counts.iter().enumerate().flat_map(|(database, count)| std::iter::repeat_n(database, *count));
    (0..).zip(places).map(|(number, database)| shard(number, database, 1_000)).collect()
}

fn after(shards: &[ShardLoad], plan: &Plan) -> Vec<ShardLoad> {
    let targets: BTreeMap<ShardId, DatabaseIndex> = plan.moves.iter().map(|it| (it.shard, it.target)).collect();
    let moved =
        |load: &ShardLoad| ShardLoad { database: targets.get(&load.shard).copied().unwrap_or(load.database), ..*load };
    shards.iter().map(moved).collect()
}

fn counts(shards: &[ShardLoad], databases: usize) -> Vec<usize> {
    (0..databases).map(|index| shards.iter().filter(|shard| shard.database.get() == index).count()).collect()
}

fn moved(from: &[usize], standings: &[Standing], tolerance: u32) -> (usize, Vec<usize>) {
    let shards = equal(from);
    let plan = plan(&shards, standings, tolerance);
    (plan.moves.len(), counts(&after(&shards, &plan), from.len()))
}

#[test]
fn an_added_database_gets_its_share_and_no_shard_moves_twice() {
    assert_eq!(moved(&[256, 0], &[Serving; 2], 0), (128, vec![128, 128]));
    assert_eq!(moved(&[256, 0], &[Serving; 2], 10), (116, vec![140, 116]), "10 % above 128 is 140");
    assert_eq!(moved(&[256, 0, 0, 0], &[Serving; 4], 0).1, [64, 64, 64, 64]);
    assert_eq!(moved(&[140, 116], &[Serving; 2], 10).0, 0);
}

#[test]
fn a_draining_database_ends_empty_and_its_shards_go_where_room_is() {
    assert_eq!(moved(&[128, 64, 64], &[Serving, Serving, Draining], 0), (64, vec![128, 128, 0]));
    assert_eq!(moved(&[2, 2, 2], &[Serving, Removed, Draining], 0), (4, vec![6, 0, 0]));
    assert_eq!(moved(&[4, 0], &[Draining, Draining], 0), (0, vec![4, 0]), "nowhere to go");
}

#[test]
fn a_drain_alone_moves_nothing_between_the_others() {
    let shards = equal(&[10, 2, 4]);
    let moves = plan_drain(&shards, &[Serving, Serving, Draining]);
    assert_eq!(moves.len(), 4);
    assert!(moves.iter().all(|it| it.source.get() == 2 && it.target.get() == 1), "to the lightest: {moves:?}");
}

#[test]
fn shards_that_move_already_stay_and_count_where_they_go() {
    let mut shards = equal(&[8, 0]);
    for load in &mut shards[..4] {
        (load.database, load.is_fixed) = (DatabaseIndex::new(1), true);
    }
    assert_eq!(plan(&shards, &[Serving; 2], 0).moves, []);
    for load in &mut shards {
        (load.database, load.is_fixed) = (DatabaseIndex::new(1), true);
    }
    assert_eq!(plan(&shards, &[Serving, Draining], 0).moves, []);
}

#[test]
fn without_a_task_the_number_of_shards_decides() {
    let shards: Vec<ShardLoad> = (0..8).map(|number| shard(number, 0, 0)).collect();
    assert_eq!(counts(&after(&shards, &plan(&shards, &[Serving; 2], 0)), 2), [4, 4]);
    assert_eq!(
        plan(&[], &[Serving; 2], 0),
        Plan { before_percent: vec![0.0; 2], after_percent: vec![0.0; 2], ..Plan::default() }
    );
}

#[test]
fn rows_bytes_and_rate_count_alike() {
    let with = |number, weight| ShardLoad { weight, ..shard(number, 0, 0) };
    let heavy_in = [
        Weight { rows: 9, bytes: 1, rate: 1 },
        Weight { rows: 1, bytes: 9, rate: 1 },
        Weight { rows: 1, bytes: 1, rate: 9 },
        Weight { rows: 1, bytes: 1, rate: 1 },
    ];
    let shards: Vec<ShardLoad> = (0..).zip(heavy_in).map(|(number, weight)| with(number, weight)).collect();
    let plan = plan(&shards, &[Serving; 2], 0);
    assert!(plan.before_percent[0] > 99.9 && plan.after_percent[1] > 30.0, "{plan:?}");
    assert_eq!(plan.moves.len(), 2, "{plan:?}");
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let most = Weight { rows: u64::MAX, bytes: u64::MAX, rate: u64::MAX };
    let shards: Vec<ShardLoad> = (0..4_096).map(|number| ShardLoad { weight: most, ..shard(number, 0, 0) }).collect();
    assert!(!plan(&shards, &[Serving; 64], 0).moves.is_empty());
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![4 => Just(Serving), 1 => Just(Draining), 1 => Just(Removed)]
}

fn scene() -> impl Strategy<Value = (Vec<ShardLoad>, Vec<Standing>, u32)> {
    prop::collection::vec(standing(), 1..6).prop_flat_map(|standings| {
        let one = (0..standings.len(), 0_u64..1_000, 0_u64..1_000_000, 0_u64..100);
        let shards = prop::collection::vec(one, 0..80).prop_map(|all| {
            (0..)
                .zip(all)
                .map(|(number, (database, rows, bytes, rate))| ShardLoad {
                    weight: Weight { rows, bytes, rate },
                    ..shard(number, database, 0)
                })
                .collect()
        });
        (shards, Just(standings), 0_u32..30)
    })
}

proptest! {
    #[test]
    fn no_database_ends_above_the_limit_and_the_closed_ones_end_empty((shards, standings, tolerance) in scene()) {
        let plan = plan(&shards, &standings, tolerance);
        let is_open = |index: usize| standings[index] == Serving;
        if !(0..standings.len()).any(is_open) {
            prop_assert!(plan.moves.is_empty());
            return Ok(());
        }
        let ended = after(&shards, &plan);
        for (index, percent) in plan.after_percent.iter().enumerate() {
            if is_open(index) {
                prop_assert!(*percent <= plan.limit_percent + 1e-6, "{plan:?}");
            } else {
                prop_assert!(ended.iter().all(|shard| shard.database.get() != index));
            }
        }
        let heaviest = |percents: &[f64]| percents.iter().copied().fold(0.0, f64::max);
        let is_needed = (0..standings.len()).any(|index| !is_open(index)) || heaviest(&plan.before_percent) > plan.limit_percent;
        prop_assert!(is_needed || plan.moves.is_empty(), "no move without a reason: {plan:?}");
    }

    #[test]
    fn a_second_plan_moves_nothing_and_the_order_of_the_shards_does_not_matter((shards, standings, tolerance) in scene()) {
        let first = plan(&shards, &standings, tolerance);
        let reversed: Vec<ShardLoad> = shards.iter().rev().copied().collect();
        prop_assert_eq!(&plan(&reversed, &standings, tolerance), &first);
        prop_assert_eq!(plan(&after(&shards, &first), &standings, tolerance).moves, vec![]);
    }

    #[test]
    fn with_equal_shards_no_plan_has_fewer_moves(from in prop::collection::vec(0_usize..40, 1..6), tolerance in 0_u32..30) {
        let (shards, standings) = (equal(&from), vec![Serving; from.len()]);
        let total: usize = from.iter().sum();
        let tolerated = total * (100 + tolerance as usize) / (100 * from.len());
        let most = tolerated.max(total.div_ceil(from.len()));
        let needed: usize = from.iter().map(|count| count.saturating_sub(most)).sum();
        let plan = plan(&shards, &standings, tolerance);
        prop_assert_eq!(plan.moves.len(), needed);
        prop_assert!(counts(&after(&shards, &plan), from.len()).iter().all(|count| *count <= most));
    }
}
