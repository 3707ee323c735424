use std::fmt::Write;

use proptest::prelude::*;
use uuid::Uuid;

use super::{
    scenes::{SHARD, assign, me, node, own, own_since, view_of},
    *,
};
use crate::{
    cluster::view::OwnerRecord,
    ids::{Incarnation, NodeName},
};

const EPOCH: Epoch = Epoch::from_store(4);

/// For one shard: whether it is owned, whose key it has, and the node it is assigned to. Then the action while this
/// node stays, while it leaves and `other` stays, and while it leaves last. `leaver` is leaving, `gone` is no member.
const TABLE: &str = "
owned absent  me     | Reregister Reregister Release
owned absent  other  | Release    Release    Release
owned absent  leaver | Reregister Reregister Release
owned absent  gone   | Reregister Reregister Release
owned absent  none   | Reregister Reregister Release
owned mine    me     | -          -          Release
owned mine    other  | Release    Release    Release
owned mine    leaver | -          -          Release
owned mine    gone   | -          -          Release
owned mine    none   | -          -          Release
owned another me     | Drop       Drop       Drop
owned another other  | Drop       Drop       Drop
owned another leaver | Drop       Drop       Drop
owned another gone   | Drop       Drop       Drop
owned another none   | Drop       Drop       Drop
owned earlier me     | -          -          Release
owned earlier other  | -          -          Release
owned earlier leaver | -          -          Release
owned earlier gone   | -          -          Release
owned earlier none   | -          -          Release
not   absent  me     | Acquire    -          -
not   absent  other  | -          -          -
not   absent  leaver | -          -          -
not   absent  gone   | -          -          -
not   absent  none   | -          -          -
not   mine    me     | Acquire    Release    Release
not   mine    other  | Release    Release    Release
not   mine    leaver | Release    Release    Release
not   mine    gone   | Release    Release    Release
not   mine    none   | Release    Release    Release
not   another me     | -          -          -
not   another other  | -          -          -
not   another leaver | -          -          -
not   another gone   | -          -          -
not   another none   | -          -          -
not   earlier me     | -          -          -
not   earlier other  | -          -          -
not   earlier leaver | -          -          -
not   earlier gone   | -          -          -
not   earlier none   | -          -          -
";

fn named(actions: &[Action]) -> &'static str {
    match actions {
        [] => "-",
        [Action::Drop { shard: SHARD }] => "Drop",
        [Action::Release { shard: SHARD }] => "Release",
        [Action::Reregister { shard: SHARD, epoch: EPOCH }] => "Reregister",
        [Action::Acquire { shard: SHARD }] => "Acquire",
        other => panic!("{other:?}"),
    }
}

fn scene(key: &str, assigned: &str, alone: bool) -> ClusterView {
    let mut view = if alone { view_of(&["me", "leaver"]) } else { view_of(&["me", "other", "leaver"]) };
    view.members.get_mut("leaver").unwrap().leaving = true;
    assign(&mut view, vec![(assigned != "none").then(|| node(assigned))]);
    match key {
        "mine" => own(&mut view, SHARD, me()),
        "another" => own(&mut view, SHARD, node("other")),
        "earlier" => own_since(&mut view, SHARD, node("other"), Some(Epoch::from_store(3))),
        _ => {}
    }
    view
}

fn held(owned: bool) -> BTreeMap<ShardId, Epoch> {
    if owned { [(SHARD, EPOCH)].into() } else { BTreeMap::new() }
}

fn act(owned: bool, view: &ClusterView, leaving: bool) -> Vec<Action> {
    step(&me(), &held(owned), Some(view), &BTreeSet::new(), leaving)
}

#[test]
fn every_combination_leads_to_what_the_table_says() {
    let mut table = String::from("\n");
    for owned in [true, false] {
        for key in ["absent", "mine", "another", "earlier"] {
            for assigned in ["me", "other", "leaver", "gone", "none"] {
                let staying = named(&act(owned, &scene(key, assigned, false), false));
                let leaving = named(&act(owned, &scene(key, assigned, false), true));
                let last = named(&act(owned, &scene(key, assigned, true), true));
                let word = if owned { "owned" } else { "not" };
                let row = format!("{word:5} {key:7} {assigned:6} | {staying:10} {leaving:10} {last}");
                writeln!(table, "{}", row.trim_end()).unwrap();
            }
        }
    }
    assert_eq!(table, TABLE, "the table is now:{table}");
}

