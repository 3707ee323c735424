use proptest::prelude::*;

use super::*;
use crate::{ids::QueueName, schedule::When};

const SECOND_US: i64 = 1_000_000;

fn at(second: i64) -> UnixMicros {
    UnixMicros::new(second * SECOND_US)
}

fn rules(overlap: Overlap, every_s: i64, catch_up_ms: i64) -> Rules {
    Rules {
        queue: QueueName::new("q"),
        when: When::Every { every_ms: every_s * 1_000 },
        overlap,
        catch_up_ms,
        content_type: "application/json".to_owned(),
        headers: Default::default(),
        priority: 3,
        partition_key: None,
        max_attempts: None,
        timeout_ms: None,
        retry: None,
        expires_after_ms: None,
    }
}

fn standing(next_s: i64) -> ScheduleState {
    ScheduleState { next_at: Some(at(next_s)), since: at(0), paused_at: None, buffered_at: None }
}

fn take(rules: &Rules, standing: ScheduleState, unfinished: bool, now_s: i64) -> FireDecision {
    FireDecision::decide(rules, &rules.when.calendar().unwrap(), standing, unfinished, at(now_s))
}

fn seconds(turn: &FireDecision) -> Vec<i64> {
    turn.fires.iter().map(|fire| fire.at.micros() / SECOND_US).collect()
}

#[test]
fn a_fire_time_is_decided_a_little_ahead_and_the_next_look_is_ahead_of_the_next() {
    let rules = rules(Overlap::Allow, 10, 60_000);
    let early = take(&rules, standing(100), false, 96);
    assert_eq!((seconds(&early), early.wake_at), (vec![], Some(at(97))));
    let turn = take(&rules, standing(100), false, 97);
    assert_eq!(seconds(&turn), [100]);
    assert_eq!((turn.state.next_at, turn.state.since, turn.wake_at), (Some(at(110)), at(100), Some(at(107))));
}

#[test]
fn while_the_last_task_is_unfinished_a_fire_time_is_not_decided_ahead() {
    for overlap in [Overlap::Skip, Overlap::BufferOne] {
        let rules = rules(overlap, 10, 60_000);
        let ahead = take(&rules, standing(100), true, 98);
        assert_eq!((seconds(&ahead), ahead.skipped, ahead.state.next_at), (vec![], 0, Some(at(100))));
        assert!(ahead.wake_at.is_some_and(|wake_at| wake_at > at(98) && wake_at <= at(100)));
        assert_eq!(seconds(&take(&rules, ahead.state, false, 99)), [100], "it has finished in between");
    }
}

#[test]
fn skip_makes_nothing_while_the_last_task_is_unfinished() {
    let turn = take(&rules(Overlap::Skip, 10, 60_000), standing(100), true, 100);
    assert_eq!((seconds(&turn), turn.skipped, turn.state.next_at), (vec![], 1, Some(at(110))));
}

#[test]
fn without_a_master_skip_leaves_out_no_fire_time_of_the_shortest_interval() {
    let rules = rules(Overlap::Skip, 1, 60_000);
    let calendar = rules.when.calendar().unwrap();
    for begins_ms in (0..1_000).step_by(50) {
        let mut now = at(1_000).shifted(begins_ms);
        let (mut state, mut fires, mut skipped) = (ScheduleState::new(&calendar, now), 0, 0);
        while now < at(1_060) {
            let turn = FireDecision::decide(&rules, &calendar, state, false, now);
            (state, fires, skipped) = (turn.state, fires + turn.fires.len(), skipped + turn.skipped);
            // The statements of a look take a while.
            now = turn.wake_at.expect("it goes on").plus(STAND_IN_AFTER).plus(Duration::from_millis(50));
        }
        assert!(skipped == 0 && fires >= 59, "of those after {begins_ms} ms: {fires} fired, {skipped} skipped");
    }
}

