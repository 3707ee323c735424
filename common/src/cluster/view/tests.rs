use proptest::prelude::*;

use super::*;
use crate::{
    cluster::ownership::scenes::{assign, me, member, node, view_of},
    shard::{
        ShardStatus,
        assign::solve,
        map::{FenceRow, ShardMap},
    },
};

#[test]
fn the_candidate_that_came_first_is_master() {
    let candidate = |term, name| Candidate { term: Term::from_revision(term), node: node(name) };
    let view =
        ClusterView { candidates: vec![candidate(5, "a"), candidate(8, "b"), candidate(9, "c")], ..view_of(&[]) };
    assert_eq!(view.master(), Some(&candidate(5, "a")));
    assert_eq!(view_of(&[]).master(), None);
}

#[test]
fn another_start_of_a_node_is_not_that_member() {
    let view = view_of(&["a"]);
    assert!(view.member(&node("a")).is_some());
    let reborn = NodeId { incarnation: crate::ids::Incarnation::new(uuid::Uuid::from_u128(99)), ..node("a") };
    assert!(view.member(&reborn).is_none());
}

#[test]
fn leaving_and_unfit_members_are_not_asked_to_own_what_they_cannot() {
    let mut view = view_of(&["a", "b", "c", "d"]);
    let set = |view: &mut ClusterView, name: &str, change: fn(&mut Member)| {
        change(view.members.get_mut(name).expect("is a member"));
    };
    set(&mut view, "b", |member| member.leaving = true);
    set(&mut view, "c", |member| member.broker_unfit = true);
    set(&mut view, "d", |member| {
        member.unfit.insert(DatabaseName::new("x"));
    });
    let databases =
        [("x", 0..4), ("y", 4..8)].map(|(name, range)| (DatabaseName::new(name), range.map(ShardId::new).collect()));
    let problem = view.problem_of(&databases);
    let fit: Vec<Vec<String>> =
        problem.groups.iter().map(|group| group.fit.iter().map(|node| node.name.to_string()).collect()).collect();
    assert_eq!(fit, [vec!["a"], vec!["a", "d"]]);
    assert_eq!(problem.groups[1].shards, (4..8).map(ShardId::new).collect());
}

#[test]
fn a_database_is_reached_until_no_member_reaches_it() {
    let mut view = view_of(&["a", "b"]);
    let main = DatabaseName::new("main");
    for (name, is_reached) in [("a", true), ("b", false)] {
        view.members.get_mut(name).expect("is a member").unfit.insert(main.clone());
        assert_eq!(view.is_reached(&main), is_reached);
    }
    assert!(view.is_reached(&DatabaseName::new("extra")));
}

#[test]
fn a_member_that_does_not_use_a_database_owns_nothing_of_it_and_keeps_shards_away() {
    let mut view = view_of(&["a", "b", "c"]);
    let (main, extra) = (DatabaseName::new("main"), DatabaseName::new("extra"));
    for (name, databases) in [("a", vec![main.clone(), extra.clone()]), ("b", vec![main.clone()])] {
        let member = view.members.get_mut(name).expect("is a member");
        member.databases = Some(databases.into_iter().collect());
    }
    let groups = [(main.clone(), [ShardId::new(0)].into()), (extra.clone(), [ShardId::new(1)].into())];
    let problem = view.problem_of(&groups);
    let fit: Vec<Vec<&str>> =
        problem.groups.iter().map(|group| group.fit.iter().map(|node| node.name.as_str()).collect()).collect();
    assert_eq!(fit, [vec!["a", "b", "c"], vec!["a", "c"]], "c is of a version that does not say");
    let why = view.not_used_by(&extra).expect("not every node uses it");
    assert!(why.contains("`extra`") && why.contains("do not: b, c."), "{why}");
    view.members.retain(|name, _| name.as_str() != "c");
    assert_eq!((view.not_used_by(&main), view.not_used_by(&extra).is_some()), (None, true));
}

