use super::*;

/// A breaker that has just opened, and when it may be probed.
fn open(start: Instant) -> (Breaker, Instant) {
    let mut breaker = Breaker::new(3);
    for _ in 0..3 {
        assert_eq!(breaker.room(start), Room::All);
        breaker.ended(Room::All, false, start);
    }
    assert_eq!(breaker.room(start), Room::NoneUntil(start + FIRST_PAUSE));
    (breaker, start + FIRST_PAUSE)
}

#[test]
fn only_failures_in_a_row_open_it() {
    let now = Instant::now();
    let mut breaker = Breaker::new(3);
    for is_healthy in [false, false, true, false, false] {
        breaker.ended(Room::All, is_healthy, now);
    }
    assert_eq!(breaker.room(now), Room::All);
}

#[test]
fn a_probe_that_goes_well_closes_it() {
    let (mut breaker, then) = open(Instant::now());
    assert_eq!(breaker.room(then), Room::Probe);
    breaker.ended(Room::Probe, true, then);
    assert_eq!(breaker.room(then), Room::All);
    breaker.ended(Room::All, false, then);
    assert_eq!(breaker.room(then), Room::All, "the failures are counted anew");
}

#[test]
fn each_probe_that_fails_doubles_the_pause_up_to_a_minute() {
    let (mut breaker, mut now) = open(Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        breaker.ended(Room::Probe, false, now);
        let Room::NoneUntil(until) = breaker.room(now) else { panic!("it is open") };
        pauses.push((until - now).as_secs());
        now = until;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn what_began_before_it_opened_does_not_move_it() {
    let (mut breaker, then) = open(Instant::now());
    for is_healthy in [true, false] {
        breaker.ended(Room::All, is_healthy, then);
        assert_eq!(breaker.room(then), Room::Probe);
    }
}
