use super::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The size after so many claims that each took so long.
fn after(claims: &[(usize, Duration)]) -> usize {
    let mut size = ClaimSize::new(500);
    let start = Instant::now();
    for (tasks, took) in claims {
        size.took(*tasks, *took, start);
    }
    size.most()
}

#[test]
fn a_claim_takes_what_lately_took_a_moment() {
    assert_eq!(after(&[]), 500);
    assert_eq!(after(&[(1, ms(1)), (500, ms(13))]), 500);
    let mut slow = vec![(500, ms(126)); 20];
    slow.insert(0, (1, ms(1)));
    assert_eq!(after(&slow), 100);
    slow.extend(vec![(100, ms(11)); 20]);
    assert!((240..=250).contains(&after(&slow)), "a tenth of a millisecond each: {}", after(&slow));
}

#[test]
fn a_database_is_slow_while_full_claims_take_longer_than_a_moment() {
    let mut size = ClaimSize::new(500);
    let start = Instant::now();
    let mut is_slow_after = |tasks, took| {
        (0..20).for_each(|_| size.took(tasks, took, start));
        size.is_slow()
    };
    assert!(!is_slow_after(1, ms(1)));
    assert!(is_slow_after(500, ms(126)));
    assert!(!is_slow_after(500, ms(13)));
}

#[test]
fn one_slow_claim_does_not_decide() {
    assert_eq!(after(&[(1, ms(1)), (500, ms(101))]), 500);
}

#[test]
fn a_slow_network_makes_no_claim_smaller() {
    assert_eq!(after(&[(1, ms(200)), (500, ms(210)), (500, ms(210))]), 500);
}

#[test]
fn small_claims_say_nothing_about_the_tasks_of_large_ones() {
    assert_eq!(after(&[(1, ms(1)), (3, ms(60)), (3, ms(60)), (3, ms(60))]), 500);
}

#[test]
fn a_node_whose_claims_are_small_anyway_keeps_their_size() {
    let mut size = ClaimSize::new(20);
    for _ in 0..9 {
        size.took(20, ms(400), Instant::now());
    }
    assert_eq!(size.most(), 20);
    assert_eq!(ClaimSize::new(0).most(), 0);
}
