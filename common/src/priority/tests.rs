use proptest::prelude::*;

use super::*;

/// Rolls evenly spread over 0..1, the same in every run.
fn dice() -> impl FnMut() -> f64 {
    let mut state: u64 = 0x2545_F491_4F6C_DD1D;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

const PLENTY: usize = 100_000;

fn part_of(shares: Levels, level: usize) -> f64 {
    shares[level] as f64 / shares.iter().sum::<usize>() as f64
}

#[test]
fn four_of_five_picks_are_of_the_highest_priority_that_waits_and_the_rest_of_the_lowest() {
    let shares = shares([0, PLENTY, PLENTY, PLENTY, 0], 20_000, None, dice());
    assert!((part_of(shares, 1) - 0.8).abs() < 0.02, "{shares:?}");
    assert!((part_of(shares, 3) - 0.2).abs() < 0.02, "{shares:?}");
    assert_eq!(shares[2], 0, "the levels between them wait until one of them is empty");
}

#[test]
fn while_the_highest_and_the_lowest_priority_wait_those_between_them_need_weights() {
    let waits = |weights: Option<&[u32]>| shares([PLENTY; LEVELS], 20_000, weights, dice()).map(|share| share == 0);
    assert_eq!(waits(None), [false, true, true, true, false]);
    assert_eq!(waits(Some(&[80, 10, 5, 3, 2])), [false; LEVELS]);
}

#[test]
fn weights_decide_how_often_each_priority_is_drawn() {
    let shares = shares([PLENTY; LEVELS], 40_000, Some(&[5, 2, 1]), dice());
    for (level, weight) in [(0, 0.5), (1, 0.2), (2, 0.1), (3, 0.1), (4, 0.1)] {
        assert!((part_of(shares, level) - weight).abs() < 0.02, "{level}: {shares:?}");
    }
}

#[test]
fn an_empty_priority_gives_its_share_to_the_others_at_once() {
    assert_eq!(shares([0, 0, 7, 0, 0], 5, None, || 0.9), [0, 0, 5, 0, 0]);
    assert_eq!(shares([2, 0, 0, 0, 9], 5, None, || 0.0), [2, 0, 0, 0, 3]);
    assert_eq!(shares([1, 0, 0, 9, 0], 4, Some(&[100]), || 0.0), [1, 0, 0, 3, 0]);
}

proptest! {
    #[test]
    fn the_sum_is_exact_and_no_priority_gives_more_than_it_has(
        ready in prop::array::uniform5(0_usize..40),
        room in 0_usize..120,
        weights in prop::option::of(prop::collection::vec(1_u32..1_000, 1..=LEVELS)),
        rolls in prop::collection::vec(0.0_f64..1.0, 120),
    ) {
        let mut rolls = rolls.into_iter();
        let shares = shares(ready, room, weights.as_deref(), || rolls.next().unwrap_or(0.5));
        prop_assert_eq!(shares.iter().sum::<usize>(), room.min(ready.iter().sum()));
        for (share, ready) in shares.iter().zip(ready) {
            prop_assert!(*share <= ready);
        }
    }
}
