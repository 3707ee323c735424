use super::*;
use crate::{
    ids::Epoch,
    shard::{FenceRow, ShardStatus},
};

const STANDINGS: [(&str, Standing); 4] = [
    ("main", Standing::Serving),
    ("west", Standing::Serving),
    ("old", Standing::Draining),
    ("gone", Standing::Removed),
];

/// Shards 0 to 11 are in `main`, 12 to 15 in `west`; 10 moves to `west`.
fn checked(shards: &str, target: &str) -> Result<Accepted, Refused> {
    let databases: Vec<Member> = STANDINGS
        .iter()
        .map(|(name, standing)| Member { name: DatabaseName::new(name), standing: *standing })
        .collect();
    let here = |shard| FenceRow { shard: ShardId::new(shard), status: ShardStatus::Here, epoch: Epoch::NONE };
    let map = ShardMap::default().after(&[Some((0..12).map(here).collect()), Some((12..16).map(here).collect())]);
    let under_way = BTreeMap::from([(ShardId::new(10), DatabaseName::new("west"))]);
    let scene = Scene { map: &map, databases: &databases, under_way: &under_way };
    check(&shards.parse().unwrap(), &DatabaseName::new(target), scene)
}

#[test]
fn shards_that_are_not_at_the_target_move_and_the_others_are_named() {
    let accepted = checked("8-9,13", "west").unwrap();
    let (source, target) = (DatabaseIndex::new(0), DatabaseIndex::new(1));
    let planned = |shard| PlannedMove { shard: ShardId::new(shard), source, target };
    assert_eq!(accepted.moves, [planned(8), planned(9)]);
    assert_eq!(accepted.already.to_string(), "13");
}

#[test]
fn a_request_that_cannot_be_carried_out_is_refused_with_its_reason() {
    let set = |text: &str| text.parse::<ShardSet>().unwrap();
    let name = DatabaseName::new;
    let closed = |text, standing| Refused::Closed { name: name(text), standing };
    for (shards, target, refused) in [
        ("", "west", Refused::Nothing),
        ("0", "east", Refused::UnknownDatabase { name: name("east"), known: "main, west, old, gone".to_owned() }),
        ("0", "old", closed("old", Standing::Draining)),
        ("0", "gone", closed("gone", Standing::Removed)),
        ("0-17", "west", Refused::UnknownShards { shards: set("16-17"), known: set("0-15") }),
        ("0-10", "west", Refused::UnderWay { shards: set("10") }),
        ("12-15", "west", Refused::AlreadyThere { shards: set("12-15"), name: name("west") }),
    ] {
        assert_eq!(checked(shards, target), Err(refused), "{shards} to {target}");
    }
    let hint = |standing| closed("west", standing).to_string().ends_with("; undrain it to use it again");
    assert_eq!([Standing::Draining, Standing::Removed].map(hint), [false, true]);
}

#[test]
fn while_no_database_could_be_read_no_shard_is_known() {
    let map = ShardMap::default().after(&[None]);
    assert_eq!(map.iter().count(), 0);
    let databases = [Member { name: DatabaseName::new("main"), standing: Standing::Serving }];
    let scene = Scene { map: &map, databases: &databases, under_way: &BTreeMap::new() };
    let refused = check(&"3".parse().unwrap(), &DatabaseName::new("main"), scene).unwrap_err();
    assert!(matches!(refused, Refused::NotOpen { .. }), "{refused}");
}

#[test]
fn a_closed_shard_moves_only_by_the_move_that_has_closed_it() {
    let row = |shard, status| FenceRow { shard: ShardId::new(shard), status, epoch: Epoch::NONE };
    let rows = vec![row(0, ShardStatus::Here), row(1, ShardStatus::Gone)];
    let map = ShardMap::default().after(&[Some(rows), Some(Vec::new())]);
    let databases = ["main", "west"].map(|name| Member { name: DatabaseName::new(name), standing: Standing::Serving });
    let asked = |target: &str, under_way: BTreeMap<ShardId, DatabaseName>| {
        let scene = Scene { map: &map, databases: &databases, under_way: &under_way };
        check(&"0-1".parse().unwrap(), &DatabaseName::new(target), scene)
    };
    let shards: ShardSet = "1".parse().unwrap();
    for target in ["main", "west"] {
        assert_eq!(asked(target, BTreeMap::new()), Err(Refused::NotOpen { shards: shards.clone() }));
    }
    let under_way = BTreeMap::from([(ShardId::new(1), DatabaseName::new("west"))]);
    assert_eq!(asked("west", under_way), Err(Refused::UnderWay { shards }));
}

#[test]
fn a_refusal_names_what_is_wrong() {
    for (shards, target, words) in [
        ("0", "east", "no database `east`; there are: main, west"),
        ("0", "old", "`old` is draining"),
        ("40-41", "west", "no shards 40-41; its shards are 0-15"),
        ("9-10", "west", "the shards 10 move already"),
    ] {
        let text = checked(shards, target).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_standing_has_one_spelling() {
    for standing in Standing::ALL {
        assert_eq!(serde_json::to_value(standing).unwrap(), standing.text());
    }
}