#[test]
fn buffer_one_keeps_the_first_and_makes_it_as_soon_as_the_last_task_is_finished() {
    let rules = rules(Overlap::BufferOne, 10, 60_000);
    let first = take(&rules, standing(100), true, 100);
    assert_eq!((first.state.buffered_at, first.skipped), (Some(at(100)), 0));
    assert_eq!(first.wake_at, Some(at(100).plus(CHECK_AGAIN)));
    let second = take(&rules, first.state, true, 110);
    assert_eq!((second.state.buffered_at, second.skipped, second.fires.len()), (Some(at(100)), 1, 0));
    let done = take(&rules, second.state, false, 114);
    assert_eq!(done.fires, [Fire { at: at(100), buffered: true }]);
    assert_eq!((done.state.buffered_at, done.state.next_at), (None, Some(at(120))));
}

#[test]
fn a_buffered_fire_time_checks_the_less_often_the_longer_it_has_waited() {
    let waiting = ScheduleState { next_at: None, buffered_at: Some(at(100)), ..standing(100) };
    for (waited_s, pause_ms) in [(0, 500), (50, 500), (200, 2_000), (86_400, 10_000)] {
        let now = at(100 + waited_s);
        assert_eq!(waiting.wake_at(now), Some(now.shifted(pause_ms)), "after {waited_s} s");
    }
}

#[test]
fn what_was_missed_is_made_up_when_it_is_not_too_old() {
    let turn = take(&rules(Overlap::Allow, 10, 30_000), standing(100), false, 155);
    assert_eq!((seconds(&turn), turn.missed), (vec![130, 140, 150], 3));
    let turn = take(&rules(Overlap::BufferOne, 10, 30_000), standing(100), false, 155);
    assert_eq!((seconds(&turn), turn.state.buffered_at), (vec![130], Some(at(140))));
    assert_eq!((turn.skipped, turn.missed), (1, 3));
}

#[test]
fn of_very_many_the_newest_are_made_up_and_counting_is_bounded() {
    let newest: Vec<i64> = (1_000_004 - i64::try_from(MAX_MADE_UP).unwrap()..1_000_004).collect();
    let cron = When::Cron { cron: "* * * * * *".to_owned(), time_zone: "UTC".to_owned() };
    // Most are too old to be made up, or half of them are, or none is.
    for catch_up_ms in [3_600_000, 500_000_000, 2_000_000_000] {
        let every = rules(Overlap::Allow, 1, catch_up_ms);
        for rules in [Rules { when: cron.clone(), ..every.clone() }, every] {
            let turn = take(&rules, standing(1), false, 1_000_000);
            assert_eq!(seconds(&turn), newest);
            assert!(turn.missed >= MAX_MISSED_COUNTED && turn.missed < 20_000, "{}", turn.missed);
            assert_eq!((turn.state.next_at, turn.state.since), (Some(at(1_000_004)), at(1_000_003)));
        }
    }
}

#[test]
fn a_pause_stops_what_has_not_come_and_is_not_made_up() {
    let rules = rules(Overlap::Allow, 10, 3_600_000);
    let calendar = rules.when.calendar().unwrap();
    let mut paused = standing(100);
    paused.pause(at(95));
    assert_eq!((paused.next_at, paused.wake_at(at(95))), (None, None));
    paused.resume(&calendar, at(205));
    assert_eq!((paused.next_at, paused.paused_at), (Some(at(210)), None));

    // Fire times from before the pause still get tasks, later ones do not.
    let mut paused = standing(100);
    paused.pause(at(105));
    let turn = take(&rules, paused, false, 150);
    assert_eq!((seconds(&turn), turn.missed, turn.wake_at), (vec![100], 0, None));
    let mut several = ScheduleState { paused_at: Some(at(125)), ..paused };
    for state in [&mut paused, &mut several] {
        state.resume(&calendar, at(205));
    }
    let turn = take(&rules, paused, false, 205);
    assert_eq!((seconds(&turn), turn.missed, turn.state.next_at), (vec![100], 0, Some(at(210))));
    assert_eq!(seconds(&take(&rules, several, false, 205))[..3], [100, 110, 120], "none is left out");
}

