use super::*;

#[test]
fn the_quickest_is_forgotten_after_two_periods() {
    let start = Instant::now();
    let (quick, slow) = (Duration::from_millis(2), Duration::from_millis(9));
    let mut quickest = Quickest::default();
    assert_eq!(quickest.with(slow, start), slow);
    assert_eq!(quickest.with(quick, start), quick);
    assert_eq!(quickest.with(slow, start + PERIOD), quick);
    assert_eq!(quickest.with(slow, start + PERIOD * 2), slow);
}
