use super::*;

const SYSTEM: i64 = 7_000_000_000_000_000_001;

fn server(timeline: i64, flushed: i64, left: Option<&[(i64, i64)]>) -> Lineage {
    let left = left.map(|left| left.iter().map(|(timeline, at)| (*timeline, Lsn::new(*at))).collect());
    Lineage { system: SYSTEM, timeline, flushed: Lsn::new(flushed), left }
}

/// Commits up to 1,000 were acknowledged on timeline 1.
fn seen() -> Seen {
    let mut seen = Seen::beginning(&server(1, 100, Some(&[])), 0);
    seen.acknowledge(1, Lsn::new(1_000));
    seen
}

#[test]
fn a_promotion_that_kept_every_commit_is_no_loss() {
    assert_eq!(seen().judge(&server(1, 1_000, Some(&[]))), Ok(()));
    assert_eq!(seen().judge(&server(2, 1_500, Some(&[(1, 1_000)]))), Ok(()));
    assert_eq!(seen().judge(&server(2, 1_500, None)), Ok(()));
}

#[test]
fn a_server_that_left_the_timeline_too_early_is_behind_by_the_difference() {
    assert_eq!(seen().judge(&server(2, 9_000, Some(&[(1, 700)]))), Err(Mismatch::Behind { bytes: 300 }));
    // Without its history the first contact stands for the end of the timeline.
    assert_eq!(seen().judge(&server(2, 800, None)), Err(Mismatch::Behind { bytes: 200 }));
    // A base backup: the same timeline, an older position.
    assert_eq!(seen().judge(&server(1, 600, Some(&[]))), Err(Mismatch::Behind { bytes: 400 }));
}

#[test]
fn a_loss_stays_visible_after_another_node_has_used_the_server() {
    let mut other = Seen::beginning(&server(1, 100, None), 0);
    assert_eq!(other.judge(&server(2, 800, None)), Ok(()), "it has seen no commit");
    assert!(other.meet(&server(2, 800, None)));
    other.acknowledge(2, Lsn::new(5_000));
    assert_eq!(other.judge(&server(2, 5_000, None)), Ok(()));
    assert!(other.add(&seen()));
    assert_eq!(other.judge(&server(2, 5_000, None)), Err(Mismatch::Behind { bytes: 200 }));
    assert_eq!(other.judge(&server(2, 5_000, Some(&[(1, 900)]))), Err(Mismatch::Behind { bytes: 100 }));
}

#[test]
fn a_timeline_that_the_server_never_was_on_counts_from_where_its_line_parted() {
    let mut seen = seen();
    seen.meet(&server(2, 1_010, Some(&[(1, 1_005)])));
    seen.acknowledge(2, Lsn::new(3_000));
    // The former primary was rewound to timeline 1 and promoted to 3.
    assert_eq!(seen.judge(&server(3, 9_000, Some(&[(1, 1_005)]))), Err(Mismatch::Behind { bytes: 1_995 }));
    assert_eq!(seen.judge(&server(3, 9_000, Some(&[(1, 1_005), (2, 3_000)]))), Ok(()));
    assert_eq!(seen.judge(&server(1, 9_000, Some(&[]))), Err(Mismatch::LeftBehind { found: 1, newest: 2 }));
}

#[test]
fn another_system_identifier_is_a_stranger() {
    let stranger = Lineage { system: 8, ..server(1, 5_000, None) };
    assert_eq!(seen().judge(&stranger), Err(Mismatch::Stranger { found: 8, known: SYSTEM }));
}

#[test]
fn an_accepted_loss_replaces_what_was_seen_everywhere_and_for_good() {
    let accepted = Seen::beginning(&server(2, 800, None), 1);
    let mut node = seen();
    assert!(node.add(&accepted));
    assert_eq!(node.judge(&server(2, 900, None)), Ok(()));
    assert!(!node.add(&seen()), "an older record changes nothing");
    assert_eq!(node, accepted);
    let restored = Seen::beginning(&Lineage { system: 8, ..server(1, 5, None) }, 2);
    assert!(node.add(&restored));
    assert_eq!(node.system, 8);
}

#[test]
fn a_record_reads_back_and_stays_small() {
    let mut seen = seen();
    for timeline in 2..50 {
        seen.meet(&server(timeline, 2_000 + timeline, None));
    }
    assert_eq!((seen.timelines.len(), seen.newest_timeline()), (TIMELINES_MOST, 49));
    let text = serde_json::to_string(&seen).expect("plain numbers");
    assert_eq!(serde_json::from_str::<Seen>(&text).expect("its own text"), seen);
}

#[test]
fn positions_read_as_postgresql_writes_them() {
    let at = Lsn::parse("16/B374D848").expect("a position");
    assert_eq!(
        (at.to_string(), at.bytes_after(Lsn::parse("16/0").expect("a position"))),
        ("16/B374D848".to_owned(), 0xB374_D848)
    );
    assert_eq!(Lsn::parse("16"), None);
    assert_eq!(Lsn::new(5).bytes_after(Lsn::new(9)), 0);
}
