//! Turns and crowds, without a database.

use super::{
    held::{inbox_row, keyed},
    *,
};
use crate::intake::sql::turns::ASIDE_MOST;

/// The state of a pass beside crowds of these shards.
fn with_crowds<const N: usize>(shards: [ShardId; N]) -> PassState {
    let mut state = PassState::default();
    state.turns.crowded = BTreeSet::from(shards);
    state
}

#[test]
fn rows_that_are_tried_again_leave_every_second_pass_to_those_behind_them() {
    let (shard, away) = (ShardId::new(0), DatabaseIndex::HOME);
    let ids: Vec<TaskId> = (0..3 * BATCH).map(|_| TaskId::mint(uuid::Uuid::now_v7(), shard)).collect();
    let mut state = PassState { has_more: true, ..PassState::default() };
    state.avoided.insert(away, Instant::now());
    let begin = Instant::now() + AVOIDED;
    state.leave_alone(ids.iter().copied(), Duration::ZERO);
    state.let_in_again(begin);
    assert_eq!((state.aside.len(), state.avoided.len()), (3 * BATCH, 1), "it is the turn of others");
    state.let_in_again(begin);
    assert_eq!((state.aside.len(), state.avoided.len()), (2 * BATCH, 0));
    // These are still held. Those that have waited for longer come before them.
    state.leave_alone(ids[..BATCH].iter().copied(), Duration::ZERO);
    for _ in 0..4 {
        state.let_in_again(begin + AVOIDED);
    }
    assert!(state.aside.keys().eq(&ids[..BATCH]), "each had its turn");
    state.has_more = false;
    state.let_in_again(begin + AVOIDED);
    assert!(state.aside.is_empty(), "none waits behind them");
}

#[test]
fn the_shard_with_most_of_the_rows_aside_makes_room_and_has_the_turns_that_are_not_of_others() {
    let (crowded, quiet) = (ShardId::new(5), ShardId::new(6));
    let held = keyed(crowded, "k");
    let [quiet_row, later] = [keyed(quiet, "another"), keyed(crowded, "k")];
    let mut state = PassState { has_more: true, ..PassState::default() };
    state.leave_held(&[held.clone(), quiet_row.clone()], |_| false);
    state.leave_alone((0..ASIDE_MOST).map(|_| fixture::fresh_id_of(crowded)), Duration::ZERO);
    assert!(state.aside.keys().eq([&quiet_row.id]), "{:?}", state.aside);
    assert_eq!(state.turns.crowded, BTreeSet::from([crowded]));
    assert!(state.leave_later(vec![later.clone()]).is_empty(), "the held row is not kept in mind");
    state.let_in_again(Instant::now());
    state.note_more(false, &[quiet]);
    assert!(state.turns.is_turn_of_others && state.turns.crowded.contains(&crowded), "its rows were left out");
    state.let_in_again(Instant::now());
    assert_eq!(state.leave_later(vec![held, later]).len(), 2, "the pass reads them in their order");
    state.note_more(true, &[crowded, quiet]);
    assert!(state.turns.crowded.contains(&crowded));
    state.note_more(false, &[crowded, quiet]);
    assert!(state.turns.crowded.is_empty());
}

/// As where each row has a locked key of its own.
#[test]
fn a_second_shard_with_many_rows_aside_makes_room_before_one_that_is_crowded_and_one_with_few_does_not() {
    let [crowded, second, quiet] = [5, 6, 7].map(ShardId::new);
    let ids = |shard: ShardId, rows: usize| (0..rows).map(move |_| fixture::fresh_id_of(shard));
    let mut state = PassState::default();
    state.leave_alone(ids(crowded, ASIDE_MOST + 1), HELD_AGAIN);
    assert_eq!(state.turns.crowded, BTreeSet::from([crowded]));
    state.leave_alone(ids(second, BATCH).chain(ids(quiet, BATCH - 1)), HELD_AGAIN);
    state.leave_alone(ids(crowded, ASIDE_MOST - 2 * BATCH + 2), HELD_AGAIN);
    assert_eq!(state.turns.crowded, BTreeSet::from([crowded, second]));
    let has_aside = |state: &PassState, shard: ShardId| state.aside.keys().any(|id| id.shard() == shard);
    assert!(has_aside(&state, crowded) && has_aside(&state, quiet) && !has_aside(&state, second));
    state.leave_alone(ids(crowded, BATCH), HELD_AGAIN);
    assert_eq!(
        state.turns.crowded,
        BTreeSet::from([crowded, second]),
        "no turn of others is filled by the quiet shard"
    );
    assert!(!has_aside(&state, crowded) && has_aside(&state, quiet));
}

