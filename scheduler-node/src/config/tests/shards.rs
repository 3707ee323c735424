//! How many shards a new cluster gets, and which database each of them.

use super::{complaints, read};

fn two(cluster: &str, first: &str, second: &str) -> String {
    format!(
        "[amqp]\nurl='amqp://mq'\n{cluster}\n[[database]]\nname='a'\nurl='postgres://x/a'\n{first}\n[[database]]\nname='b'\n\
         url='postgres://x/b'\n{second}"
    )
}

/// The ranges of both databases, the number of shards of a new cluster, and the number that the file states.
fn shards(cluster: &str, first: &str, second: &str) -> (Vec<String>, u16, Option<u16>) {
    let config = read(&two(cluster, first, second), &[]).expect("accepted");
    let range = |database: &crate::config::Database| database.shards.map_or(String::new(), |shards| shards.to_string());
    (config.databases.iter().map(range).collect(), config.first_shard_count(), config.stated_shard_count())
}

#[test]
fn a_database_without_a_range_begins_without_shards_and_without_any_the_first_has_all() {
    let ranges = |first: &str, second: &str| vec![first.to_owned(), second.to_owned()];
    assert_eq!(shards("", "", ""), (ranges("0-255", ""), 256, None));
    assert_eq!(shards("[cluster]\nshards=4096", "", ""), (ranges("0-4095", ""), 4_096, Some(4_096)));
    assert_eq!(shards("", "shards='0-63'", ""), (ranges("0-63", ""), 64, Some(64)));
    assert_eq!(shards("", "", "shards='0-63'"), (ranges("", "0-63"), 64, Some(64)));
    let both = shards("[cluster]\nshards=128", "shards='0-63'", "shards='64-127'");
    assert_eq!(both, (ranges("0-63", "64-127"), 128, Some(128)));
}

#[test]
fn a_number_of_shards_that_cannot_be_is_refused() {
    for (cluster, first, word) in [
        ("shards=0", "", "1 to 4096"),
        ("shards=4097", "", "1 to 4096"),
        ("shards=70000", "", "1 to 4096"),
        ("shards=256", "shards='0-127'", "up to 127"),
        ("shards='many'", "", "whole number"),
    ] {
        let told = complaints(&two(&format!("[cluster]\n{cluster}"), first, ""), &[]);
        assert!(
            told.len() == 1 && told[0].contains("`cluster.shards`") && told[0].contains(word),
            "{cluster}: {told:?}"
        );
    }
}

/// A cluster of an earlier version has them, and goes on.
#[test]
fn ranges_may_hold_more_shards_than_a_new_cluster_gets() {
    assert_eq!(shards("", "shards='0-9999'", "").2, Some(10_000));
}

/// Without a database that was removed, the ranges of the others may not fit together, and no longer matter.
#[test]
fn the_refusal_of_a_gap_says_what_to_do_in_a_cluster_that_exists() {
    let told = complaints(&two("", "shards='0-63'", "shards='128-191'"), &[]);
    assert!(
        told.len() == 1 && told[0].contains("64-127") && told[0].contains("leave `shards` out of every section"),
        "{told:?}"
    );
}
