use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn set(text: &str) -> ShardSet {
    text.parse().unwrap()
}

#[test]
fn a_set_has_one_text_however_it_was_written() {
    for (written, text, count) in [
        ("", "", 0),
        ("5", "5", 1),
        ("0-15,20", "0-15,20", 17),
        ("20,0-15", "0-15,20", 17),
        ("0-3,4-7,6-9,2", "0-9", 10),
        ("0-65535,7", "0-65535", 65_536),
        ("65535,65535", "65535", 1),
    ] {
        let set = set(written);
        assert_eq!((set.to_string().as_str(), set.count()), (text, count), "{written}");
    }
}

#[test]
fn a_text_that_is_no_set_is_refused_with_the_part_at_fault() {
    for (text, part) in [
        ("0-15,", "``"),
        ("0-15,x", "`x`"),
        ("9-3", "`9-3`"),
        ("0-70000", "`0-70000`"),
        ("-1", "`-1`"),
        (" ", "` `"),
        ("0- 3", "`0- 3`"),
        ("+5", "`+5`"),
    ] {
        let error = text.parse::<ShardSet>().unwrap_err().to_string();
        assert!(error.starts_with(part) && error.contains("`0-15,20`"), "{text}: {error}");
    }
}

#[test]
fn many_large_ranges_cost_no_more_than_their_number() {
    let text = vec!["0-65535"; 5_000].join(",");
    assert_eq!(set(&text).count(), 65_536);
}

proptest! {
    #[test]
    fn a_set_reads_back_from_its_text_and_has_the_shards_that_were_put_in(
        numbers in prop::collection::btree_set(prop_oneof![0_u16..40, any::<u16>()], 0..60)
    ) {
        let shards: BTreeSet<ShardId> = numbers.iter().copied().map(ShardId::new).collect();
        let set: ShardSet = shards.iter().rev().copied().collect();
        prop_assert_eq!(&set.to_string().parse::<ShardSet>().unwrap(), &set);
        prop_assert_eq!(&serde_json::from_value::<ShardSet>(serde_json::to_value(&set).unwrap()).unwrap(), &set);
        prop_assert_eq!(&set.iter().collect::<BTreeSet<_>>(), &shards);
        prop_assert_eq!(set.count(), shards.len());
        prop_assert_eq!(set.is_empty(), shards.is_empty());
        for number in (0..45).chain([u16::MAX]) {
            prop_assert_eq!(set.contains(ShardId::new(number)), numbers.contains(&number));
        }
    }
}
