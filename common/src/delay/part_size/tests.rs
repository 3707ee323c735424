use super::*;

/// The sizes after statements in a row that have all tasks that they may have, and take so long for each.
fn sizes(size: &mut PartSize, statements: usize, each: Duration, now: Instant) -> Vec<usize> {
    let end = |_| {
        let tasks = size.most(500);
        let took = each * u32::try_from(tasks).unwrap();
        if took > Duration::from_secs(5) {
            size.ran_out_of_time(tasks, now);
        } else {
            size.passed(tasks, took, now);
        }
        size.most(500)
    };
    (0..statements).map(end).collect()
}

#[test]
fn tasks_that_run_out_of_time_together_come_in_halves_and_what_is_quick_soon_has_all_of_them_again() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    let (heavy, light) = (Duration::from_millis(300), Duration::from_millis(1));
    assert_eq!(sizes(&mut size, 7, heavy, now), [250, 125, 62, 31, 15, 15, 15]);
    assert_eq!(sizes(&mut size, 2, light, now), [15, 15], "the others come again meanwhile");
    assert_eq!(sizes(&mut size, 6, light, now + REST), [30, 60, 120, 240, 480, 500]);
}

#[test]
fn slow_statements_grow_slowly() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    size.ran_out_of_time(20, now);
    assert_eq!(sizes(&mut size, 3, Duration::from_millis(300), now + REST), [12, 14, 16]);
}

#[test]
fn statements_that_were_under_way_together_count_once_and_a_single_task_not_at_all() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    size.ran_out_of_time(1, now);
    assert_eq!(size.most(500), 500);
    (0..4).for_each(|_| size.ran_out_of_time(500, now));
    assert_eq!(size.most(500), 250);
    size.ran_out_of_time(3, now);
    assert_eq!(size.most(500), 1);
}

#[test]
fn small_statements_say_nothing_about_larger_ones() {
    let (mut size, now) = (PartSize::default(), Instant::now());
    size.ran_out_of_time(500, now);
    size.passed(125, Duration::ZERO, now + REST);
    assert_eq!(size.most(500), 250);
    size.passed(126, Duration::ZERO, now + REST);
    assert_eq!(size.most(500), 500);
}