#[test]
fn without_a_view_nothing_is_begun_and_nothing_is_given_up() {
    for owned in [true, false] {
        for leaving in [true, false] {
            assert_eq!(step(&me(), &held(owned), None, &BTreeSet::new(), leaving), []);
        }
    }
}

#[test]
fn a_node_that_is_no_member_takes_nothing_but_still_gives_up() {
    let without_me = |key, assigned| {
        let mut view = scene(key, assigned, false);
        view.members.remove("me");
        view
    };
    assert_eq!(named(&act(false, &without_me("absent", "me"), false)), "-");
    assert_eq!(named(&act(true, &without_me("absent", "me"), false)), "-");
    assert_eq!(named(&act(true, &without_me("absent", "other"), false)), "Release");
    assert_eq!(named(&act(true, &without_me("another", "me"), false)), "Drop");
}

#[test]
fn an_unfit_node_takes_nothing_and_releases_only_to_another() {
    let unfit = [SHARD].into();
    let act = |owned, key, assigned| step(&me(), &held(owned), Some(&scene(key, assigned, false)), &unfit, false);
    assert_eq!(named(&act(false, "absent", "me")), "-");
    assert_eq!(named(&act(false, "mine", "me")), "-");
    assert_eq!(named(&act(true, "mine", "me")), "-");
    assert_eq!(named(&act(true, "mine", "other")), "Release");
}

#[test]
fn the_key_of_an_earlier_start_of_this_node_is_waited_for() {
    let mut view = scene("absent", "me", false);
    let earlier = NodeId { incarnation: Incarnation::new(Uuid::from_u128(2)), ..me() };
    own(&mut view, SHARD, earlier);
    assert_eq!(named(&act(false, &view, false)), "-");
}

#[test]
fn a_shard_is_kept_while_its_new_owner_is_an_earlier_start_of_a_member() {
    let mut view = scene("mine", "other", false);
    view.members.get_mut("other").unwrap().node.incarnation = Incarnation::new(Uuid::from_u128(2));
    assert_eq!(named(&act(true, &view, false)), "-");
}

#[test]
fn after_all_of_etcd_is_lost_what_is_owned_is_registered_again() {
    assert_eq!(named(&act(true, &view_of(&["me", "other"]), false)), "Reregister");
}

#[test]
fn a_restored_etcd_that_knows_earlier_owners_only_stops_no_owner_and_what_is_owned_is_registered_again() {
    let mut view = view_of(&["me", "other"]);
    let former = |name| NodeId { incarnation: Incarnation::new(Uuid::from_u128(2)), ..node(name) };
    for name in ["me", "other"] {
        view.members.get_mut(name).unwrap().node = former(name);
        assign(&mut view, vec![Some(former("other"))]);
        own_since(&mut view, SHARD, former(name), Some(Epoch::from_store(3)));
        assert_eq!(named(&act(true, &view, false)), "-", "the key of {name}");
    }
    assert_eq!(named(&act(true, &view_of(&["me", "other"]), false)), "Reregister", "the restored lease has ended");
}

#[test]
fn a_node_that_is_about_to_take_the_fence_has_the_shard() {
    let mut view = scene("absent", "me", false);
    own_since(&mut view, SHARD, node("other"), None);
    assert_eq!(named(&act(true, &view, false)), "Drop");
}

