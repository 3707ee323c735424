use super::*;
use crate::cluster::ownership::scenes::{me, member, node, view_of};

#[test]
fn the_first_candidate_is_master_and_everyone_watches_the_one_before_him() {
    let candidate = |term, name| Candidate { term: Term::from_revision(term), node: node(name) };
    let view =
        ClusterView { candidates: vec![candidate(5, "a"), candidate(8, "b"), candidate(9, "c")], ..view_of(&[]) };
    assert_eq!(view.master(), Some(&candidate(5, "a")));
    assert_eq!(view.predecessor(&node("a")), None);
    assert_eq!(view.predecessor(&node("c")), Some(&candidate(8, "b")));
    assert_eq!(view.predecessor(&node("d")), None);
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
    let databases = [("x", "0-3"), ("y", "4-7")].map(|(name, range)| (DatabaseName::new(name), range.parse().unwrap()));
    let problem = view.problem(&databases);
    let fit: Vec<Vec<String>> =
        problem.groups.iter().map(|group| group.fit.iter().map(|node| node.name.to_string()).collect()).collect();
    assert_eq!(fit, [vec!["a"], vec!["a", "d"]]);
    assert_eq!(problem.groups[1].shards.to_string(), "4-7");
}

#[test]
fn a_member_written_by_another_version_can_be_read() {
    let json = r#"{"node":{"name":"a","incarnation":"00000000-0000-0000-0000-000000000001"},
                   "started_at":"2026-01-01T00:00:00.000000Z","from_the_future":true}"#;
    let read: Member = serde_json::from_str(json).unwrap();
    assert!(!read.leaving && read.unfit.is_empty() && read.url.is_none());
    let written = serde_json::to_string(&member("b")).unwrap();
    assert_eq!(serde_json::from_str::<Member>(&written).unwrap(), member("b"));
}

#[test]
fn without_an_assignment_nothing_is_assigned() {
    assert_eq!(view_of(&["me"]).assigned(ShardId::new(0)), None);
    assert_eq!(me(), node("me"));
}
