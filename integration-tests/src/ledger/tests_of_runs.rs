//! Tests of the questions that long runs add: limits, fire times, the load, clocks, and the journal.

use super::{
    tests::{DUE_MS, Story, only},
    *,
};

impl Story {
    /// A task that has arrived, and the row that it left.
    pub(super) fn finished(&self) -> Row {
        let number = self.task();
        self.arrives(number, 1, DUE_MS + 10);
        row(number)
    }

    pub(super) fn ends_with(&self, rows: Vec<Row>) -> Verdict {
        self.ledger.tables(rows);
        self.ledger.judge()
    }

    fn fire(&self, task: &str, due_ms: i64) -> Row {
        self.ledger.delivered(Delivery {
            at_us: due_ms * 1_000 + 500,
            queue: "pulse".into(),
            message_id: format!("{task}:1"),
            task: task.into(),
            attempt: 1,
            due_ms: Some(due_ms),
            ..Delivery::default()
        });
        Row { task: task.into(), queue: "pulse".into(), due_us: due_ms * 1_000, number: None, ..row(0) }
    }
}

pub(super) fn row(number: Number) -> Row {
    Row {
        task: format!("t{number}"),
        queue: "q".into(),
        state: "succeeded".into(),
        attempt: 1,
        due_us: DUE_MS * 1_000,
        number: Some(number),
        ..Row::default()
    }
}

#[test]
fn more_in_work_than_the_limit_is_a_violation_and_a_copy_counts_once() {
    let story = Story::new();
    let ledger = &story.ledger;
    ledger.limit("lane", 2);
    for message in ["a:1", "b:1", "a:1"] {
        ledger.begins("lane", message);
    }
    ledger.ends("lane", "a:1");
    // A copy that RabbitMQ hands out again after its report.
    ledger.begins("lane", "a:1");
    ledger.begins("lane", "c:1");
    ledger.judge().assert_holds();
    ledger.begins("lane", "d:1");
    only(&ledger.judge(), |verdict| &mut verdict.limits);
}

#[test]
fn two_tasks_for_one_fire_time_are_a_violation() {
    let story = Story::new();
    story.ledger.fires("pulse", Duration::from_secs(1));
    story.fire("one", 1_000);
    story.fire("two", 2_000);
    story.ledger.judge().assert_holds();
    story.fire("three", 2_000);
    only(&story.ledger.judge(), |verdict| &mut verdict.fires);
}

#[test]
fn a_fire_time_without_a_task_is_a_violation() {
    let story = Story::new();
    story.ledger.fires("pulse", Duration::from_secs(1));
    let rows = vec![story.fire("one", 1_000), story.fire("three", 3_000)];
    only(&story.ends_with(rows), |verdict| &mut verdict.fires);
}

/// The fire times 1 to 3 s of a schedule that was in force in this span.
fn fires_between(from_ms: i64, until_ms: i64) -> Verdict {
    let story = Story::new();
    let (queue, every_us) = ("pulse".to_owned(), 1_000_000);
    story.ledger.record(Event::Fires { queue: queue.clone(), every_us, from_us: Some(from_ms * 1_000) });
    story.ledger.record(Event::FiresUntil { queue, at_us: until_ms * 1_000 });
    let rows = vec![story.fire("one", 1_000), story.fire("two", 2_000), story.fire("three", 3_000)];
    story.ends_with(rows)
}

#[test]
fn a_schedule_that_begins_late_or_ends_early_is_a_violation() {
    fires_between(-1_000, 33_000).assert_holds();
    only(&fires_between(-1_001, 33_000), |verdict| &mut verdict.fires);
    only(&fires_between(-1_000, 33_001), |verdict| &mut verdict.fires);
}

#[test]
fn a_schedule_without_any_row_is_a_violation() {
    let story = Story::new();
    story.ledger.fires("pulse", Duration::from_secs(1));
    only(&story.ends_with(Vec::new()), |verdict| &mut verdict.fires);
}

