use super::*;
use crate::{
    cluster::{ownership::scenes::view_of, view::ClusterView},
    ids::DatabaseName,
    shard::assign::{Assignment, solve},
};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn at(ms: i64) -> UnixMicros {
    UnixMicros::new(ms * 1_000)
}

fn main_database() -> DatabaseName {
    DatabaseName::new("main")
}

fn reach(view: &mut ClusterView, name: &str, reaches: bool) {
    let member = view.members.get_mut(name).expect("is a member");
    member.unfit = if reaches { [].into() } else { [main_database()].into() };
}

/// The assignment after a look of the master, if it decides.
fn decided(changes: &mut ReachChanges, view: &ClusterView, before: &Assignment, now: UnixMicros) -> Assignment {
    if changes.observe(&view.members, now).is_some() {
        return before.clone();
    }
    let shards = (0..12).map(crate::ids::ShardId::new).collect();
    solve(&view.problem_of(&[(main_database(), shards)]), before)
}

#[test]
fn an_outage_that_all_members_notice_one_after_another_moves_no_shard_and_neither_does_its_end() {
    let (mut changes, mut view) = (ReachChanges::default(), view_of(&NAMES));
    let balanced = decided(&mut changes, &view, &Assignment::default(), at(0));
    assert!(NAMES.iter().all(|name| balanced.of(&view.members[*name].node).count() == 4));
    for (begins_at, reaches) in [(1_000, false), (60_000, true)] {
        for (offset, name) in [0, 500, 1_000].into_iter().zip(NAMES) {
            reach(&mut view, name, reaches);
            for now in [begins_at + offset, begins_at + offset + 400] {
                assert_eq!(decided(&mut changes, &view, &balanced, at(now)), balanced, "at {now} ms");
            }
        }
        assert_eq!(changes.observe(&view.members, at(begins_at + 2_000)), Some(at(begins_at + 3_000)));
        assert_eq!(decided(&mut changes, &view, &balanced, at(begins_at + 3_000)), balanced, "all notice the same");
    }
}

#[test]
fn a_member_that_alone_reaches_a_database_no_longer_loses_its_shards() {
    let (mut changes, mut view) = (ReachChanges::default(), view_of(&NAMES));
    let balanced = decided(&mut changes, &view, &Assignment::default(), at(0));
    reach(&mut view, "a", false);
    assert_eq!(decided(&mut changes, &view, &balanced, at(1_000)), balanced);
    let moved = decided(&mut changes, &view, &balanced, at(3_000));
    assert_eq!(moved.of(&view.members["a"].node).count(), 0);
}

#[test]
fn a_broker_that_is_away_is_waited_for_like_a_database() {
    let (mut changes, mut view) = (ReachChanges::default(), view_of(&NAMES));
    assert_eq!(changes.observe(&view.members, at(0)), None);
    view.members.get_mut("a").expect("is a member").broker_unfit = true;
    assert_eq!(changes.observe(&view.members, at(1_000)), Some(at(3_000)));
}

#[test]
fn members_that_join_or_reach_a_database_for_the_first_time_are_not_waited_for() {
    let (mut changes, mut view) = (ReachChanges::default(), view_of(&NAMES));
    let joining = view.members.get_mut("a").expect("is a member");
    (joining.unfit, joining.databases) = ([main_database()].into(), Some([].into()));
    assert_eq!(changes.observe(&view.members, at(0)), None);
    let joining = view.members.get_mut("a").expect("is a member");
    (joining.unfit, joining.databases) = ([].into(), Some([main_database()].into()));
    assert_eq!(changes.observe(&view.members, at(100)), None);
}

#[test]
fn a_member_whose_connection_comes_and_goes_stops_no_move_for_long() {
    let (mut changes, mut view) = (ReachChanges::default(), view_of(&NAMES));
    changes.observe(&view.members, at(0));
    let waits = (1..20).map(|second| {
        reach(&mut view, "a", second % 2 == 0);
        changes.observe(&view.members, at(second * 1_000)).is_some()
    });
    let waits: Vec<bool> = waits.collect();
    assert_eq!(waits.iter().position(|waits| !waits), Some(6), "{waits:?}");
}
