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

#[test]
fn where_a_shard_opens_deadlines_wait_for_the_messages_that_were_held() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut hearing = Hearing::default();
    for s in [0, 8, 60, 10_000] {
        hearing.shard_opens(at(s));
        assert_eq!(hearing.wait(at(s + 4)), HEAR_FIRST - Duration::from_secs(4));
        assert!(hearing.must_ask());
    }
    assert!(!hearing.told(false, at(9_999), at(10_010)), "it tells of the time before");
    assert!(hearing.must_ask());
}

/// A move may be tried again for ever, and each try may open its shard.
#[test]
fn however_often_shards_open_the_deadlines_of_others_have_their_turn() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    for pause_s in [1, 9, 19_u64] {
        let (mut hearing, mut waits_since, mut longest, mut free) = (Hearing::default(), None, 0_u64, 0_u64);
        for s in 0..3_600_u64 {
            if s.is_multiple_of(pause_s) {
                hearing.shard_opens(at(s));
            }
            // The broker has few, and is asked once deadlines have waited. It answers before they come again.
            let is_over = hearing.wait(at(s)).is_zero();
            if is_over && !hearing.must_ask() {
                (waits_since, free) = (None, free + 1);
            } else {
                longest = longest.max(s - *waits_since.get_or_insert(s));
            }
            if is_over {
                assert!(!hearing.told(false, at(s), at(s)));
            }
        }
        assert!(longest <= (OPENINGS_LONGEST + HAD_THEIR_TURN).as_secs(), "every {pause_s} s: {longest} s");
        assert!(free >= 100, "every {pause_s} s: {free} s");
    }
}

#[test]
fn however_often_shards_open_the_longest_wait_for_many_messages_ends_and_deadlines_have_their_turn() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let (mut hearing, mut gave_up_at) = (Hearing::default(), None);
    for s in 0..3_600_u64 {
        let is_over = hearing.wait(at(s)).is_zero();
        if s.is_multiple_of(7) {
            hearing.shard_opens(at(s));
        }
        match gave_up_at {
            None if is_over && hearing.told(true, at(s), at(s)) => gave_up_at = Some(s),
            Some(gave_up_at) if s > gave_up_at + HEAR_FIRST.as_secs() => break,
            Some(_) => assert!(hearing.wait(at(s)).is_zero() && !hearing.must_ask(), "at {s} s"),
            None => {}
        }
    }
    let most = HEAR_LONGEST + OPENINGS_LONGEST + HAD_THEIR_TURN;
    assert!(gave_up_at.is_some_and(|s| s <= most.as_secs()), "{gave_up_at:?}");
}

#[test]
fn a_shard_that_opens_right_after_an_outage_has_its_messages_come_first_however_long_that_was() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut hearing = Hearing::default();
    hearing.begin_again(at(0));
    hearing.end();
    hearing.begin(at(4_000));
    hearing.shard_opens(at(4_009));
    assert_eq!(hearing.wait(at(4_009)), HEAR_FIRST);
}

#[test]
fn what_deadlines_wait_for_an_outage_leaves_a_shard_that_opens_after_it_its_own_wait() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let opens_after_it = |mut hearing: Hearing| {
        assert!(!hearing.told(false, at(370), at(370)));
        hearing.shard_opens(at(382));
        assert_eq!(hearing.wait(at(382)), HEAR_FIRST);
        assert!(hearing.must_ask(), "the broker tells whether many were held");
    };

    // The second time a shard has opened just before the outage.
    for opens_before in [false, true] {
        let mut hearing = Hearing::default();
        if opens_before {
            hearing.shard_opens(at(0));
        }
        hearing.begin_again(at(1));
        for s in (10..=360).step_by(10) {
            assert!(!hearing.told(true, at(s), at(s)), "a long backlog");
        }
        opens_after_it(hearing);
    }

    let mut flapping = Hearing::away();
    for s in (0..=360).step_by(20) {
        flapping.begin(at(s));
        flapping.end();
    }
    flapping.begin(at(362));
    opens_after_it(flapping);
}
