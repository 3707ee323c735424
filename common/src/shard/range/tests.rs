use super::*;

fn range(text: &str) -> ShardRange {
    text.parse().unwrap()
}

fn databases(ranges: &[&str]) -> Vec<(DatabaseName, ShardRange)> {
    let names = ["a", "b", "c", "d"].map(DatabaseName::new);
    names.into_iter().zip(ranges.iter().map(|text| range(text))).collect()
}

#[test]
fn a_range_reads_back_as_it_is_written() {
    for text in ["0-127", "5", "0", "0-65535", "65535"] {
        assert_eq!(range(text).to_string(), text);
        assert_eq!(serde_json::from_str::<ShardRange>(&format!("\"{text}\"")).unwrap(), range(text));
    }
    assert_eq!(range(" 3 - 9 "), range("3-9"));
}

#[test]
fn what_is_not_a_range_is_refused_with_an_example() {
    for text in ["", "-", "a-b", "1-", "-1", "9-3", "0-65536", "1-2-3", "0..5"] {
        let error = text.parse::<ShardRange>().unwrap_err().to_string();
        assert!(error.contains("0-127"), "{error}");
    }
}

#[test]
fn a_range_holds_its_ends() {
    let range = range("3-5");
    assert_eq!(range.iter().map(ShardId::number).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(range.count(), 3);
    let held = [2, 3, 5, 6].map(|number| range.contains(ShardId::new(number)));
    assert_eq!(held, [false, true, true, false]);
    assert_eq!(ShardRange::all(128).to_string(), "0-127");
    assert_eq!(ShardRange::all(65_536).count(), 65_536);
    assert_eq!(ShardRange::new(ShardId::new(2), ShardId::new(1)), None);
}

#[test]
fn databases_that_hold_every_shard_once_are_accepted_in_any_order() {
    assert_eq!(check_cover(&databases(&["0-127"]), 128), Ok(()));
    assert_eq!(check_cover(&databases(&["64-127", "0-62", "63"]), 128), Ok(()));
    assert_eq!(check_cover(&databases(&["0-65535"]), 65_536), Ok(()));
}

#[test]
fn gaps_overlaps_and_shards_that_do_not_exist_are_named() {
    let refused = |ranges: &[&str]| check_cover(&databases(ranges), 128).unwrap_err().to_string();
    assert_eq!(refused(&[]), "no database holds any shard");
    assert_eq!(refused(&["0-99"]), "no database holds the shards 100-127");
    assert_eq!(refused(&["1-127"]), "no database holds the shards 0");
    assert_eq!(refused(&["80-127", "0-63"]), "no database holds the shards 64-79");
    assert_eq!(refused(&["0-70", "60-127"]), "databases `a` and `b` both hold the shards 60-70");
    assert_eq!(refused(&["0-127", "0-127"]), "databases `a` and `b` both hold the shards 0-127");
    assert_eq!(refused(&["0-128"]), "database `a` holds shards up to 128, but there are only 128, numbered from 0");
}
