use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::shard::ShardRange;

fn node(name: &str) -> NodeId {
    let incarnation = crate::ids::Incarnation::new(Uuid::from_u128(7));
    NodeId { name: crate::ids::NodeName::new(name), incarnation }
}

fn group(database: &str, shards: &str, fit: &[&str]) -> ShardGroup {
    ShardGroup {
        database: DatabaseName::new(database),
        shards: shards.parse::<ShardRange>().unwrap().iter().collect(),
        fit: fit.iter().map(|name| node(name)).collect(),
    }
}

fn one(fit: &[&str]) -> AssignmentProblem {
    AssignmentProblem { groups: vec![group("main", "0-11", fit)] }
}

/// How many shards each node has, by name.
fn counts(assignment: &Assignment) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for owner in assignment.owners.iter().flatten() {
        *counts.entry(owner.name.to_string()).or_default() += 1;
    }
    counts
}

fn moves(previous: &Assignment, next: &Assignment) -> usize {
    AssignmentDiff::between(previous, next).len()
}

fn after(steps: &[&[&str]]) -> (Assignment, usize) {
    let mut assignment = Assignment::default();
    let mut moved = 0;
    for fit in steps {
        let next = solve(&one(fit), &assignment);
        moved = moves(&assignment, &next);
        assignment = next;
    }
    (assignment, moved)
}

