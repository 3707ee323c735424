use super::*;

#[test]
fn quick_looks_begin_at_the_head_and_slow_ones_use_a_tenth_of_the_time() {
    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000));
    let mut low_water = LowWater::default();
    assert_eq!(low_water.from(start), None);
    low_water.note(None, at, Duration::from_millis(2), start);
    assert_eq!(low_water.from(start + Duration::from_millis(400)), None, "the next glance");

    let oldest = at.minus(Duration::from_secs(5));
    low_water.note(Some(oldest), at, Duration::from_secs(1), start);
    assert_eq!(low_water.from(start + Duration::from_millis(8_999)), Some(oldest.minus(LOOK_BACK)));
    assert_eq!(low_water.from(start + Duration::from_secs(9)), None);

    // The mark stays, and a node that has just started makes one.
    low_water.ran_out_of_time(at, Duration::from_secs(5), start);
    assert_eq!(low_water.from(start + Duration::from_secs(44)), Some(oldest.minus(LOOK_BACK)));
    let mut started = LowWater::default();
    started.ran_out_of_time(at, Duration::from_secs(5), start);
    assert_eq!(started.from(start), Some(at.minus(LOOK_BACK)));
}