/// One submission with this answer, sent at 500 ms, while nothing was broken from 400 ms to a fault.
fn sent_in_calm(fault_ms: i64, answer: impl FnOnce(&Ledger, Number)) -> Verdict {
    let story = Story::new();
    story.ledger.record(Event::Calm { at_us: 400_000 });
    story.ledger.record(Event::Fault { what: "a fault".into(), at_us: fault_ms * 1_000 });
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.history.lock().entry(number).invoked_us = 500_000;
    answer(&story.ledger, number);
    story.ledger.judge()
}

#[test]
fn a_load_that_is_refused_while_nothing_is_broken_is_a_violation() {
    let accepted = |ledger: &Ledger, number| {
        ledger.taken(number);
        ledger.may_lapse(number);
    };
    only(&sent_in_calm(600, |ledger, number| ledger.refused(number)), |verdict| &mut verdict.others);
    only(&sent_in_calm(600, |ledger, number| ledger.unknown(number)), |verdict| &mut verdict.others);
    // Nothing was sent in time.
    only(&sent_in_calm(500, accepted), |verdict| &mut verdict.others);
    sent_in_calm(600, accepted).assert_holds();
}

#[test]
fn half_of_a_load_may_be_refused_on_purpose() {
    let story = Story::new();
    story.ledger.record(Event::Calm { at_us: 0 });
    story.arrives(story.task(), 1, DUE_MS);
    story.ledger.refused(story.ledger.submitting("q", DUE_MS));
    story.ledger.judge().assert_holds();
    story.ledger.refused(story.ledger.submitting("q", DUE_MS));
    only(&story.ledger.judge(), |verdict| &mut verdict.others);
}

/// As many submissions to another queue are accepted as there are to `queue`, of which so many are refused.
fn calm_with(sent: usize, refused: usize) -> Verdict {
    let story = Story::new();
    story.ledger.record(Event::Calm { at_us: 0 });
    for place in 0..sent {
        story.arrives(story.task(), 1, DUE_MS);
        let number = story.ledger.submitting("other", DUE_MS);
        if place < refused {
            story.ledger.refused(number);
        } else {
            story.ledger.taken(number);
            story.ledger.may_lapse(number);
        }
    }
    story.ledger.judge()
}

#[test]
fn a_queue_that_is_refused_as_a_whole_is_a_violation_beside_others_that_are_not() {
    only(&calm_with(30, 30), |verdict| &mut verdict.others);
    only(&calm_with(30, 16), |verdict| &mut verdict.others);
    calm_with(30, 15).assert_holds();
    // Too few to tell.
    calm_with(29, 29).assert_holds();
}

#[test]
fn of_many_submissions_a_seventh_may_be_refused_and_no_more() {
    only(&calm_with(300, 46), |verdict| &mut verdict.others);
    calm_with(300, 45).assert_holds();
    calm_with(299, 46).assert_holds();
}

#[test]
fn what_a_client_takes_back_itself_is_no_part_of_the_load_and_must_not_exist() {
    let story = Story::new();
    story.ledger.record(Event::Calm { at_us: 0 });
    story.arrives(story.task(), 1, DUE_MS);
    let numbers = [(); 2].map(|()| story.ledger.submitting("q", DUE_MS));
    numbers.iter().for_each(|number| story.ledger.withdrawn(*number));
    story.ledger.judge().assert_holds();
    story.arrives(numbers[0], 1, DUE_MS);
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);
}

/// A task that was due at 1 s arrives then. A calm begins 3 s before that, so its fault's grace of 1 s is over.
fn arrives_in_calm(at_ms: i64, prepare: impl FnOnce(&Story, Number)) -> Verdict {
    let story = Story::new();
    story.ledger.prompt("q");
    story.ledger.record(Event::Calm { at_us: -2_000_000 });
    let number = story.task();
    story.ledger.history.lock().entry(number).accepted_us = 500_000;
    prepare(&story, number);
    story.ledger.history.lock().entry(number).invoked_us = 500_000;
    story.arrives(number, 1, at_ms);
    story.ledger.judge()
}

