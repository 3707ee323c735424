use proptest::prelude::*;

use super::*;

fn moment(text: &str) -> UnixMicros {
    serde_json::from_value(text.into()).unwrap()
}

fn cron(cron: &str, time_zone: &str) -> When {
    When::Cron { cron: cron.to_owned(), time_zone: time_zone.to_owned() }
}

/// The next fire times after `from`, as the wall clock of the zone shows them.
fn next(text: &str, time_zone: &str, from: &str, count: usize) -> Vec<String> {
    let zone: Tz = time_zone.parse().unwrap();
    let times = cron(text, time_zone).calendar().unwrap().next_times(moment(from), count);
    times.into_iter().map(|at| at.to_utc().with_timezone(&zone).format("%m-%d %H:%M:%S %z").to_string()).collect()
}

#[test]
fn a_moment_in_the_hour_that_spring_skips_fires_once_right_after_it() {
    assert_eq!(
        next("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", 3),
        ["03-28 02:30:00 +0100", "03-29 03:00:00 +0200", "03-30 02:30:00 +0200"]
    );
    assert_eq!(
        next("30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", 3),
        ["03-07 02:30:00 -0500", "03-08 03:00:00 -0400", "03-09 02:30:00 -0400"]
    );
}

#[test]
fn a_fire_time_is_one_also_around_the_hours_that_are_skipped_or_repeated() {
    for text in ["30 2 * * *", "0 2 * * *", "*/30 * * * *"] {
        let calendar = cron(text, "Europe/Berlin").calendar().unwrap();
        for from in ["2026-03-28T23:00:00Z", "2026-10-24T23:00:00Z"] {
            for at in calendar.next_times(moment(from), 8) {
                assert!(calendar.fires_at(at) && !calendar.fires_at(at.shifted(1)), "{text} at {at}");
            }
        }
    }
}