#[test]
fn shards_of_a_database_that_the_master_has_not_read_get_owners_among_the_nodes_that_reach_it() {
    let mut view = view_of(&["a", "b", "c"]);
    let names = ["main", "east"].map(DatabaseName::new);
    view.members.get_mut("a").expect("is a member").databases = Some([names[0].clone()].into());
    let row = |number| FenceRow { shard: ShardId::new(number), status: ShardStatus::Here, epoch: Epoch::NONE };
    let left = FenceRow { status: ShardStatus::Gone, ..row(3) };
    let map = ShardMap::default().after(&[Some((0..3).map(row).chain([left]).collect()), None]);
    let unplaced = view.problem(&map, &names, 7).groups.pop().expect("a group").shards;
    assert_eq!(unplaced, (3..7).map(ShardId::new).collect(), "a shard that has left `main` may be in `east`");
    let owners = ["a", "b", "c", "b", "gone", "gone", "c"];
    let before = Assignment { owners: owners.map(|name| Some(node(name))).into() };
    let next = solve(&view.problem(&map, &names, 7), &before);
    let names_of = |assignment: &Assignment| -> Vec<String> {
        assignment.owners.iter().flatten().map(|node| node.name.to_string()).collect()
    };
    assert_eq!(names_of(&next), ["a", "b", "c", "b", "b", "c", "c"]);

    // Once the database was read, its shards have places, and nothing moves.
    let map = map.after(&[None, Some((3..7).map(row).collect())]);
    assert_eq!(map.unread(&names), Vec::<&DatabaseName>::new());
    assert_eq!(solve(&view.problem(&map, &names, 7), &next), next);
}

#[test]
fn a_closed_shard_that_may_have_moved_belongs_to_a_node_that_reaches_all_databases() {
    let mut view = view_of(&["a", "b", "c"]);
    let names = ["main", "west"].map(DatabaseName::new);
    for member in view.members.values_mut() {
        member.databases = Some(names.clone().into());
    }
    let lose = |view: &mut ClusterView, name: &str, database: &DatabaseName| {
        view.members.get_mut(name).expect("is a member").unfit.insert(database.clone());
    };
    lose(&mut view, "c", &names[1]);
    let row = |number, status| FenceRow { shard: ShardId::new(number), status, epoch: Epoch::from_store(5) };
    let main = |status| Some((0..6).map(|number| row(number, status)).chain([row(6, ShardStatus::Here)]).collect());
    let map = ShardMap::default().after(&[main(ShardStatus::Here), Some(Vec::new())]);
    // The shards have moved since, or are closed in their cuts.
    let map = map.after(&[main(ShardStatus::Gone), None]);
    let owned = |names: [&str; 7]| Assignment { owners: names.map(|name| Some(node(name))).into() };
    let before = owned(["gone", "c", "a", "b", "b", "b", "c"]);
    assign(&mut view, before.owners.clone());
    let next = solve(&view.problem(&map, &names, 7), &before);
    assert_eq!(next, owned(["a", "b", "a", "b", "b", "b", "c"]), "an owner that reaches all keeps what it has");
    let mut joining = view.clone();
    joining.members.get_mut("c").expect("is a member").databases = Some([names[0].clone()].into());
    let next = solve(&joining.problem(&map, &names, 7), &before);
    assert_eq!(next.owner(ShardId::new(1)), Some(&node("c")), "nothing moves to a database that a member does not use");
    for name in ["a", "b"] {
        lose(&mut view, name, &names[0]);
    }
    assert_eq!(solve(&view.problem(&map, &names, 7), &before), owned(["c"; 7]), "nobody reaches both");
}

#[test]
fn shards_that_may_be_in_a_database_which_the_master_lacks_belong_to_nodes_that_use_it() {
    let mut view = view_of(&["a", "b", "c"]);
    let names = ["main", "west"].map(DatabaseName::new);
    for member in view.members.values_mut() {
        let is_master = member.node == node("c");
        let used = if is_master { &names[..1] } else { &names[..] };
        member.databases = Some(used.iter().cloned().collect());
    }
    // One shard has left `main` for `west`, and another was always there.
    let left = FenceRow { shard: ShardId::new(0), status: ShardStatus::Gone, epoch: Epoch::from_store(5) };
    let map = ShardMap::default().after(&[Some(vec![left])]);
    let before = Assignment { owners: vec![Some(node("gone")); 2] };
    assign(&mut view, before.owners.clone());
    let check = |view: &ClusterView| {
        let next = solve(&view.problem(&map, &names[..1], 2), &before);
        for shard in [0, 1].map(ShardId::new) {
            assert!([Some(&node("a")), Some(&node("b"))].contains(&next.owner(shard)), "{next:?}");
        }
    };
    check(&view);
    // A database that its only user does not reach takes no node away.
    let dead = DatabaseName::new("dead");
    let user = view.members.get_mut("a").expect("is a member");
    user.databases.as_mut().expect("it says so").insert(dead.clone());
    user.unfit.insert(dead);
    check(&view);
}

