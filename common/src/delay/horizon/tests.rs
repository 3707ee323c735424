use super::*;

fn at(seconds: i64) -> UnixMicros {
    UnixMicros::new(seconds * 1_000_000)
}

fn at_ms(millis: i64) -> UnixMicros {
    UnixMicros::new(millis * 1_000)
}

fn nothing() -> ReadResult {
    ReadResult::default()
}

/// A horizon of ten seconds, fully read at `now`.
fn read_at(now: UnixMicros) -> Horizon {
    let mut horizon = Horizon::new(ReadIntervals::of(Duration::from_secs(10)));
    let window = horizon.next(now, true).unwrap();
    horizon.note(window, nothing(), now, now);
    horizon
}

#[test]
fn the_first_read_is_a_full_one() {
    let horizon = Horizon::new(ReadIntervals::of(Duration::from_secs(10)));
    let window = Window { pass: ReadKind::Full, after: None, until: at(110) };
    assert_eq!(horizon.next(at(100), true), Some(window));
    assert_eq!(horizon.next(at(100), false), Some(window));
}

/// Otherwise nothing would be read until the clock has caught up.
#[test]
fn after_a_clock_is_set_back_the_next_read_is_a_full_one() {
    let mut horizon = read_at(at(100));
    assert!(!horizon.follow(at(100)) && !horizon.follow(at_ms(99_900)), "a reading is never exact");
    assert_eq!(horizon.next(at_ms(99_900), true), None);
    assert!(horizon.follow(at(40)));
    assert_eq!(horizon.next(at(40), true), Some(Window { pass: ReadKind::Full, after: None, until: at(50) }));
    assert!(!horizon.follow(at(41)));
}

#[test]
fn right_after_a_read_there_is_nothing_to_read() {
    let horizon = read_at(at(100));
    assert_eq!(horizon.next(at(100), true), None);
    assert_eq!(horizon.next(at_ms(100_999), true), None);
    assert_eq!(horizon.ask_again_at(at(100), true), at(101));
}

#[test]
fn a_reader_that_does_one_read_whenever_it_is_asked_to_reads_every_moment_before_it_comes() {
    let mut horizon = read_at(at(100));
    let (mut now, mut read_until) = (at(100), at(110));
    while now < at(200) {
        let again_at = horizon.ask_again_at(now, true);
        now = again_at.max(now.plus(Duration::from_millis(5)));
        if let Some(window) = horizon.next(now, true) {
            read_until = read_until.max(window.until);
            horizon.note(window, nothing(), now, now);
        }
        assert!(read_until >= now.plus(Duration::from_secs(8)), "at {now} read until {read_until}");
    }
}

#[test]
fn a_full_heap_asks_for_repairs_only() {
    let horizon = read_at(at(100));
    assert_eq!(horizon.ask_again_at(at(109), false), at(109), "a repair is due");
    let mut horizon = read_at(at(100));
    let repair = horizon.next(at(109), false).unwrap();
    horizon.note(repair, nothing(), at(109), at(109));
    assert_eq!(horizon.ask_again_at(at(109), false), at(110));
    assert_eq!(horizon.ask_again_at(at(109), true), at(109));
}

#[test]
fn a_repair_reads_from_before_the_low_water_mark_to_twice_its_rhythm() {
    let mut horizon = read_at(at(100));
    let window = Window { pass: ReadKind::Repair, after: Some(at(90)), until: at(103) };
    assert_eq!(horizon.next(at(101), true), Some(window));
    horizon.note(window, nothing(), at(101), at(101));
    assert_eq!(horizon.next(at(101), true), None);
}

#[test]
fn every_moment_is_read_before_it_comes_and_again_shortly_before_it_is_due() {
    let mut horizon = Horizon::new(ReadIntervals::of(Duration::from_secs(10)));
    let mut read_until = at(0);
    for millis in (100_000..200_000).step_by(100) {
        let now = at_ms(millis);
        let mut found_late_rows = false;
        while let Some(window) = horizon.next(now, true) {
            assert!(window.after.is_none_or(|after| after <= read_until), "no gap before {window:?}");
            read_until = read_until.max(window.until);
            found_late_rows |= window.pass != ReadKind::Ahead && window.until >= now.plus(Duration::from_secs(1));
            horizon.note(window, nothing(), now, now);
        }
        assert!(read_until >= now.plus(Duration::from_secs(8)), "at {now} read until {read_until}");
        assert!(found_late_rows || millis % 1_000 != 0, "at {now} no repair");
    }
}