#[test]
fn a_task_that_waits_while_nothing_is_broken_is_late() {
    only(&arrives_in_calm(DUE_MS + 15_001, |_, _| {}), |verdict| &mut verdict.late);
    arrives_in_calm(DUE_MS + 15_000, |_, _| {}).assert_holds();
    // It was accepted later than it was due.
    let accepted_later = |story: &Story, number| story.ledger.history.lock().entry(number).accepted_us = 1_001_000;
    arrives_in_calm(DUE_MS + 15_001, accepted_later).assert_holds();
    // A client that cancels it may have stopped it for a while.
    arrives_in_calm(DUE_MS + 15_001, |story, number| story.ledger.cancel_unknown(number)).assert_holds();
}

#[test]
fn a_fault_and_its_grace_excuse_a_late_task() {
    let fault_at = |at_ms: i64| {
        move |story: &Story, _: Number| {
            story.ledger.record(Event::Fault { what: "a fault".into(), at_us: at_ms * 1_000 });
        }
    };
    arrives_in_calm(60_000, fault_at(DUE_MS + 15_000)).assert_holds();
    only(&arrives_in_calm(60_000, fault_at(DUE_MS + 15_001)), |verdict| &mut verdict.late);
    // The next calm begins at 20 s, and its first second is the grace.
    let calm_again = |story: &Story, number| {
        fault_at(DUE_MS)(story, number);
        story.ledger.record(Event::Calm { at_us: 20_000_000 });
    };
    arrives_in_calm(36_000, calm_again).assert_holds();
    only(&arrives_in_calm(36_001, calm_again), |verdict| &mut verdict.late);
}

#[test]
fn a_queue_whose_tasks_may_wait_has_no_late_task() {
    let story = Story::new();
    story.ledger.record(Event::Calm { at_us: 0 });
    let number = story.task();
    story.ledger.history.lock().entry(number).accepted_us = 0;
    story.arrives(number, 1, DUE_MS + 60_000);
    story.ledger.judge().assert_holds();
}

#[test]
fn an_accepted_task_that_a_node_does_not_know_is_a_violation_far_from_a_fault() {
    let missing_at = |at_ms: i64| {
        let story = Story::new();
        story.window(500, Some(600));
        let number = story.task();
        story.arrives(number, 1, DUE_MS);
        story.ledger.record(Event::Missing { number, at_us: at_ms * 1_000 });
        story.ledger.judge()
    };
    missing_at(500).assert_holds();
    missing_at(1_600).assert_holds();
    only(&missing_at(499), |verdict| &mut verdict.others);
    only(&missing_at(1_601), |verdict| &mut verdict.others);
}

#[test]
fn submissions_are_counted_from_a_number_on() {
    let story = Story::new();
    let first = story.task() + 1;
    story.task();
    story.ledger.refused(story.ledger.submitting("q", DUE_MS));
    story.ledger.taken(story.ledger.submitting("other", DUE_MS));
    assert_eq!(story.ledger.accepted_since("q", first), (2, 1));
}

#[test]
fn a_fire_time_whose_task_comes_early_is_a_violation() {
    let story = Story::new();
    story.ledger.fires("pulse", Duration::from_secs(1));
    story.ledger.delivered(Delivery {
        at_us: 900_000,
        queue: "pulse".into(),
        due_ms: Some(1_000),
        ..Delivery::default()
    });
    only(&story.ledger.judge(), |verdict| &mut verdict.early);
}

/// Shard 3 is in the database whose clock was 200 ms ahead from 500 ms to 700 ms.
fn with_a_clock_ahead() -> Story {
    let story = Story::new();
    let ahead = Event::ClockAhead { shards: [3].into(), ahead_us: 200_000, at_us: 500_000 };
    story.ledger.record(ahead);
    story.ledger.record(Event::ClockBack { at_us: 700_000 });
    story
}