#[test]
fn a_member_written_by_another_version_can_be_read() {
    let json = r#"{"node":{"name":"a","incarnation":"00000000-0000-0000-0000-000000000001"},
                   "started_at":"2026-01-01T00:00:00.000000Z","from_the_future":true}"#;
    let read: Member = serde_json::from_str(json).unwrap();
    assert!(!read.leaving && read.unfit.is_empty() && read.databases.is_none() && read.url.is_none());
    let written = serde_json::to_string(&member("b")).unwrap();
    assert_eq!(serde_json::from_str::<Member>(&written).unwrap(), member("b"));
}

#[test]
fn without_an_assignment_nothing_is_assigned() {
    assert_eq!(view_of(&["me"]).assigned(ShardId::new(0)), None);
    assert_eq!(me(), node("me"));
}

fn drain(mut view: ClusterView, names: &[&str]) -> ClusterView {
    view.drained = names.iter().map(|name| node(name)).collect();
    view
}

/// The problem of one database with twelve shards.
fn asked(view: &ClusterView) -> AssignmentProblem {
    view.problem_of(&[(DatabaseName::new("main"), (0..12).map(ShardId::new).collect())])
}

fn held(assignment: &Assignment, name: &str) -> usize {
    assignment.of(&node(name)).count()
}

#[test]
fn a_drained_node_gives_up_its_share_and_gets_it_back() {
    let view = view_of(&["a", "b", "c"]);
    let before = solve(&asked(&view), &Assignment::default());
    let drained = solve(&asked(&drain(view.clone(), &["b"])), &before);
    assert_eq!(["a", "b", "c"].map(|name| held(&drained, name)), [6, 0, 6]);
    let kept = before.iter().filter(|(_, owner)| *owner != Some(&node("b")));
    for (shard, owner) in kept {
        assert_eq!(drained.owner(shard), owner, "{shard} was not the drained node's");
    }
    let undone = solve(&asked(&view), &drained);
    assert_eq!(["a", "b", "c"].map(|name| held(&undone, name)), [4, 4, 4]);
}

#[test]
fn when_all_are_drained_it_is_as_though_none_were() {
    let view = view_of(&["a", "b"]);
    let before = solve(&asked(&view), &Assignment::default());
    assert_eq!(solve(&asked(&drain(view, &["a", "b"])), &before), before);
}

#[test]
fn a_database_that_only_drained_nodes_can_reach_stays_with_them() {
    let mut view = drain(view_of(&["a", "b", "c"]), &["b", "c"]);
    view.members.get_mut("a").expect("is a member").unfit.insert(DatabaseName::new("main"));
    let next = solve(&asked(&view), &Assignment::default());
    assert_eq!(["a", "b", "c"].map(|name| held(&next, name)), [0, 6, 6]);
}

#[test]
fn a_drain_ends_with_the_start_of_the_node() {
    let mut view = drain(view_of(&["a", "b"]), &["b"]);
    let reborn = NodeId { incarnation: crate::ids::Incarnation::new(uuid::Uuid::from_u128(99)), ..node("b") };
    view.members.get_mut("b").expect("is a member").node = reborn.clone();
    assert!(asked(&view).groups[0].fit.contains(&reborn));
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Some members, of which some are drained, unfit or leaving, and a previous assignment.
fn clusters() -> impl Strategy<Value = (ClusterView, Assignment)> {
    let some = || prop::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len());
    let owner = prop::option::weighted(0.9, prop::sample::select(NAMES.to_vec()));
    let few = || prop::sample::subsequence(NAMES.to_vec(), 0..=2);
    (some(), some(), few(), few(), prop::collection::vec(owner, 12)).prop_map(
        |(there, drained, unfit, leaving, previous)| {
            let mut view = drain(view_of(&there), &drained);
            for member in view.members.values_mut() {
                member.broker_unfit = unfit.contains(&member.node.name.as_str());
                member.leaving = leaving.contains(&member.node.name.as_str());
            }
            let owners = previous.into_iter().map(|owner| owner.map(node)).collect();
            (view, Assignment { owners })
        },
    )
}

