use super::*;

#[test]
fn after_an_outage_deadlines_wait_for_the_messages_that_came_meanwhile() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    assert_eq!(Hearing::default().wait(start), Duration::ZERO);
    let mut hearing = Hearing::away();
    assert_eq!(hearing.wait(at(60)), HEAR_FIRST);
    for s in [60, 61, 65] {
        hearing.begin(at(s));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST - Duration::from_secs(s - 60), "it answers all the time");
    }
    assert_eq!(hearing.wait(at(71)), Duration::ZERO);
    hearing.begin_again(at(80));
    hearing.begin(at(81));
    assert_eq!(hearing.wait(at(84)), HEAR_FIRST - Duration::from_secs(4));
    hearing.end();
    hearing.begin_again(at(90));
    assert_eq!(hearing.wait(at(99)), HEAR_FIRST, "the database is still away");
    hearing.begin(at(100));
    assert_eq!(hearing.wait(at(104)), HEAR_FIRST - Duration::from_secs(4));
}

#[test]
fn after_a_stop_of_the_process_deadlines_wait_for_the_messages_that_came_meanwhile() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut hearing = Hearing::default();
    for s in [0, 1, 2, 3, 6] {
        hearing.runs(at(s));
        assert_eq!(hearing.wait(at(s)), Duration::ZERO, "a busy machine delays it");
    }
    for s in [60, 61, 62] {
        hearing.runs(at(s));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST - Duration::from_secs(s - 60));
    }
    let mut hearing = Hearing::away();
    for s in [0, 60] {
        hearing.runs(at(s));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST, "the database is still away");
    }
}

#[test]
fn after_a_long_outage_deadlines_wait_until_few_of_the_many_messages_are_left() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut hearing = Hearing::default();
    assert!(!hearing.must_ask(), "there was no outage");
    hearing.begin_again(at(0));
    assert!(!hearing.told(false, at(10), at(10)), "few waited");
    assert!(!hearing.must_ask());
    assert_eq!(hearing.wait(at(10)), Duration::ZERO);
    hearing.begin_again(at(20));
    for s in [30, 40, 50] {
        assert_eq!(hearing.wait(at(s)), Duration::ZERO);
        assert!(hearing.must_ask() && !hearing.told(true, at(s), at(s)));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST, "many are left");
    }
    assert!(!hearing.told(false, at(60), at(60)));
    assert!(!hearing.must_ask());
    assert_eq!(hearing.wait(at(60)), HEAR_FIRST, "the last of them are still to be written");
    assert!(!hearing.told(true, at(70), at(70)), "these came long after the outage");
    assert_eq!(hearing.wait(at(70)), Duration::ZERO);
}

#[test]
fn deadlines_do_not_wait_for_ever_where_messages_come_faster_than_they_are_read() {
    let start = Instant::now();
    let mut hearing = Hearing::default();
    hearing.begin_again(start);
    // No deadline came before.
    let first = start + HEAR_LONGEST;
    let almost = first + HEAR_LONGEST - HEAR_FIRST;
    assert!(!hearing.told(true, first, first) && !hearing.told(true, almost, almost));
    let last = first + HEAR_LONGEST;
    assert!(hearing.told(true, last, last), "once");
    assert!(!hearing.must_ask());
    assert_eq!(hearing.wait(last), Duration::ZERO);
}

#[test]
fn an_answer_that_was_asked_for_before_messages_came_again_does_not_count() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut hearing = Hearing::default();
    hearing.begin_again(at(0));
    hearing.begin_again(at(20));
    assert!(!hearing.told(false, at(19), at(40)));
    assert!(hearing.must_ask(), "it tells of the time before");
    assert!(!hearing.told(true, at(40), at(40)) && hearing.has_many());
    hearing.begin_again(at(50));
    assert!(!hearing.told(false, at(49), at(70)));
    assert!(hearing.must_ask() && hearing.has_many(), "a short gap counts as well");
    assert!(!hearing.told(false, at(70), at(70)) && !hearing.must_ask());
}
