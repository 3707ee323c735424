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

#[test]
fn while_looks_from_the_head_run_out_of_time_the_others_go_on_with_the_rows_that_are_left() {
    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000_000));
    let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
    let mut low_water = LowWater::default();
    low_water.ran_out_of_time(at, Duration::from_secs(5), start);
    let oldest = at.plus(hour).minus(minute);
    low_water.note_from_mark(Some(oldest), at.plus(hour));
    assert_eq!(low_water.from(start), Some(oldest.minus(LOOK_BACK)));
    low_water.note_from_mark(None, at.plus(hour));
    assert_eq!(low_water.from(start), Some(at.plus(hour).minus(LOOK_BACK)));
    assert_eq!(low_water.from(start + Duration::from_secs(45)), None, "one from the head is due all the same");

    // The clock was an hour ahead.
    low_water.ran_out_of_time(at, Duration::from_secs(5), start);
    assert_eq!(low_water.from(start), Some(at.minus(LOOK_BACK)));
}

#[test]
fn a_look_from_the_head_that_was_asked_for_and_runs_out_of_time_keeps_the_mark() {
    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000_000));
    let mut low_water = LowWater::default();
    let oldest = at.minus(Duration::from_secs(1_800));
    low_water.note(Some(oldest), at, Duration::from_secs(5), start);
    low_water.look_from_head();
    assert_eq!(low_water.from(start), None);
    low_water.ran_out_of_time(at, Duration::from_secs(5), start);
    assert_eq!(low_water.from(start), Some(oldest.minus(LOOK_BACK)), "what it had left is still found");
}

/// It may rest after a quick look, too: how long the look took is what counts.
#[test]
fn a_look_that_ran_out_of_time_is_slow_until_a_quick_one_is_recorded() {
    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000_000));
    let mut low_water = LowWater::default();
    assert!(low_water.is_quick(), "none is recorded");
    low_water.note(None, at, QUICK / 2, start);
    assert!(low_water.is_quick() && low_water.from(start).is_some());
    low_water.ran_out_of_time(at, Duration::from_secs(5), start);
    assert!(!low_water.is_quick());
    low_water.look_from_head();
    low_water.note_from_mark(None, at);
    assert!(!low_water.is_quick(), "none of them is a look from the head");
    low_water.note(None, at, QUICK, start);
    assert!(!low_water.is_quick());
    low_water.note(None, at, QUICK / 2, start);
    assert!(low_water.is_quick());
}

#[test]
fn looks_beside_one_from_the_head_begin_at_the_mark() {
    let (start, at) = (Instant::now(), UnixMicros::new(1_000_000_000_000));
    let mut low_water = LowWater::default();
    assert_eq!(low_water.from_beside(start), None, "there is no mark");
    low_water.note(None, at, Duration::from_secs(5), start);
    let under_way = start + Duration::from_secs(50);
    assert_eq!((low_water.from(under_way), low_water.from_beside(under_way)), (None, Some(at.minus(LOOK_BACK))));
    assert_eq!(low_water.from_beside(start + Duration::from_secs(55)), None, "no look is recorded any more");
}