#[test]
fn a_moment_in_the_hour_that_autumn_repeats_fires_once() {
    assert_eq!(
        next("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
        ["10-25 02:30:00 +0200", "10-26 02:30:00 +0100"]
    );
    assert_eq!(
        next("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", 2),
        ["11-01 01:30:00 -0400", "11-02 01:30:00 -0500"]
    );
}

#[test]
fn what_follows_the_clock_fires_in_both_of_the_hours_that_are_one_and_not_in_the_skipped_one() {
    assert_eq!(
        next("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:15:00Z", 4),
        ["10-25 02:30:00 +0200", "10-25 02:00:00 +0100", "10-25 02:30:00 +0100", "10-25 03:00:00 +0100"]
    );
    assert_eq!(
        next("0 * * * *", "America/New_York", "2026-03-08T05:30:00Z", 3),
        ["03-08 01:00:00 -0500", "03-08 03:00:00 -0400", "03-08 04:00:00 -0400"]
    );
}

#[test]
fn a_leap_day_comes_every_four_years_and_not_in_2100() {
    let times = cron("0 0 29 2 *", "UTC").calendar().unwrap().next_times(moment("2092-03-01T00:00:00Z"), 3);
    let years: Vec<String> = times.iter().map(|at| at.to_string()[..10].to_owned()).collect();
    assert_eq!(years, ["2096-02-29", "2104-02-29", "2108-02-29"]);
}

#[test]
fn the_last_day_the_nearest_weekday_and_the_nth_one_can_be_named() {
    let from = "2026-01-06T12:00:00Z";
    assert_eq!(next("0 0 L * *", "UTC", from, 2), ["01-31 00:00:00 +0000", "02-28 00:00:00 +0000"]);
    assert_eq!(next("0 0 15W * *", "UTC", from, 2), ["01-15 00:00:00 +0000", "02-16 00:00:00 +0000"]);
    assert_eq!(next("0 0 * * MON#1", "UTC", from, 2), ["02-02 00:00:00 +0000", "03-02 00:00:00 +0000"]);
    assert_eq!(next("0 0 * * FRI#L", "UTC", from, 2), ["01-30 00:00:00 +0000", "02-27 00:00:00 +0000"]);
    assert_eq!(next("0 0 13 * +FRI", "UTC", from, 1), ["02-13 00:00:00 +0000"], "both, not either");
    assert_eq!(next("15 30 8 * * *", "UTC", from, 1), ["01-07 08:30:15 +0000"], "six fields have seconds first");
}

#[test]
fn what_never_fires_or_cannot_be_read_is_refused_by_its_field() {
    let now = moment("2026-01-01T00:00:00Z");
    let refused = |when: When| when.calendar_that_fires(now).unwrap_err();
    for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 29 2 +MON#1", "", "* * * *", "61 * * * *", "0 0 1 1 * * 2030"]
    {
        assert_eq!(refused(cron(text, "UTC")).field, "cron", "{text}");
    }
    assert_eq!(refused(cron(&"*".repeat(300), "UTC")).field, "cron");
    for text in ["0 9 * MON-FRI *", "0 9 * * JAN", "0 MON * * *", "0 9 * mon-jun *", "0 9 * 1FEB *", "0 9 * * */MON"] {
        let why = refused(cron(text, "UTC"));
        assert!(why.field == "cron" && why.detail.contains("weekdays SUN to SAT"), "{text}: {}", why.detail);
        assert!(cron(text, "UTC").calendar().is_ok(), "one that is stored goes on: {text}");
    }
    for text in
        ["0 9 * jan-Dec/2 mon-FRI", "0 9 * JUL +SAT,SUN", "0 9 * * FRI#2,FRIL,MON#L", "0 0 9 LW DEC *", "@monthly"]
    {
        cron(text, "UTC").calendar_that_fires(now).expect(text);
    }
    for zone in ["", "Berlin", "Europe/Bonn", "+01:00"] {
        assert_eq!(refused(cron("* * * * *", zone)).field, "time_zone", "{zone}");
    }
    for every_ms in [-1, 0, 999, MAX_EVERY_MS + 1] {
        assert_eq!(refused(When::Every { every_ms }).field, "every_ms", "{every_ms}");
    }
}

/// A case of the fuzz target `cron`: the search for the next fire time took minutes.
#[test]
fn a_field_with_an_empty_item_is_refused_and_not_searched_for() {
    for text in
        ["0 , * * * *", ", * * * *", "* , * * *", "0 0 , * *", "0 0 * , *", "0 0 * * ,", "1,,2 * * * *", "1, * * * *"]
    {
        let refused = cron(text, "UTC").calendar().unwrap_err();
        assert!(refused.field == "cron" && refused.detail.contains("empty item"), "{text}: {}", refused.detail);
    }
    for text in ["@daily", "0,30 8-10 * JAN,MAR *", "0 0 L * ?", "0 0 15W * *", "0 0 * * MON#2,FRI"] {
        cron(text, "UTC").calendar().unwrap();
    }
}

#[test]
fn every_so_often_counts_from_1970_whenever_it_was_set() {
    let calendar = When::Every { every_ms: 1_500 }.calendar().unwrap();
    let times = calendar.next_times(UnixMicros::new(1), 3);
    assert_eq!(times.iter().map(|at| at.millis()).collect::<Vec<_>>(), [1_500, 3_000, 4_500]);
    assert_eq!(calendar.next_after(UnixMicros::new(-1)), Some(UnixMicros::new(0)));
    assert_eq!(calendar.next_after(UnixMicros::LAST), None);
}

fn any_cron() -> impl Strategy<Value = String> {
    let part = |most: u32| {
        prop_oneof![
            Just("*".to_owned()),
            (0..=most).prop_map(|n| n.to_string()),
            (1..=most.max(1)).prop_map(|step| format!("*/{step}")),
            (0..=most, 0..=most).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        ]
    };
    (part(59), part(59), part(23)).prop_map(|(second, minute, hour)| format!("{second} {minute} {hour} * * *"))
}

proptest! {
    #[test]
    fn fire_times_rise_and_none_lies_between_two(
        text in any_cron(),
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
        from in 1_700_000_000_000_000_i64..1_900_000_000_000_000,
        part in 0.0..1.0_f64,
    ) {
        let calendar = cron(&text, zone).calendar().unwrap();
        let from = UnixMicros::new(from);
        let times = calendar.next_times(from, 4);
        prop_assert_eq!(times.len(), 4);
        prop_assert!(times[0] > from && times.windows(2).all(|pair| pair[0] < pair[1]));
        // It is the next fire time from every moment since the previous one.
        let gap_us = times[1].since(times[0]).as_micros() as f64;
        let between = UnixMicros::new(times[0].micros() + (gap_us * part) as i64);
        prop_assert_eq!(calendar.next_after(between), Some(times[1]));
        prop_assert!(times.iter().all(|at| calendar.fires_at(*at)));
    }
}

#[test]
fn what_fired_last_is_what_would_have_come_next() {
    let now = moment("2026-11-21T12:00:00Z");
    for when in [cron("*/20 3-5 * * 1", "Europe/Berlin"), cron("5 0 1 * * *", "UTC"), When::Every { every_ms: 7_000 }] {
        let calendar = when.calendar().unwrap();
        let mut last = calendar.last_times(now, 5);
        last.reverse();
        assert_eq!(last, calendar.next_times(last[0].shifted(-1), 5), "{when:?}");
        assert!(last[4] < now && calendar.next_after(last[4]).is_some_and(|next| next >= now));
    }
    assert_eq!(When::Every { every_ms: 1_000 }.calendar().unwrap().last_times(now, 1), [now.shifted(-1_000)]);
}

#[test]
fn an_expression_is_told_in_words_and_its_times_on_its_own_clocks() {
    let calendar = cron("30 2 * * 1-5", "Europe/Berlin").calendar().unwrap();
    assert_eq!(calendar.words().unwrap(), "At 02:30, on Monday, Tuesday, Wednesday, Thursday, and Friday.");
    assert_eq!(calendar.on_the_clock(moment("2026-07-01T00:30:00Z")), "2026-07-01 02:30:00 CEST");
    assert_eq!(When::Every { every_ms: 1_000 }.calendar().unwrap().words(), None);
}
