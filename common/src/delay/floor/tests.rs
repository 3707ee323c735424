use super::*;

const OLDEST: UnixMicros = UnixMicros::new(1_000_000);
const SECOND: Duration = Duration::from_secs(1);

/// A floor at `OLDEST`, until ten seconds from `now`.
fn floor(now: Instant) -> Floor {
    let mut floor = Floor::default();
    floor.was_slow(now);
    assert_eq!(floor.begin(now), LookFrom::Head);
    floor.read_head(OLDEST, SECOND, now + SECOND);
    floor
}

#[test]
fn a_queue_has_a_floor_once_a_look_was_slow_and_until_a_read_from_the_head_is_quick() {
    let now = Instant::now();
    assert_eq!(Floor::default().begin(now), LookFrom::Everywhere);
    let mut floor = floor(now);
    assert_eq!((floor.begin(now + 9 * SECOND), floor.get()), (LookFrom::Floor(OLDEST), Some(OLDEST)));
    floor.raise(OLDEST.plus(SECOND));
    assert_eq!(floor.begin(now + 9 * SECOND), LookFrom::Floor(OLDEST.plus(SECOND)));
    assert_eq!(floor.begin(now + 10 * SECOND), LookFrom::Head);
    floor.read_head(OLDEST.plus(SECOND), QUICK_READ, now + 10 * SECOND);
    assert_eq!((floor.is_needed(), floor.get()), (false, None));
}

#[test]
fn a_task_that_becomes_ready_lowers_the_floor_whenever_a_look_ends() {
    let now = Instant::now();
    let mut floor = floor(now);
    let (early, late) = (OLDEST.minus(SECOND), OLDEST.plus(SECOND));
    floor.begin(now);
    floor.lower(early);
    floor.raise(late);
    assert_eq!(floor.begin(now), LookFrom::Floor(early), "the read came before the task");
    floor.lower(late.plus(SECOND));
    assert_eq!(floor.begin(now), LookFrom::Floor(early));
}

#[test]
fn a_read_from_the_head_that_runs_out_of_time_keeps_the_floor_or_makes_one_a_while_ago() {
    let now = Instant::now();
    let database_now = OLDEST.plus(1_000 * SECOND);
    let mut floor = floor(now);
    floor.ran_out_of_time(database_now, 5 * SECOND, now);
    assert_eq!(floor.begin(now + 44 * SECOND), LookFrom::Floor(OLDEST));
    floor.raise(database_now);
    floor.ran_out_of_time(database_now, 5 * SECOND, now);
    let a_while_ago = database_now.minus(LOOK_BACK);
    assert_eq!(floor.begin(now), LookFrom::Floor(a_while_ago), "the answer to a claim may have been lost");
    let mut first = Floor::default();
    first.was_slow(now);
    first.ran_out_of_time(database_now, 5 * SECOND, now);
    assert_eq!(first.begin(now), LookFrom::Floor(a_while_ago));
}

#[test]
fn tasks_of_unknown_due_times_are_found_from_the_head_and_the_floor_is_kept() {
    let now = Instant::now();
    let mut floor = floor(now);
    assert_eq!(floor.begin(now), LookFrom::Floor(OLDEST));
    floor.doubt();
    floor.raise(OLDEST);
    assert_eq!(floor.begin(now), LookFrom::Head, "they came while a look was under way");
    floor.ran_out_of_time(OLDEST.plus(1_000 * SECOND), 5 * SECOND, now);
    assert_eq!(floor.begin(now), LookFrom::Floor(OLDEST));
    let mut none = Floor::default();
    none.doubt();
    assert_eq!(none.begin(now), LookFrom::Everywhere);
}