proptest! {
    #[test]
    fn drained_nodes_own_nothing_unless_nobody_else_is_fit((view, previous) in clusters()) {
        let next = solve(&asked(&view), &previous);
        let fit = view.members.values().filter(|member| member.is_fit_for(&DatabaseName::new("main")));
        let fit = fit.map(|member| member.node.clone());
        let (drained, staying): (Vec<NodeId>, Vec<NodeId>) = fit.partition(|node| view.drained.contains(node));
        let owners = if staying.is_empty() { drained } else { staying };
        prop_assume!(!owners.is_empty());
        let held: Vec<usize> = owners.iter().map(|node| next.of(node).count()).collect();
        prop_assert_eq!(held.iter().sum::<usize>(), 12, "all shards are with those who stay: {:?}", next);
        prop_assert!(held.iter().max().unwrap() - held.iter().min().unwrap() <= 1, "balanced: {:?}", held);
    }

    #[test]
    fn a_drain_moves_the_shards_of_that_node_and_no_others((view, previous) in clusters(), nth in any::<prop::sample::Index>()) {
        let staying = asked(&view).groups.remove(0).fit;
        prop_assume!(staying.len() > 1);
        let chosen = nth.get(&staying.iter().cloned().collect::<Vec<_>>()).clone();
        let before = solve(&asked(&view), &previous);
        let mut after = view;
        after.drained.insert(chosen.clone());
        // If all nodes are drained already, one more drain is a different problem.
        prop_assume!(asked(&after).groups[0].fit.len() + 1 == staying.len());
        let next = solve(&asked(&after), &before);
        for (shard, owner) in before.iter() {
            prop_assert_eq!(next.owner(shard) != owner, owner == Some(&chosen), "{}", shard);
        }
    }
}

/// Adds a field that this version does not know to every object of a record.
fn extend(record: &mut serde_json::Value) {
    match record {
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(extend);
            fields.insert("of_a_later_version".to_owned(), serde_json::json!({ "any": ["thing", 1, null] }));
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(extend),
        _ => {}
    }
}

/// Nodes of two versions read each other's records during an upgrade and after a rollback.
#[test]
fn a_field_that_a_later_version_adds_to_a_record_in_etcd_changes_nothing() {
    fn check<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(record: &T) {
        let mut written = serde_json::to_value(record).unwrap();
        extend(&mut written);
        assert!(written.to_string().contains("of_a_later_version"), "{written}");
        assert_eq!(serde_json::from_value::<T>(written).unwrap(), *record);
    }
    check(&member("a"));
    check(&node("a"));
    check(&BTreeSet::from([node("a"), node("b")]));
    check(&OwnerRecord { node: node("a"), epoch: None });
    let owners = vec![Some(node("a")), None, Some(node("b"))];
    check(&AssignmentRecord { term: Term::from_revision(7), assignment: Assignment { owners } });
}

/// The records of the first release: what a later version adds has a default.
#[test]
fn records_of_the_first_release_are_read() {
    let node = r#"{"name":"a","incarnation":"00000000-0000-0000-0000-000000000001"}"#;
    let read = |record: &str| record.replace("NODE", node);
    let member = read(
        r#"{"node":NODE,"url":"http://a:1","leaving":false,"unfit":["main"],"broker_unfit":true,"presence":true,
            "version":"0.1.0","started_at":"2026-11-22T00:00:00.000000Z"}"#,
    );
    let member: Member = serde_json::from_str(&member).unwrap();
    assert!(member.presence && member.broker_unfit && member.version == "0.1.0", "{member:?}");
    let owner: OwnerRecord = serde_json::from_str(&read(r#"{"node":NODE,"epoch":5}"#)).unwrap();
    assert_eq!(owner.node, member.node);
    let assignment = read(r#"{"term":7,"assignment":{"nodes":[NODE],"owners":[0,null]}}"#);
    let assignment: AssignmentRecord = serde_json::from_str(&assignment).unwrap();
    assert_eq!(assignment.assignment.owners, [Some(member.node), None]);
}
