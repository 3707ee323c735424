use super::*;
use crate::cluster::ownership::scenes::view_of;

const TTL: Duration = Duration::from_secs(10);

fn at(seconds: i64) -> UnixMicros {
    UnixMicros::new(seconds * 1_000_000)
}

fn see(freeze: &mut Freeze, names: &[&str], seconds: i64) -> Pace {
    freeze.observe(&view_of(names).members, &BTreeSet::new(), at(seconds), TTL)
}

fn frozen(until: i64, missing: &[&str]) -> Pace {
    Pace::Frozen { until: at(until), missing: missing.iter().map(NodeName::new).collect() }
}

#[test]
fn a_node_that_vanishes_alone_never_freezes() {
    for names in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
        let mut freeze = Freeze::new();
        see(&mut freeze, names, 0);
        assert_eq!(see(&mut freeze, &names[1..], 1), Pace::Proceed);
    }
}

#[test]
fn two_of_three_that_vanish_together_freeze_for_two_ttl() {
    let mut freeze = Freeze::new();
    assert_eq!(see(&mut freeze, &["a", "b", "c"], 0), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a"], 5), frozen(25, &["b", "c"]));
    assert_eq!(see(&mut freeze, &["a"], 24), frozen(25, &["b", "c"]));
    assert_eq!(see(&mut freeze, &["a"], 25), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a"], 26), Pace::Proceed);
}

#[test]
fn two_that_vanish_one_after_the_other_within_a_ttl_count_together() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert_eq!(see(&mut freeze, &["a", "b"], 1), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a"], 11), frozen(31, &["b", "c"]));
}

#[test]
fn two_that_vanish_further_apart_do_not_count_together() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert_eq!(see(&mut freeze, &["a", "b"], 1), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a"], 12), Pace::Proceed);
}

#[test]
fn a_third_of_the_members_is_not_yet_too_many() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c", "d", "e", "f"], 0);
    assert_eq!(see(&mut freeze, &["a", "b", "c", "d"], 1), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a", "b", "c"], 2), frozen(22, &["d", "e", "f"]));
}

#[test]
fn it_ends_as_soon_as_all_are_back() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert!(matches!(see(&mut freeze, &[], 1), Pace::Frozen { .. }));
    assert_eq!(see(&mut freeze, &["a"], 2), frozen(21, &["b", "c"]));
    assert_eq!(see(&mut freeze, &["a", "b"], 3), frozen(8, &["c"]));
    assert_eq!(see(&mut freeze, &["a", "b", "c"], 4), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a", "b"], 5), Pace::Proceed, "one that vanishes alone");
}

#[test]
fn when_most_are_back_the_last_have_five_seconds() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert!(matches!(see(&mut freeze, &[], 1), Pace::Frozen { .. }));
    assert_eq!(see(&mut freeze, &["a", "b"], 3), frozen(8, &["c"]));
    assert_eq!(see(&mut freeze, &["a", "b"], 7), frozen(8, &["c"]));
    assert_eq!(see(&mut freeze, &["a", "b"], 8), Pace::Proceed);
    assert_eq!(see(&mut freeze, &["a", "b"], 9), Pace::Proceed);
}

#[test]
fn the_last_do_not_prolong_the_freeze() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert!(matches!(see(&mut freeze, &["a"], 1), Pace::Frozen { .. }));
    assert_eq!(see(&mut freeze, &["a", "b"], 20), frozen(21, &["c"]));
    assert_eq!(see(&mut freeze, &["a", "b"], 21), Pace::Proceed);
}

#[test]
fn a_node_that_restarts_is_back() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert!(matches!(see(&mut freeze, &["a"], 1), Pace::Frozen { .. }));
    let mut members = view_of(&["a", "b"]).members;
    members.get_mut("b").unwrap().node.incarnation = crate::ids::Incarnation::new(uuid::Uuid::from_u128(9));
    assert_eq!(freeze.observe(&members, &BTreeSet::new(), at(2), TTL), frozen(7, &["c"]));
}

#[test]
fn members_that_said_they_were_leaving_do_not_count() {
    let mut freeze = Freeze::new();
    let mut members = view_of(&["a", "b", "c"]).members;
    for name in ["b", "c"] {
        members.get_mut(name).unwrap().leaving = true;
    }
    freeze.observe(&members, &BTreeSet::new(), at(0), TTL);
    assert_eq!(see(&mut freeze, &["a"], 1), Pace::Proceed);
}

#[test]
fn a_wave_that_goes_on_while_frozen_is_judged_again_at_the_end() {
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c", "d", "e"], 0);
    assert_eq!(see(&mut freeze, &["a", "b", "c"], 1), frozen(21, &["d", "e"]));
    assert_eq!(see(&mut freeze, &["a"], 20), frozen(21, &["b", "c", "d", "e"]));
    assert_eq!(see(&mut freeze, &["a"], 21), frozen(41, &["b", "c"]));
    assert_eq!(see(&mut freeze, &["a"], 41), Pace::Proceed);
}

#[test]
fn a_node_that_looks_for_the_first_time_freezes_nothing() {
    assert_eq!(see(&mut Freeze::new(), &["a"], 0), Pace::Proceed);
    assert_eq!(see(&mut Freeze::new(), &[], 0), Pace::Proceed);
}

#[test]
fn members_whose_processes_ended_never_freeze_whenever_that_is_known() {
    let ended: BTreeSet<NodeName> = ["b", "c"].map(NodeName::new).into();
    let mut freeze = Freeze::new();
    see(&mut freeze, &["a", "b", "c"], 0);
    assert_eq!(freeze.observe(&view_of(&["a"]).members, &ended, at(1), TTL), Pace::Proceed);
    let mut late = Freeze::new();
    see(&mut late, &["a", "b", "c"], 0);
    assert_eq!(see(&mut late, &["a"], 1), frozen(21, &["b", "c"]));
    assert_eq!(late.observe(&view_of(&["a"]).members, &ended, at(2), TTL), Pace::Proceed);
}
