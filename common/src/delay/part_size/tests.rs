use super::*;

/// Payloads that may be what takes long.
const HEAVY: i64 = LIGHT_BYTES + 1;

/// The time of a statement, and for how long after it messages may be sent.
const TIME: Duration = Duration::from_secs(5);

/// The sizes after statements in a row that have all tasks that they may have, and take so long for each.
fn sizes(size: &mut PartSize, statements: usize, each: Duration, now: Instant) -> Vec<usize> {
    let end = |_| {
        let tasks = size.most(500);
        let took = each * u32::try_from(tasks).unwrap();
        if took > TIME {
            size.ran_out_of_time(tasks, 500, now, now);
        } else {
            size.passed(tasks, HEAVY, took, TIME, now);
        }
        size.most(500)
    };
    (0..statements).map(end).collect()
}

/// The sizes of statements, one at a time, that have all tasks that they may have, and whose answers come after so long
/// for each.
fn answers(statements: u32, each: Duration, hold: Duration, now: Instant) -> Vec<usize> {
    let (mut size, mut began) = (PartSize::default(), now);
    let answer = |_| {
        let tasks = size.most(500);
        let took = each * u32::try_from(tasks).unwrap();
        let ended = began + took;
        if PartSize::is_too_late(took, HEAVY, hold) {
            size.came_too_late(tasks, HEAVY, ended);
        } else {
            size.passed(tasks, HEAVY, took, hold, ended);
        }
        began = ended;
        tasks
    };
    (0..statements).map(answer).collect()
}

#[test]
fn tasks_whose_answer_comes_too_late_to_be_sent_come_in_halves_and_stay_as_few_as_come_in_time() {
    let now = Instant::now();
    for (hold, each_us) in [(TIME, 13_000), (TIME, 20_000), (TIME * 2 / 5, 3_500), (TIME * 2 / 5, 40_000)] {
        let each = Duration::from_micros(each_us);
        let late = |tasks: &usize| PartSize::is_too_late(each * u32::try_from(*tasks).unwrap(), HEAVY, hold);
        let sizes = answers(200, each, hold, now);
        let halved = sizes.iter().take_while(|tasks| late(tasks)).count();
        assert!((1..=6).contains(&halved), "{halved} answers came too late for {hold:?}");
        assert!(!sizes[halved..].iter().any(late), "they grew until they were too late again: {sizes:?}");
        assert!(sizes.last() >= sizes.get(halved), "{sizes:?}");
    }
}

#[test]
fn a_few_tasks_whose_answer_comes_too_late_come_in_halves_at_once_and_answers_under_way_together_count_once() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    (0..4).for_each(|_| size.came_too_late(12, HEAVY, now));
    assert_eq!(size.most(500), 6);
    size.came_too_late(100, HEAVY, now);
    assert_eq!(size.most(500), 6, "it was under way before");
    size.came_too_late(1, HEAVY, now);
    assert_eq!(size.most(500), 6, "it cannot be divided");
    size.came_too_late(3, HEAVY, now);
    assert_eq!(size.most(500), 1);
}

#[test]
fn few_bytes_are_late_only_if_none_can_be_sent_and_leave_statements_of_a_few_tasks() {
    assert!(!PartSize::is_too_late(TIME, LIGHT_BYTES, TIME) && PartSize::is_too_late(TIME, HEAVY, TIME));
    assert!(PartSize::is_too_late(TIME + Duration::from_millis(1), LIGHT_BYTES, TIME));
    let (mut size, now) = (PartSize::default(), Instant::now());
    let mut late = || {
        size.came_too_late(size.most(500), LIGHT_BYTES, now);
        size.most(500)
    };
    assert_eq!([0; 7].map(|_| late()), [250, 125, 62, 31, FEW, FEW, FEW]);
    assert_eq!(sizes(&mut size, 2, Duration::from_millis(1), now + REST), [32, 64]);
    size.came_too_late(12, LIGHT_BYTES, now + REST);
    assert_eq!(sizes(&mut size, 1, Duration::from_millis(1), now + REST), [128], "so few are not what took long");
}