#[test]
fn shards_are_handled_in_their_order() {
    let mut view = view_of(&["me", "other"]);
    assign(&mut view, vec![Some(me()), Some(node("other")), Some(me()), Some(node("other"))]);
    own(&mut view, ShardId::new(1), me());
    own(&mut view, ShardId::new(3), node("other"));
    let owned = [1, 3].map(|number| (ShardId::new(number), EPOCH)).into();
    let actions = step(&me(), &owned, Some(&view), &BTreeSet::new(), false);
    let shard = ShardId::new;
    let expected = [
        Action::Acquire { shard: shard(0) },
        Action::Release { shard: shard(1) },
        Action::Acquire { shard: shard(2) },
        Action::Drop { shard: shard(3) },
    ];
    assert_eq!(actions, expected);
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const SHARDS: usize = 6;

/// A model of nodes, etcd and fences without delays: every action takes effect at once.
#[derive(Debug, Clone)]
struct Cluster {
    view: ClusterView,
    fences: Vec<i64>,
    owned: Vec<BTreeMap<ShardId, Epoch>>,
}

impl Cluster {
    fn act(&mut self, place: usize) -> usize {
        let me = node(NAMES[place]);
        // The fence refuses a claim under an older epoch, and the node forgets the shard.
        self.owned[place].retain(|shard, epoch| self.fences[usize::from(shard.number())] == epoch.number());
        let leaving = self.view.member(&me).is_some_and(|member| member.leaving);
        let actions = step(&me, &self.owned[place], Some(&self.view), &BTreeSet::new(), leaving);
        for action in &actions {
            let shard = action.shard();
            let mine = self.view.owners.get(&shard).is_some_and(|owner| owner.node == me);
            match action {
                Action::Drop { .. } => {
                    self.owned[place].remove(&shard);
                }
                Action::Release { .. } => {
                    self.owned[place].remove(&shard);
                    if mine {
                        self.view.owners.remove(&shard);
                    }
                }
                Action::Reregister { epoch, .. } => {
                    self.view.owners.insert(shard, OwnerRecord { node: me.clone(), epoch: Some(*epoch) });
                }
                Action::Acquire { .. } => {
                    assert!(mine || !self.view.owners.contains_key(&shard), "{me} took {shard} from under another");
                    let fence = &mut self.fences[usize::from(shard.number())];
                    *fence += 1;
                    let epoch = Epoch::from_store(*fence);
                    self.owned[place].insert(shard, epoch);
                    self.view.owners.insert(shard, OwnerRecord { node: me.clone(), epoch: Some(epoch) });
                }
            }
        }
        actions.len()
    }

    fn owners(&self, shard: usize) -> Vec<&'static str> {
        let current = |owned: &BTreeMap<ShardId, Epoch>| {
            let epoch = owned.get(&ShardId::new(u16::try_from(shard).unwrap()));
            epoch.is_some_and(|epoch| epoch.number() == self.fences[shard])
        };
        NAMES.into_iter().zip(&self.owned).filter(|(_, owned)| current(owned)).map(|(name, _)| name).collect()
    }
}

/// Any disorder: keys of members only (the leases of others ran out), assignments to members that stay, fences held
/// or not.
fn messes() -> impl Strategy<Value = Cluster> {
    let leaving = prop::sample::subsequence(NAMES.to_vec(), 0..=1);
    let shard = (0..NAMES.len(), prop::option::of(0..NAMES.len()), prop::option::of(0..NAMES.len()), any::<bool>());
    (leaving, prop::collection::vec(shard, SHARDS)).prop_map(|(leaving, shards)| {
        let mut view = view_of(&NAMES);
        let mut owned = vec![BTreeMap::new(); NAMES.len()];
        for name in &leaving {
            view.members.get_mut(&NodeName::new(name)).unwrap().leaving = true;
        }
        let stays = |place: usize| if leaving.contains(&NAMES[place]) { (place + 1) % NAMES.len() } else { place };
        assign(&mut view, shards.iter().map(|(assigned, ..)| Some(node(NAMES[stays(*assigned)]))).collect());
        for (number, (_, key, owner, older)) in shards.into_iter().enumerate() {
            let shard = ShardId::new(u16::try_from(number).unwrap());
            if let Some(place) = key {
                own_since(&mut view, shard, node(NAMES[place]), Some(Epoch::from_store(1)));
            }
            if let Some(place) = owner {
                owned[place].insert(shard, Epoch::from_store(if older { 1 } else { 2 }));
            }
        }
        Cluster { view, fences: vec![2; SHARDS], owned }
    })
}

proptest! {
    #[test]
    fn any_mess_ends_with_every_shard_at_its_assigned_node(mut cluster in messes(), order in prop::collection::vec(0..3_usize, 60)) {
        for place in order.into_iter().chain((0..30).map(|turn| turn % 3)) {
            cluster.act(place);
            for shard in 0..SHARDS {
                prop_assert!(cluster.owners(shard).len() <= 1);
            }
        }
        for place in 0..NAMES.len() {
            prop_assert_eq!(cluster.act(place), 0, "nothing is left to do");
        }
        for shard in 0..SHARDS {
            let assigned = cluster.view.assigned(ShardId::new(u16::try_from(shard).unwrap())).unwrap();
            prop_assert_eq!(cluster.owners(shard), vec![assigned.name.as_str()]);
        }
    }
}