/// The rest of a crowd would take a pause for each batch.
#[test]
fn an_empty_turn_of_others_beside_a_crowd_waits_only_while_the_rows_of_the_crowd_are_held() {
    let shard = ShardId::new(5);
    let mut state = with_crowds([shard]);
    for is_held in [true, false, true] {
        let rows = [inbox_row(shard)];
        state.let_in_again(Instant::now());
        state.note_more(true, &[shard]);
        if is_held {
            state.leave_alone([rows[0].id], HELD_AGAIN);
        }
        assert_eq!(state.left(&rows, false), Left::More);
        state.let_in_again(Instant::now());
        state.note_more(false, &[]);
        assert!(state.turns.is_turn_of_others);
        assert_eq!(state.left(&[], false), if is_held { Left::Nothing } else { Left::More });
    }
    // A pass that fails takes nothing out, as far as it knows.
    state.turns.drains = true;
    state.let_in_again(Instant::now());
    state.let_in_again(Instant::now());
    assert!(state.turns.is_turn_of_others);
    assert_eq!(state.left(&[], false), Left::Nothing);
    // Without a crowd, nothing is left.
    state.turns.crowded.clear();
    (state.turns.drains, state.turns.is_turn_of_others) = (true, true);
    state.note_more(false, &[]);
    assert_eq!(state.left(&[], false), Left::Nothing);
}

/// The lock of one of them may last. The shard of the other then has its turns, and is read with all others again.
#[test]
fn each_crowded_shard_has_its_own_turns_and_is_crowded_until_one_of_them_reads_all_its_rows() {
    let [held, free, quiet] = [5, 6, 7].map(ShardId::new);
    let mut state = with_crowds([held, free]);
    let mut turns = Vec::new();
    let read = |state: &mut PassState, free_is_long: bool| {
        state.let_in_again(Instant::now());
        let read: Vec<ShardId> = [held, free, quiet].into_iter().filter(|shard| !state.leaves_out(*shard)).collect();
        state.note_more(read.contains(&held) || (free_is_long && read.contains(&free)), &read);
        read
    };
    for _ in 0..8 {
        turns.push(read(&mut state, true));
    }
    let others = vec![quiet];
    let alone = [vec![held], others.clone(), vec![free], others.clone()];
    let beside_others = [vec![held, quiet], others.clone(), vec![free, quiet], others.clone()];
    assert_eq!(turns, [alone, beside_others].concat());
    assert_eq!(state.turns.crowded, BTreeSet::from([held, free]));
    let turns = [false; 4].map(|is_long| read(&mut state, is_long));
    // The last one is of others, with the shard that is crowded no longer.
    assert_eq!(turns, [vec![held], others, vec![free], vec![free, quiet]]);
    assert!(state.turns.crowded.contains(&held) && state.has_more, "the crowd behind the lock waits");
}

/// They would fill each batch, and the rows of the crowd would never be read.
#[test]
fn every_second_turn_of_a_crowd_lets_in_none_of_the_older_held_rows_of_other_shards() {
    let [other, crowded] = [5, 6].map(ShardId::new);
    let mut state = with_crowds([crowded]);
    state.leave_alone((0..3 * BATCH).map(|_| fixture::fresh_id_of(other)), Duration::ZERO);
    let own = fixture::fresh_id_of(crowded);
    state.leave_alone([own], Duration::ZERO);
    let others_aside = |state: &PassState| state.aside.keys().filter(|id| id.shard() == other).count();
    let mut left = 3 * BATCH;
    for is_alone in [true, false, true, false] {
        state.let_in_again(Instant::now());
        left -= if is_alone { 0 } else { BATCH };
        assert_eq!((others_aside(&state), state.aside.contains_key(&own)), (left, false));
        assert_eq!((state.leaves_out(other), state.leaves_out(crowded)), (is_alone, false));
        state.note_more(true, &[crowded]);
        // Also where it reads none: the rows of the other shard may wait.
        assert_eq!(state.left(&[], false), if is_alone { Left::More } else { Left::Nothing });
        state.let_in_again(Instant::now());
        assert!(state.turns.is_turn_of_others && others_aside(&state) == left && !state.leaves_out(other));
    }
    // The crowd ends in a turn of its own.
    state.let_in_again(Instant::now());
    state.note_more(false, &[crowded]);
    assert!(state.turns.crowded.is_empty() && state.has_more, "those of the other shard were not read");
}

/// As after a failure of its database: its rows would come back as those of a shard that is not crowded.
#[test]
fn a_shard_stays_crowded_in_a_turn_that_does_not_reach_it_and_the_next_shard_has_its_turn() {
    let [away, free] = [5, 6].map(ShardId::new);
    let mut state = with_crowds([away, free]);
    for reached in [Vec::new(), vec![free]] {
        state.let_in_again(Instant::now());
        state.note_more(false, &reached);
        assert!(state.turns.crowded.contains(&away) && state.has_more);
        state.let_in_again(Instant::now());
        assert!(state.turns.is_turn_of_others);
    }
    assert!(!state.turns.crowded.contains(&free));
    state.let_in_again(Instant::now());
    state.note_more(false, &[away]);
    assert!(state.turns.crowded.is_empty());
}