#[test]
fn while_the_clock_of_its_database_is_ahead_a_task_may_be_early_by_that() {
    let story = with_a_clock_ahead();
    let number = story.task();
    story.arrives(number, 1, DUE_MS - 200);
    story.ends_with(vec![Row { shard: 3, ..row(number) }]).assert_holds();
}

#[test]
fn the_clock_of_its_database_does_not_excuse_a_task_that_is_earlier_than_that() {
    let story = with_a_clock_ahead();
    let number = story.task();
    story.arrives(number, 1, DUE_MS - 201);
    only(&story.ends_with(vec![Row { shard: 3, ..row(number) }]), |verdict| &mut verdict.early);
}

#[test]
fn the_clock_of_another_database_excuses_nothing() {
    let story = with_a_clock_ahead();
    let number = story.task();
    story.arrives(number, 1, DUE_MS - 1);
    only(&story.ends_with(vec![Row { shard: 4, ..row(number) }]), |verdict| &mut verdict.early);
}

#[test]
fn an_attempt_after_one_that_its_database_excuses_goes_by_its_own_header() {
    let story = with_a_clock_ahead();
    let number = story.task();
    story.arrives(number, 1, DUE_MS - 200);
    let next = Delivery { due_ms: Some(950), ..story.message(number, 2, 960) };
    story.ledger.delivered(next.clone());
    let row = Row { shard: 3, attempt: 2, ..row(number) };
    story.ends_with(vec![row.clone()]).assert_holds();
    let other = with_a_clock_ahead();
    let number = other.task();
    other.arrives(number, 1, DUE_MS - 200);
    other.ledger.delivered(Delivery { due_ms: Some(3_000), at_us: 2_999_000, ..next });
    only(&other.ends_with(vec![row]), |verdict| &mut verdict.early);
}

/// The second task in order comes before the first. It comes at its due time; the request for the first one lasts from
/// 100 ms to this moment.
fn out_of_order(accepted_ms: i64, shard: u32) -> Verdict {
    let story = with_a_clock_ahead();
    let (first, second) = (story.task(), story.task());
    for number in [first, second] {
        story.ledger.expect_order(number, "lane", number);
        let mut history = story.ledger.history.lock();
        history.entry(number).invoked_us = 100_000;
        history.entry(number).accepted_us = if number == first { accepted_ms * 1_000 } else { 100_000 };
    }
    story.arrives(second, 1, DUE_MS + 1);
    story.arrives(first, 1, DUE_MS + 2);
    story.ends_with([first, second].map(|number| Row { shard, ..row(number) }).to_vec())
}

#[test]
fn a_task_that_is_taken_while_its_clock_is_ahead_has_no_place_in_the_order() {
    out_of_order(600, 3).assert_holds();
    only(&out_of_order(499, 3), |verdict| &mut verdict.order);
    only(&out_of_order(600, 4), |verdict| &mut verdict.order);
}

#[test]
fn a_clock_that_is_ahead_later_or_was_long_before_excuses_nothing() {
    for (at_us, due_ms) in [(499_000, 600), (1_701_000, 1_800)] {
        let story = with_a_clock_ahead();
        let number = story.ledger.submitting("q", due_ms);
        story.ledger.accepted(number, &format!("t{number}"));
        story.ledger.delivered(Delivery { at_us, due_ms: Some(due_ms), ..story.message(number, 1, 0) });
        only(&story.ends_with(vec![Row { shard: 3, ..row(number) }]), |verdict| &mut verdict.early);
    }
}

#[test]
fn a_repetition_that_is_answered_with_another_task_is_a_violation() {
    let story = Story::new();
    let number = story.task();
    story.arrives(number, 1, DUE_MS + 10);
    story.ledger.accepted(number, &format!("t{number}"));
    story.ledger.judge().assert_holds();
    story.ledger.accepted(number, "another");
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);
}