#[test]
fn the_next_look_at_a_fire_time_that_is_long_overdue_is_no_older_than_looks_begin() {
    let now = at(10_000);
    let mut overdue = standing(100);
    let oldest = Some(now.minus(MOST_OVERDUE));
    assert_eq!(overdue.wake_at(now), oldest);
    overdue.pause(now);
    assert_eq!(overdue.wake_at(now), oldest);
    assert_eq!(standing(9_990).wake_at(now), Some(at(9_987)));
}

#[test]
fn a_fire_time_decided_ahead_does_not_come_back_by_a_pause_or_a_change() {
    let rules = rules(Overlap::Allow, 10, 60_000);
    let calendar = rules.when.calendar().unwrap();
    let mut changed = take(&rules, standing(100), false, 98).state;
    let mut resumed = changed;
    changed.change(&calendar, at(98));
    assert_eq!(changed.next_at, Some(at(110)));
    resumed.pause(at(98));
    resumed.resume(&calendar, at(99));
    assert_eq!(resumed.next_at, Some(at(110)));
}

#[test]
fn a_change_leaves_what_has_come_and_counts_from_then_on() {
    let new = rules(Overlap::Allow, 7, 60_000);
    let mut changed = standing(100);
    changed.change(&new.when.calendar().unwrap(), at(104));
    let turn = take(&new, changed, false, 120);
    assert_eq!(seconds(&turn), [100, 105, 112, 119]);
    assert_eq!(turn.missed, 0);
}

#[test]
fn after_the_clock_was_set_back_by_a_day_fire_times_go_on_at_once() {
    let rules = rules(Overlap::Allow, 10, 60_000);
    let calendar = rules.when.calendar().unwrap();
    let ahead = ScheduleState { since: at(86_500), ..standing(86_510) };
    let expected = ScheduleState { since: at(104), ..standing(110) };
    let [mut corrected, mut changed, mut resumed, mut running] = [ahead; 4];
    assert!(corrected.correct(&calendar, at(104)));
    changed.change(&calendar, at(104));
    resumed.pause(at(103));
    assert_eq!(resumed.next_at, None);
    resumed.resume(&calendar, at(104));
    running.resume(&calendar, at(104));
    assert_eq!([corrected, changed, resumed, running], [expected; 4]);

    let mut paused = ScheduleState { paused_at: Some(at(86_505)), ..ahead };
    assert!(paused.correct(&calendar, at(104)));
    assert_eq!((paused.next_at, paused.since), (None, at(104)));
    // What was decided ahead is no sign of it, nor is a server whose clock is a minute behind.
    let mut decided = ScheduleState { since: at(100), ..standing(110) };
    assert!(!decided.correct(&calendar, at(37)));
    assert_eq!(decided.next_at, Some(at(110)));
}

#[test]
fn a_clock_that_was_ahead_is_noticed_although_it_only_missed_fire_times() {
    let rules = rules(Overlap::Allow, 3_600, 60_000);
    let before = ScheduleState { since: at(43_200), ..standing(46_800) };
    let ahead = take(&rules, before, false, 45_000 + 86_400);
    assert_eq!((seconds(&ahead), ahead.missed), (vec![], 24));
    let mut corrected = ahead.state;
    assert!(corrected.correct(&rules.when.calendar().unwrap(), at(45_030)));
    assert_eq!(corrected, ScheduleState { since: at(45_030), ..standing(46_800) });
}

#[test]
fn a_fire_time_that_the_calendar_does_not_have_any_more_does_not_fire() {
    let rules = rules(Overlap::Allow, 10, 60_000);
    let calendar = rules.when.calendar().unwrap();
    let stale = ScheduleState { next_at: Some(at(100).shifted(500)), since: at(90), ..standing(0) };
    let turn = take(&rules, stale, false, 101);
    assert_eq!((turn.fires, turn.state.next_at), (vec![Fire { at: at(100), buffered: false }], Some(at(110))));

    let mut corrected = stale;
    assert!(corrected.correct(&calendar, at(91)) && !corrected.correct(&calendar, at(91)));
    assert_eq!(corrected, ScheduleState { since: at(90), ..standing(100) });
    // A change has left it: it had come before.
    let mut left = ScheduleState { since: at(101), ..stale };
    assert!(!left.correct(&calendar, at(101)));
    assert_eq!(take(&rules, left, false, 101).fires[0].at, at(100).shifted(500));
}