#[test]
fn the_low_water_mark_follows_the_earliest_row_that_is_left() {
    let mut horizon = read_at(at(100));
    let window = horizon.next(at(101), false).unwrap();
    horizon.note(window, ReadResult { earliest: Some(at(90)), complete_until: None }, at(101), at(101));
    let window = horizon.next(at(102), false).unwrap();
    assert_eq!((window.pass, window.after), (ReadKind::Repair, Some(at(80))));
    horizon.note(window, ReadResult { earliest: Some(at(103)), complete_until: None }, at(102), at(102));
    assert_eq!(horizon.low_water, Some(at(102)), "never past the moment of the read");
}

#[test]
fn what_found_no_room_is_read_again_once_there_is_room() {
    let mut horizon = Horizon::new(ReadIntervals::of(Duration::from_secs(10)));
    let window = horizon.next(at(100), true).unwrap();
    let cut = ReadResult { earliest: Some(at(50)), complete_until: Some(at(60)) };
    horizon.note(window, cut, at(100), at(100));
    assert_eq!(horizon.next(at(100), false), None);
    let ahead = Window { pass: ReadKind::Ahead, after: Some(at(60)), until: at(110) };
    assert_eq!(horizon.next(at(100), true), Some(ahead));
}

#[test]
fn a_repair_does_not_reach_into_what_found_no_room() {
    let mut horizon = Horizon::new(ReadIntervals::of(Duration::from_secs(10)));
    let window = horizon.next(at(100), true).unwrap();
    let cut = ReadResult { earliest: Some(at(50)), complete_until: Some(at(60)) };
    horizon.note(window, cut, at(100), at(100));
    let repair = horizon.next(at(101), false).unwrap();
    assert_eq!((repair.pass, repair.until), (ReadKind::Repair, at(60)));
    horizon.note(repair, ReadResult { earliest: Some(at(50)), complete_until: Some(at(55)) }, at(101), at(101));
    assert_eq!(horizon.next(at(101), true).unwrap().after, Some(at(55)));
}

/// Otherwise it waits in the database until the overdue tasks before it are gone.
#[test]
fn what_comes_due_now_is_read_beside_a_repair_once_more_or_for_the_first_time() {
    let horizon = read_at(at(100));
    let window = NowWindow { from: at(99), until: at(103), is_ahead: true };
    assert_eq!(horizon.about_now(at(101)), window);
    assert_eq!(horizon.about_now(at(109)), NowWindow { from: at(107), until: at(111), is_ahead: false });
    let mut horizon = Horizon::new(ReadIntervals::of(Duration::from_secs(10)));
    let full = horizon.next(at(100), true).unwrap();
    let cut = ReadResult { earliest: Some(at(50)), complete_until: Some(at(60)) };
    horizon.note(full, cut, at(100), at(100));
    assert_eq!(horizon.about_now(at(101)), NowWindow { is_ahead: false, ..window });
}

#[test]
fn a_full_read_comes_round_every_so_often() {
    let mut horizon = read_at(at(100));
    let mut full = Vec::new();
    for second in 101..=200 {
        while let Some(window) = horizon.next(at(second), true) {
            if window.pass == ReadKind::Full {
                full.push(second);
            }
            horizon.note(window, nothing(), at(second), at(second));
        }
    }
    assert_eq!(full, [130, 160, 190]);
}

#[test]
fn slow_repairs_become_rarer_and_reach_further() {
    let mut horizon = read_at(at(100));
    let window = horizon.next(at(101), true).unwrap();
    horizon.note(window, nothing(), at(101), at_ms(101_250));
    assert_eq!((horizon.repair_at, horizon.repair_gap), (at_ms(103_500), Duration::from_millis(2_250)));
    let repair = horizon.next(at_ms(103_500), true).unwrap();
    assert_eq!((repair.pass, repair.until), (ReadKind::Repair, at(108)));
}

#[test]
fn a_repair_that_waited_for_a_lock_does_not_put_off_the_next_for_long() {
    let mut horizon = read_at(at(100));
    let window = horizon.next(at(101), true).unwrap();
    horizon.note(window, nothing(), at(101), at(104));
    assert_eq!(horizon.repair_at, at(107));
}

#[test]
fn a_repair_that_is_due_goes_before_reading_on() {
    let mut horizon = read_at(at(100));
    let repair = horizon.next(at(109), true).unwrap();
    assert_eq!(repair.pass, ReadKind::Repair);
    horizon.note(repair, nothing(), at(109), at(109));
    assert_eq!(horizon.next(at(109), true).unwrap().pass, ReadKind::Ahead);
}

#[test]
fn a_reset_begins_from_the_beginning() {
    let mut horizon = read_at(at(100));
    horizon.reset();
    assert_eq!(horizon.next(at(100), false).unwrap().pass, ReadKind::Full);
}