#[test]
fn tasks_that_run_out_of_time_together_come_in_halves_and_what_is_quick_soon_has_all_of_them_again() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    let (heavy, light) = (Duration::from_millis(200), Duration::from_millis(1));
    assert_eq!(sizes(&mut size, 7, heavy, now), [250, 125, 62, 31, 15, 15, 15]);
    assert_eq!(sizes(&mut size, 2, light, now), [FEW, FEW], "the others come again meanwhile");
    assert_eq!(sizes(&mut size, 6, light, now + REST), [32, 64, 128, 256, 500, 500]);
}

#[test]
fn a_few_tasks_that_run_out_of_time_together_come_in_halves_too() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    (0..9).for_each(|_| size.ran_out_of_time(2, 500, now, now));
    assert_eq!(size.most(500), 1);
}

#[test]
fn slow_statements_grow_slowly() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    size.ran_out_of_time(20, 20, now, now);
    assert_eq!(sizes(&mut size, 2, Duration::from_millis(150), now), [10, 10], "not before a while");
    assert_eq!(sizes(&mut size, 5, Duration::from_millis(150), now + REST), [12, 14, 16, 18, 18], "half is left");
}

#[test]
fn statements_that_were_under_way_together_count_once_and_a_single_task_not_at_all() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    size.ran_out_of_time(1, 500, now, now + TIME);
    assert_eq!(size.most(500), 500);
    (0..4).for_each(|_| size.ran_out_of_time(500, 500, now, now + TIME));
    assert_eq!(size.most(500), 250);
}

#[test]
fn an_outage_halves_the_bound_whatever_the_statements_are_and_a_few_tasks_come_together_as_soon_as_it_is_over() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    let mut after = |tries: std::ops::Range<u32>| {
        for number in tries {
            let began = now + TIME * number;
            [3, 500, 3, 17].into_iter().for_each(|tasks| size.ran_out_of_time(tasks, 500, began, began + TIME));
        }
        size
    };
    assert_eq!(after(0..1).most(500), 250);
    assert_eq!(after(1..3).most(500), 62);
    let mut size = after(3..20);
    assert_eq!(size.most(500), 1);
    let (light, over) = (Duration::from_millis(1), now + TIME * 20);
    assert_eq!(sizes(&mut size, 5, light, over), [2, 4, 8, FEW, FEW]);
    assert_eq!(sizes(&mut size, 5, light, over + REST), [32, 64, 128, 256, 500]);
}

#[test]
fn a_few_heavy_tasks_are_halved_although_light_ones_pass_beside_them() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    let mut began = now;
    let mut heavy = || {
        let tasks = size.most(12);
        size.ran_out_of_time(tasks, 500, began, began + TIME);
        began += TIME;
        (0..5).for_each(|_| size.passed(size.most(500), HEAVY, Duration::from_millis(1), TIME, began));
        tasks
    };
    assert_eq!([0; 9].map(|_| heavy()), [12, 12, 12, 12, 12, 12, 8, 4, 2]);
}

#[test]
fn small_statements_that_pass_say_nothing_about_larger_ones() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    size.ran_out_of_time(500, 500, now, now);
    size.passed(125, HEAVY, Duration::ZERO, TIME, now + REST);
    assert_eq!(size.most(500), 250);
    size.passed(126, HEAVY, Duration::ZERO, TIME, now + REST);
    assert_eq!(size.most(500), 500);
}

/// As after an outage. Otherwise the database would have one task a statement for as long as it is slow.
#[test]
fn a_database_that_is_slow_whatever_it_does_soon_has_a_few_tasks_a_statement_again() {
    let began = Instant::now();
    for (bytes, most) in [(LIGHT_BYTES, FEW), (HEAVY, 1)] {
        let mut size = PartSize::default();
        for nth in 0..9 {
            let at = began + TIME * nth;
            size.ran_out_of_time(size.most(500), 500, at, at + TIME);
        }
        assert_eq!(size.most(500), 1);
        let now = began + TIME * 9 + REST;
        (0..100).for_each(|_| size.passed(size.most(500), bytes, TIME / 5 * 3, TIME, now));
        assert_eq!(size.most(500), most);
    }
}