#[test]
fn the_next_fire_times_are_those_that_come() {
    let rules = rules(Overlap::Allow, 10, 60_000);
    let calendar = rules.when.calendar().unwrap();
    let next = |standing: ScheduleState, last_s: Option<i64>, now_s| {
        let times = standing.next_times(&calendar, last_s.map(at), at(now_s), 3);
        times.into_iter().map(|at| at.micros() / SECOND_US).collect::<Vec<_>>()
    };
    let decided = ScheduleState { since: at(107), ..standing(110) };
    assert_eq!(next(decided, Some(107), 104), [107, 110, 120], "a former calendar has decided 107");
    assert_eq!(next(ScheduleState { since: at(120), ..standing(130) }, Some(120), 104), [110, 120, 130]);
    assert_eq!(next(ScheduleState { since: at(110), ..standing(120) }, None, 104), [120, 130, 140]);
    assert_eq!(next(standing(110), Some(100), 115), [120, 130, 140], "110 has come");
    assert_eq!(next(standing(110), Some(86_500), 105), [110, 120, 130], "the clock was set back");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Look { unfinished: bool },
    Pause,
    Resume,
}

proptest! {
    /// However often the schedule is looked at, paused and resumed: no fire time is decided twice. Without a pause
    /// none is left out.
    #[test]
    fn every_fire_time_is_decided_once(
        overlap in prop::sample::select(vec![Overlap::Skip, Overlap::BufferOne, Overlap::Allow]),
        every_s in 1_i64..20,
        steps in prop::collection::vec((0_i64..40, prop_oneof![
            8 => any::<bool>().prop_map(|unfinished| Event::Look { unfinished }),
            1 => Just(Event::Pause),
            1 => Just(Event::Resume),
        ]), 1..60),
    ) {
        let rules = rules(overlap, every_s, 86_400_000);
        let calendar = rules.when.calendar().unwrap();
        let (mut now, mut standing) = (at(1_000), ScheduleState::new(&calendar, at(1_000)));
        let (mut fired, mut none_made, mut pauses) = (Vec::new(), 0, 0);
        for (step_s, event) in steps {
            now = now.plus(Duration::from_secs(step_s.unsigned_abs()));
            match event {
                Event::Look { unfinished } => {
                    let turn = FireDecision::decide(&rules, &calendar, standing, unfinished, now);
                    prop_assert!(overlap == Overlap::Allow || turn.fires.len() <= 1);
                    prop_assert!(turn.wake_at.is_none_or(|wake_at| wake_at > now), "the search would never end");
                    fired.extend(turn.fires.iter().map(|fire| fire.at));
                    none_made += usize::try_from(turn.skipped + turn.missed).unwrap();
                    standing = turn.state;
                }
                Event::Pause => {
                    standing.pause(now);
                    pauses += 1;
                }
                Event::Resume => standing.resume(&calendar, now),
            }
        }
        let mut distinct = fired.clone();
        distinct.sort();
        distinct.dedup();
        prop_assert_eq!(distinct.len(), fired.len(), "twice: {:?}", fired);
        if pauses == 0 {
            let end = standing.next_at.unwrap();
            let all = calendar.next_times(at(1_000), 3_000).into_iter().filter(|at| *at < end).count();
            let waiting = usize::from(standing.buffered_at.is_some());
            prop_assert_eq!(fired.len() + none_made + waiting, all);
        }
    }
}

#[test]
fn a_delivered_task_overlaps_only_while_a_report_is_due() {
    use crate::{queue::Settle, schedule::overlaps, task::TaskState};
    for settle in Settle::ALL {
        for state in TaskState::ALL.into_iter().filter(|state| !state.is_final()) {
            let expected = state != TaskState::Delivered || settle == Settle::Result;
            assert_eq!(overlaps(state, settle), expected, "{settle:?} {state}");
        }
    }
}