fn expect(counted: &[(&str, usize)]) -> BTreeMap<String, usize> {
    counted.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn the_first_nodes_share_everything_evenly() {
    let (assignment, moved) = after(&[&["a", "b", "c"]]);
    assert_eq!(counts(&assignment), expect(&[("a", 4), ("b", 4), ("c", 4)]));
    assert_eq!(moved, 12);
}

#[test]
fn a_node_that_joins_takes_its_share_and_nothing_else_moves() {
    let (assignment, moved) = after(&[&["a", "b", "c"], &["a", "b", "c", "d"]]);
    assert_eq!(counts(&assignment), expect(&[("a", 3), ("b", 3), ("c", 3), ("d", 3)]));
    assert_eq!(moved, 3);
}

#[test]
fn a_node_that_leaves_gives_up_its_share_and_nothing_else_moves() {
    let (assignment, moved) = after(&[&["a", "b", "c"], &["a", "b"]]);
    assert_eq!(counts(&assignment), expect(&[("a", 6), ("b", 6)]));
    assert_eq!(moved, 4);
}

#[test]
fn two_nodes_that_leave_together_leave_all_to_the_third() {
    let (assignment, moved) = after(&[&["a", "b", "c"], &["b"]]);
    assert_eq!(counts(&assignment), expect(&[("b", 12)]));
    assert_eq!(moved, 8);
}

#[test]
fn a_node_restarted_between_two_solutions_moves_only_its_own_shards() {
    let (before, _) = after(&[&["a", "b", "c"]]);
    let reborn = NodeId { incarnation: crate::ids::Incarnation::new(Uuid::from_u128(8)), ..node("b") };
    let mut problem = one(&["a", "c"]);
    problem.groups[0].fit.insert(reborn.clone());
    let next = solve(&problem, &before);
    assert_eq!(moves(&before, &next), 4);
    assert!(AssignmentDiff::between(&before, &next).moves.iter().all(|step| step.to.as_ref() == Some(&reborn)));
}

#[test]
fn when_nobody_is_fit_nothing_moves() {
    let (before, _) = after(&[&["a", "b", "c"]]);
    assert_eq!(solve(&one(&[]), &before), before);
}

#[test]
fn when_nobody_was_ever_fit_nobody_is_assigned() {
    assert_eq!(solve(&one(&[]), &Assignment::default()), Assignment { owners: vec![None; 12] });
}

#[test]
fn the_nodes_of_one_database_in_trouble_keep_the_shards_of_the_other() {
    let both = |one: &[&str], other: &[&str]| AssignmentProblem {
        groups: vec![group("x", "0-5", one), group("y", "6-11", other)],
    };
    let before = solve(&both(&["a", "b"], &["a", "b"]), &Assignment::default());
    let next = solve(&both(&["b"], &["a", "b"]), &before);
    assert_eq!(before.owners[6..], next.owners[6..]);
    assert!(next.owners[..6].iter().all(|owner| *owner == Some(node("b"))));
    assert_eq!(solve(&both(&[], &["a", "b"]), &before), before);
}

#[test]
fn what_does_not_divide_goes_to_the_node_with_less_load_elsewhere() {
    let groups = ["0-4", "5-9", "10-14"].map(|shards| group(shards, shards, &["a", "b"]));
    let counts = counts(&solve(&AssignmentProblem { groups: groups.to_vec() }, &Assignment::default()));
    assert_eq!(counts, expect(&[("a", 8), ("b", 7)]));
}

#[test]
fn more_nodes_than_shards_leave_some_without() {
    let problem = AssignmentProblem { groups: vec![group("main", "0-1", &["a", "b", "c"])] };
    assert_eq!(counts(&solve(&problem, &Assignment::default())), expect(&[("a", 1), ("b", 1)]));
}

#[test]
fn a_diff_reads_as_a_line_for_each_pair_of_nodes() {
    let before = solve(&one(&["a", "b"]), &Assignment::default());
    let diff = AssignmentDiff::between(&before, &solve(&one(&["a", "b", "c"]), &before));
    assert_eq!(diff.to_string(), "a#00000000 -> c#00000000: s4 s5\nb#00000000 -> c#00000000: s10 s11");
    let first = AssignmentDiff::between(&Assignment::default(), &solve(&one(&["a"]), &Assignment::default()));
    assert!(first.to_string().starts_with("none -> a#00000000: s0 s1 "));
    assert!(AssignmentDiff::between(&before, &before).is_empty());
}

#[test]
fn an_assignment_is_kept_with_every_node_spelled_once() {
    let assignment = solve(&one(&["a", "b"]), &Assignment::default());
    let json = serde_json::to_string(&assignment).unwrap();
    assert_eq!(json.matches("\"name\"").count(), 2);
    assert_eq!(serde_json::from_str::<Assignment>(&json).unwrap(), assignment);
    let broken = serde_json::from_str::<Assignment>(r#"{"nodes":[],"owners":[null,3]}"#).unwrap_err();
    assert!(broken.to_string().contains("shard 1 is assigned to node number 3"), "{broken}");
}

#[test]
fn a_shard_that_is_not_in_the_assignment_belongs_to_nobody() {
    let assignment = solve(&one(&["a"]), &Assignment::default());
    assert_eq!(assignment.owner(ShardId::new(11)), Some(&node("a")));
    assert_eq!(assignment.owner(ShardId::new(12)), None);
    assert_eq!(assignment.of(&node("a")).count(), 12);
    assert_eq!(assignment.of(&node("b")).count(), 0);
}

#[test]
fn as_many_shards_as_there_can_be_are_assigned_in_no_time() {
    let problem = AssignmentProblem { groups: vec![group("main", "0-65535", &["a", "b", "c"])] };
    assert_eq!(solve(&problem, &Assignment::default()).owners.len(), 65_536);
}

const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

fn fits() -> impl Strategy<Value = BTreeSet<NodeId>> {
    let names = prop::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len());
    names.prop_map(|names| names.into_iter().map(node).collect())
}

/// One to three databases and any previous assignment: to nodes that are fit, unfit or unknown, or to none.
fn cases() -> impl Strategy<Value = (AssignmentProblem, Assignment)> {
    let groups = prop::collection::vec((1_u16..40, fits()), 1..4).prop_map(|parts| {
        let mut first = 0;
        let mut groups = Vec::new();
        for (number, (count, fit)) in parts.into_iter().enumerate() {
            let shards = (first..first + count).map(ShardId::new).collect();
            groups.push(ShardGroup { database: DatabaseName::new(format!("d{number}")), shards, fit });
            first += count;
        }
        AssignmentProblem { groups }
    });
    let owner = prop::option::weighted(0.9, prop::sample::select(NAMES.to_vec()));
    let previous = prop::collection::vec(owner, 0..130);
    (groups, previous).prop_map(|(problem, previous)| {
        let owners = previous.into_iter().map(|owner| owner.map(node)).collect();
        (problem, Assignment { owners })
    })
}

fn held(group: &ShardGroup, assignment: &Assignment, node: &NodeId) -> usize {
    group.shards.iter().filter(|shard| assignment.owner(**shard) == Some(node)).count()
}

/// The fewest possible moves: the nodes that hold most may keep one shard more than the others, as far as the
/// division is uneven.
fn fewest_moves(group: &ShardGroup, previous: &Assignment) -> usize {
    let (even, uneven) = (group.shards.len() / group.fit.len(), group.shards.len() % group.fit.len());
    let mut holds: Vec<usize> = group.fit.iter().map(|node| held(group, previous, node)).collect();
    holds.sort_unstable_by(|one, other| other.cmp(one));
    let kept = |(place, holds): (usize, &usize)| (*holds).min(even + usize::from(place < uneven));
    group.shards.len() - holds.iter().enumerate().map(kept).sum::<usize>()
}

proptest! {
    #[test]
    fn every_shard_of_a_group_with_fit_nodes_has_one_of_them((problem, previous) in cases()) {
        let next = solve(&problem, &previous);
        for group in problem.groups.iter().filter(|group| !group.fit.is_empty()) {
            for shard in group.shards.iter() {
                let owner = next.owner(*shard);
                prop_assert!(owner.is_some_and(|owner| group.fit.contains(owner)), "{} -> {:?}", shard, owner);
            }
        }
    }

    #[test]
    fn fit_nodes_differ_by_one_shard_at_most_in_each_group((problem, previous) in cases()) {
        let next = solve(&problem, &previous);
        for group in problem.groups.iter().filter(|group| !group.fit.is_empty()) {
            let holds: Vec<usize> = group.fit.iter().map(|node| held(group, &next, node)).collect();
            prop_assert!(holds.iter().max().unwrap() - holds.iter().min().unwrap() <= 1, "{:?}", holds);
        }
    }

    #[test]
    fn no_solution_could_move_fewer_shards((problem, previous) in cases()) {
        let next = solve(&problem, &previous);
        for group in problem.groups.iter().filter(|group| !group.fit.is_empty()) {
            let moved = group.shards.iter().filter(|shard| next.owner(**shard) != previous.owner(**shard)).count();
            prop_assert_eq!(moved, fewest_moves(group, &previous));
        }
    }

    #[test]
    fn a_group_with_nobody_fit_keeps_what_it_had((problem, previous) in cases()) {
        let next = solve(&problem, &previous);
        for group in problem.groups.iter().filter(|group| group.fit.is_empty()) {
            for shard in group.shards.iter() {
                prop_assert_eq!(next.owner(*shard), previous.owner(*shard));
            }
        }
    }

    #[test]
    fn a_shard_of_no_group_keeps_its_owner((problem, previous) in cases()) {
        let part = AssignmentProblem { groups: problem.groups[1..].to_vec() };
        let next = solve(&part, &previous);
        for shard in &problem.groups[0].shards {
            prop_assert_eq!(next.owner(*shard), previous.owner(*shard));
        }
    }

    #[test]
    fn solving_again_changes_nothing((problem, previous) in cases()) {
        let next = solve(&problem, &previous);
        prop_assert_eq!(solve(&problem, &next), next);
    }

    #[test]
    fn the_order_of_the_groups_does_not_matter((problem, previous) in cases(), turn in 0_usize..3) {
        let mut turned = problem.clone();
        let places = turned.groups.len();
        turned.groups.rotate_left(turn % places);
        prop_assert_eq!(solve(&turned, &previous), solve(&problem, &previous));
    }

    #[test]
    fn json_keeps_an_assignment_as_it_is((_, assignment) in cases()) {
        let json = serde_json::to_string(&assignment).unwrap();
        prop_assert_eq!(serde_json::from_str::<Assignment>(&json).unwrap(), assignment);
    }
}
