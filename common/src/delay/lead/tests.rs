use proptest::prelude::*;

use super::*;

const LONGEST: Duration = Duration::from_millis(300);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn quick_claims_have_the_least_lead() {
    let start = Instant::now();
    let mut lead = Lead::new(LONGEST, start);
    assert_eq!(lead.ahead(start), ms(100));
    lead.took(ms(2), start);
    assert_eq!((lead.ahead(start), lead.stride(start)), (ms(100), ms(100) / 3));
    assert_eq!(Lead::new(ms(50), start).ahead(start), ms(50), "unless a shorter one is the longest");
}

#[test]
fn one_slow_claim_makes_the_next_begin_earlier_and_is_forgotten() {
    let start = Instant::now();
    let mut lead = Lead::new(LONGEST, start);
    lead.took(ms(180), start);
    assert_eq!((lead.ahead(start), lead.stride(start)), (ms(270), ms(90)));
    lead.took(ms(2), start + HALF_LIFE);
    assert_eq!(lead.ahead(start + HALF_LIFE), ms(135), "a quick one does not hide it");
    assert_eq!(lead.ahead(start + HALF_LIFE * 2), ms(100));
}

#[test]
fn a_claim_that_hung_is_forgotten_as_soon_as_one_that_took_the_longest_lead() {
    let start = Instant::now();
    let mut lead = Lead::new(LONGEST, start);
    lead.took(Duration::from_secs(60), start);
    assert_eq!(lead.ahead(start), LONGEST);
    assert_eq!(lead.ahead(start + HALF_LIFE), ms(225));
}

#[test]
fn with_no_lead_allowed_there_is_none() {
    let start = Instant::now();
    let mut lead = Lead::new(Duration::ZERO, start);
    lead.took(ms(60), start);
    assert_eq!((lead.ahead(start), lead.stride(start)), (Duration::ZERO, Duration::ZERO));
}

const fn at_ms(ms: i64) -> UnixMicros {
    UnixMicros::new(ms * 1_000)
}

/// Each of these tasks counts.
fn ahead_of(lead: &Lead, due: impl IntoIterator<Item = UnixMicros>, now: Instant) -> Duration {
    lead.ahead_of(due.into_iter().map(|at| (at, 1)), usize::MAX, now)
}

#[test]
fn a_crowd_begins_as_much_earlier_as_its_claims_take() {
    let start = Instant::now();
    let lead = Lead::new(Duration::from_secs(1), start);
    let crowd = |tasks| ahead_of(&lead, vec![at_ms(0); tasks], start);
    assert_eq!((crowd(0), crowd(1)), (ms(100), ms(100)));
    assert_eq!(crowd(1 + 2_000), ms(100) + EACH * 2_000);
    assert_eq!(crowd(1_000_000), Duration::from_secs(1));
    // The crowd comes 40 ms after the first task, which waits for it so much less.
    let after_one = std::iter::once(at_ms(0)).chain(vec![at_ms(40); 2_000]);
    assert_eq!(ahead_of(&lead, after_one, start), ms(100) + EACH * 2_000 - ms(40));
}

#[test]
fn tasks_that_claims_keep_up_with_begin_no_earlier() {
    let start = Instant::now();
    let lead = Lead::new(Duration::from_secs(1), start);
    assert_eq!(ahead_of(&lead, (0..10_000).map(at_ms), start), ms(100));
}

#[test]
fn tasks_that_are_counted_together_begin_as_early_as_one_by_one() {
    let start = Instant::now();
    let lead = Lead::new(Duration::from_secs(1), start);
    let due = [(at_ms(0), 1), (at_ms(40), 2_000)];
    assert_eq!(lead.ahead_of(due, usize::MAX, start), ms(100) + EACH * 2_000 - ms(40));
    assert_eq!(lead.ahead_of(due, 1_001, start), ms(100) + EACH * 1_000 - ms(40), "others find no room");
    assert_eq!(lead.ahead_of(due, 0, start), ms(100));
}

proptest! {
    #[test]
    fn what_comes_due_before_the_next_claim_ends_is_claimed_in_time_unless_the_bound_forbids_it(
        longest_ms in 1_u64..=1_000,
        claims in prop::collection::vec((0_u64..300, 0_u64..200), 1..50),
    ) {
        let (mut now, longest) = (Instant::now(), ms(longest_ms));
        let mut lead = Lead::new(longest, now);
        for (took, pause) in claims {
            lead.took(ms(took), now);
            // The latest time for the claim is the next stride, and that claim may be as slow as this one.
            prop_assert!(lead.ahead(now) >= lead.stride(now) + ms(took).min(longest * 2 / 3));
            prop_assert!(lead.ahead(now) <= longest);
            now += ms(pause);
        }
    }
}