#[test]
fn a_task_that_rabbitmq_took_must_arrive_as_one_task() {
    let story = Story::new();
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.taken(number);
    only(&story.ledger.judge(), |verdict| &mut verdict.lost);
    story.arrives(number, 1, DUE_MS + 10);
    story.ledger.judge().assert_holds();
    story.ledger.delivered(Delivery {
        task: "second".into(),
        message_id: "second:1".into(),
        ..story.message(number, 1, DUE_MS + 20)
    });
    only(&story.ledger.judge(), |verdict| &mut verdict.unexpected);
}

/// A message that was sent at 500 ms and confirmed at 700 ms, and is two tasks. The fault lasts for this time.
fn two_of_one_message(from_ms: i64, until_ms: Option<i64>) -> Verdict {
    let story = Story::new();
    story.window(from_ms, until_ms);
    let number = story.ledger.submitting("q", DUE_MS);
    story.ledger.history.lock().entry(number).invoked_us = 500_000;
    story.ledger.may_repeat(number);
    story.ledger.record(Event::Taken { number, at_us: 700_000 });
    let rows = ["first", "second"].map(|task| {
        let message_id = format!("{task}:1");
        story.ledger.delivered(Delivery { task: task.into(), message_id, ..story.message(number, 1, DUE_MS + 10) });
        Row { task: task.into(), ..row(number) }
    });
    story.ends_with(rows.to_vec())
}

#[test]
fn a_message_may_be_two_tasks_near_a_fault_and_nowhere_else() {
    // The grace is 1,000 ms: that of a former fault reaches the sending, and a later one comes before the ack.
    for (from_ms, until_ms) in [(-900, Some(-500)), (1_700, None)] {
        two_of_one_message(from_ms, until_ms).assert_holds();
    }
    for (from_ms, until_ms) in [(-900, Some(-501)), (1_701, None)] {
        let verdict = two_of_one_message(from_ms, until_ms);
        assert_eq!((verdict.unexpected.count, verdict.tables.count), (1, 1), "{verdict}");
    }
}

#[test]
fn a_missing_attempt_is_a_violation_unless_its_queue_loses_messages() {
    let story = Story::new();
    let number = story.task();
    story.arrives(number, 2, DUE_MS + 10);
    only(&story.ledger.judge(), |verdict| &mut verdict.attempts);
    story.ledger.loses_messages("q");
    story.ledger.judge().assert_holds();
}

#[test]
fn what_the_run_saw_is_a_violation() {
    let story = Story::new();
    story.ledger.wrong("node-1 panicked");
    only(&story.ledger.judge(), |verdict| &mut verdict.others);
}

#[test]
fn a_journal_is_judged_as_its_run_was_and_a_cut_last_line_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.ndjson");
    let story = Story::new();
    story.ledger.keep_journal(&file).unwrap();
    story.ledger.run(serde_json::json!({ "seed": 7 }));
    let fault = story.ledger.fault("a fault");
    let row = story.finished();
    let lost = story.task();
    story.ledger.heal(fault);
    story.ledger.begins("lane", "a:1");
    story.ledger.owner_seen(1, 2, "node-1");
    story.ledger.retries("q", Retries::Never);
    story.ledger.retries("q", Retries::AfterRejection { deadline_us: 1 });
    story.ledger.answers("t0:1", Reply::Acked);
    let verdict = story.ends_with(vec![row]);
    assert_eq!((verdict.lost.count, verdict.tables.count), (1, 1), "{lost}: {verdict}");
    let replayed = Ledger::replay(&file).unwrap();
    assert_eq!(replayed.judge().to_string(), verdict.to_string());
    assert_eq!((replayed.facts()["seed"].as_i64(), replayed.windows().len()), (Some(7), 1));
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"event\":\"refu");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(Ledger::replay(&file).unwrap().judge().to_string(), verdict.to_string());
    std::fs::write(&file, format!("{{\n{text}")).unwrap();
    Ledger::replay(&file).unwrap_err();
}
