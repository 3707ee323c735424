mod quiet;

use std::collections::{BTreeMap, VecDeque};

use uuid::Uuid;

use super::{
    window::{BATCHES, BUSY, FIRST, FORGOTTEN_AFTER, LATE, LEAST, LONGEST_WAIT, MOST},
    *,
};
use crate::{
    delay::quickest::PERIOD,
    ids::{Attempt, ShardId, TaskId},
    task::{Content, Envelope},
    time::UnixMicros,
};

/// A first attempt on its way to `queue`, claimed and due at the same moment.
fn dispatch(queue: &str, at: Instant) -> Dispatch {
    let delivery = Delivery {
        id: TaskId::mint(Uuid::now_v7(), ShardId::new(7)),
        attempt: Attempt::new(1),
        attempts_base: Attempt::NONE,
        queue: QueueName::new(queue),
        due_at: UnixMicros::new(0),
        content: Content { payload: Vec::new(), content_type: String::new(), headers: BTreeMap::new() },
        priority: 0,
        key: None,
        partition_key: None,
        version: 0,
        max_attempts: None,
        timeout_ms: None,
        redelivered: false,
        envelope: None,
    };
    Dispatch { database: DatabaseIndex::HOME, delivery, publish_at: at, claimed_at: at }
}

fn add(outbox: &mut Outbox, messages: usize, publish_at: Instant) {
    for _ in 0..messages {
        outbox.add(dispatch("orders", publish_at));
    }
}

/// An outbox of a node that sends many messages, and the present.
fn busy() -> (Outbox, Instant) {
    let now = Instant::now();
    let rate = Rate { began: Some(now), last: MANY, present: 0 };
    (Outbox { rate, window: wide(now), ..Outbox::default() }, now)
}

/// The same with a batch of one message out.
fn busy_with_a_batch_out() -> (Outbox, Instant) {
    let (mut outbox, now) = busy();
    add(&mut outbox, 1, now);
    assert_eq!(leave(&mut outbox, now), [1]);
    (outbox, now)
}

/// The window of a broker that has been quick for a while.
fn wide(now: Instant) -> Window {
    let mut window = Window::default();
    window.limits(now);
    window.answered(MOST, Duration::ZERO, now);
    window
}

fn orders() -> QueueName {
    QueueName::new("orders")
}

/// The messages of each batch that leaves now, after all looks that are due.
fn leave(outbox: &mut Outbox, now: Instant) -> Vec<usize> {
    while outbox.look(now).is_some() {}
    std::iter::from_fn(|| outbox.next_batch(&orders(), now)).map(|batch| batch.len()).collect()
}

/// Ends a batch that the broker took so long for.
fn end(outbox: &mut Outbox, messages: usize, took: Duration, now: Instant) {
    outbox.ended(&orders(), messages, Some(took), now);
}

#[test]
fn a_lane_has_a_batch_out_whatever_the_others_have_and_more_while_there_is_room() {
    let lane = |batches, under_way| {
        let mut lane = Lane::default();
        (lane.ready, lane.batches, lane.under_way) = ([dispatch("orders", Instant::now())].into(), batches, under_way);
        lane
    };
    assert!(lane(0, 0).may_send(false, 16, 4));
    assert!(!lane(1, 16).may_send(false, 16, 4));
    assert!(lane(1, 16).may_send(true, 16, 4));
    assert!(!lane(4, 4).may_send(true, 16, 4), "it leaves channels to others");
    assert!(!Lane::default().may_send(true, 16, 4), "it has nothing to send");
}

#[test]
fn a_message_leaves_at_once_or_with_the_next_ones_when_a_batch_ends() {
    let (mut outbox, now) = busy_with_a_batch_out();
    add(&mut outbox, 1, now);
    add(&mut outbox, 1, now);
    assert_eq!(leave(&mut outbox, now), [0; 0], "a batch is out");
    end(&mut outbox, 1, Duration::ZERO, now);
    assert_eq!(leave(&mut outbox, now), [2]);
    end(&mut outbox, 2, Duration::ZERO, now);
    assert!(outbox.is_empty(), "an idle lane is forgotten");
    assert_eq!((outbox.ready, outbox.under_way), (0, 0));
}

#[test]
fn a_few_messages_wait_a_moment_for_a_slow_batch() {
    let (mut outbox, began) = busy_with_a_batch_out();
    add(&mut outbox, 1, began);
    assert_eq!(leave(&mut outbox, began), [0; 0]);
    add(&mut outbox, ENOUGH - 2, began);
    assert_eq!(leave(&mut outbox, began), [0; 0]);
    assert_eq!(outbox.look(began), None);
    assert_eq!(outbox.next_look(), Some(began + HOLD));
    assert_eq!(leave(&mut outbox, began + HOLD), [ENOUGH - 1]);
    assert_eq!(outbox.next_look(), None);
}

#[test]
fn a_look_that_the_lane_plans_no_more_is_passed_over() {
    let (mut outbox, began) = busy_with_a_batch_out();
    let later = began + HOLD / 2;
    add(&mut outbox, 1, began);
    assert_eq!(leave(&mut outbox, began), [0; 0]);
    end(&mut outbox, 1, Duration::ZERO, later);
    assert_eq!(leave(&mut outbox, later), [1]);
    add(&mut outbox, 1, later);
    assert_eq!(leave(&mut outbox, later), [0; 0]);
    assert_eq!(outbox.look(began + HOLD), None, "the look of the message that has left");
    assert_eq!(outbox.next_look(), Some(later + HOLD));
}

#[test]
fn a_message_leaves_at_its_due_instant_whatever_was_added_before() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    let after_ms = |ms| now + Duration::from_millis(ms);
    for ms in [30, 20, 40] {
        add(&mut outbox, 1, after_ms(ms));
    }
    assert_eq!((outbox.has_due(), outbox.look(now), outbox.next_look()), (false, None, Some(after_ms(20))));
    assert_eq!(leave(&mut outbox, after_ms(20)), [1]);
    assert_eq!(outbox.next_look(), Some(after_ms(30)));
    assert_eq!(leave(&mut outbox, after_ms(40)), [2]);
    assert_eq!(outbox.next_look(), None);
    assert!(!outbox.is_empty(), "two batches are out");
}

#[test]
fn a_burst_stands_ready_batch_by_batch_and_another_lane_waits_for_none_of_it() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    add(&mut outbox, 100 * MESSAGES_PER_BATCH, now);
    outbox.add(dispatch("others", now));
    assert_eq!(leave(&mut outbox, now), [FIRST / BATCHES; BATCHES]);
    assert_eq!(outbox.ready, FIRST / BATCHES);
    assert_eq!(outbox.next_batch(&QueueName::new("others"), now).map(|batch| batch.len()), Some(1));
}

#[test]
fn each_burst_begins_with_few_under_way_and_what_comes_evenly_has_more() {
    let (mut outbox, began) = (Outbox { window: wide(Instant::now()), ..Outbox::default() }, Instant::now());
    let later = began + FORGOTTEN_AFTER;
    for at in [later, later + Duration::from_millis(1)] {
        add(&mut outbox, MESSAGES_PER_BATCH, at);
    }
    assert_eq!(leave(&mut outbox, later), [FIRST / BATCHES; BATCHES], "the one before had many");

    let mut outbox = Outbox::default();
    add(&mut outbox, MESSAGES_PER_BATCH, began);
    add(&mut outbox, MESSAGES_PER_BATCH, began + HOLD);
    assert_eq!(leave(&mut outbox, began), [BUSY / BATCHES; BATCHES]);
}

#[test]
fn a_burst_whose_answers_never_came_leaves_no_small_window_behind() {
    let (mut outbox, began) = (Outbox::default(), Instant::now());
    add(&mut outbox, MESSAGES_PER_BATCH + 1, began);
    assert_eq!(leave(&mut outbox, began), [FIRST / BATCHES; BATCHES]);
    let later = began + FORGOTTEN_AFTER;
    for _ in 0..BATCHES {
        outbox.ended(&orders(), FIRST / BATCHES, None, later);
    }
    assert_eq!(leave(&mut outbox, later), [BUSY / BATCHES; BATCHES]);
}

#[test]
fn a_burst_that_begins_holds_no_messages_back() {
    let now = Instant::now();
    let mut outbox = Outbox { rate: Rate { began: Some(now), last: MANY, present: 0 }, ..Outbox::default() };
    add(&mut outbox, 2 * MESSAGES_PER_BATCH, now);
    assert_eq!(leave(&mut outbox, now), [FIRST / BATCHES; BATCHES], "few stand ready, but many are due");
}

/// The numbers of the messages that have left, by their attempts, after all that are due at `now`.
fn left(outbox: &mut Outbox, now: Instant) -> Vec<i32> {
    outbox.window = wide(now);
    let batches = std::iter::from_fn(|| outbox.next_batch(&orders(), now));
    batches.flatten().map(|dispatch| dispatch.delivery.attempt.number()).collect()
}

#[test]
fn messages_of_one_due_time_leave_in_the_order_of_their_claims_and_none_before_its_own_instant() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    let after_us = |us| now + Duration::from_micros(us);
    let mut add = |number, database, due_us, publish_at_us| {
        let mut one = dispatch("orders", after_us(publish_at_us));
        one.database = DatabaseIndex::new(database);
        (one.delivery.attempt, one.delivery.due_at) = (Attempt::new(number), UnixMicros::new(due_us));
        outbox.add(one);
    };
    // The clock's readings differ a little, and more after the clock was set.
    let set = 100_000;
    for (number, at_us) in [(1, 800), (2, 500), (3, 900), (4, 700), (5, 900 + set), (6, 700 + set), (7, 900)] {
        add(number, 0, 1_000_000, at_us);
    }
    add(11, 1, 1_000_000, 600);
    add(12, 1, 1_000_001, 400);
    add(13, 0, 1_000_000, 600);
    assert_eq!(left(&mut outbox, after_us(700)), [12, 11]);
    assert_eq!(left(&mut outbox, after_us(800)), [1, 2]);
    assert_eq!(left(&mut outbox, after_us(900)), [3, 4, 7, 13]);
    assert_eq!(left(&mut outbox, after_us(1_000_000)), [5, 6]);
}

/// The messages under way after each of so many answers to the batches that are out; the lane sends what it may.
fn under_way_after(
    outbox: &mut Outbox,
    out: &mut VecDeque<usize>,
    (answers, took): (usize, Duration),
    now: Instant,
) -> Vec<usize> {
    let answered = |_| {
        let messages = out.pop_front().expect("a batch is out");
        end(outbox, messages, took, now);
        out.extend(leave(outbox, now));
        outbox.under_way
    };
    (0..answers).map(answered).collect()
}

#[test]
fn a_burst_has_more_under_way_while_the_broker_is_quick_and_less_while_it_is_slow() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    add(&mut outbox, 100 * MOST, now);
    let mut out = leave(&mut outbox, now).into();
    let quick = under_way_after(&mut outbox, &mut out, (100, LONGEST_WAIT), now);
    assert!(quick[0] < 2 * FIRST && quick[BATCHES - 1] >= 2 * FIRST, "it doubles with each round: {quick:?}");
    assert!((MOST..MOST + MESSAGES_PER_BATCH).contains(&quick[99]), "{quick:?}");
    let slow = under_way_after(&mut outbox, &mut out, (100, 3 * LONGEST_WAIT), now);
    assert!((LEAST..LEAST + LEAST / BATCHES).contains(&slow[99]), "{slow:?}");
}

#[test]
fn a_burst_has_more_under_way_with_each_round_also_where_a_round_takes_longer_than_a_second() {
    let (mut outbox, mut now) = (Outbox::default(), Instant::now());
    let slow = FORGOTTEN_AFTER * 3 / 2;
    add(&mut outbox, 100 * MOST, now);
    let mut out: VecDeque<usize> = leave(&mut outbox, now).into();
    let mut rounds = vec![outbox.under_way];
    for _ in 0..8 {
        now += slow;
        let answers = out.len();
        under_way_after(&mut outbox, &mut out, (answers, slow), now);
        rounds.push(outbox.under_way);
    }
    assert!(rounds[0] == FIRST && rounds[8] >= MOST, "{rounds:?}");
}

#[test]
fn a_window_that_no_small_lane_shares_grows_while_the_broker_is_slow_too() {
    let (mut window, began) = (Window::default(), Instant::now());
    let answered = |window: &mut Window, now| {
        window.limits(now);
        window.answered(MOST, 2 * LONGEST_WAIT, now);
        window.batch()
    };
    window.answered(1, Duration::ZERO, began);
    window.sends(0, false, began);
    assert_eq!(answered(&mut window, began), LEAST / BATCHES);
    assert_eq!(answered(&mut window, began + FORGOTTEN_AFTER), MESSAGES_PER_BATCH);
}

#[test]
fn a_broker_that_is_slow_without_a_queue_has_as_many_under_way_as_a_quick_one() {
    let (mut window, began) = (Window::default(), Instant::now());
    let answered = |window: &mut Window, took, now| {
        window.limits(now);
        window.sends(0, false, now);
        window.answered(MOST, took, now);
        window.batch()
    };
    let slow = 10 * LONGEST_WAIT;
    assert_eq!(answered(&mut window, slow, began), MESSAGES_PER_BATCH, "each batch takes as long");
    assert_eq!(answered(&mut window, Duration::ZERO, began), MESSAGES_PER_BATCH);
    assert_eq!(answered(&mut window, slow, began), MESSAGES_PER_BATCH / 2, "it was quick before");
    for (periods, most) in [(1, LEAST), (2, MOST)] {
        let now = began + PERIOD * periods;
        assert_eq!(answered(&mut window, slow, now), most / BATCHES, "{periods} periods later");
    }
}

#[test]
fn a_lane_that_waits_for_no_room_shares_the_window() {
    let (mut outbox, began) = (Outbox::default(), Instant::now());
    let later = began + FORGOTTEN_AFTER;
    add(&mut outbox, 100 * MOST, began);
    leave(&mut outbox, began);
    let answers = |outbox: &mut Outbox, now| {
        leave(outbox, now);
        end(outbox, FIRST / BATCHES, 2 * LONGEST_WAIT, now);
        outbox.window.batch()
    };
    outbox.window = wide(later);
    assert_eq!(answers(&mut outbox, later), MESSAGES_PER_BATCH, "it is alone");
    outbox.add(dispatch("others", later));
    outbox.next_batch(&QueueName::new("others"), later).expect("it sends");
    assert!(answers(&mut outbox, later) < MESSAGES_PER_BATCH, "its messages would wait");
}

#[test]
fn a_window_that_limits_no_lane_grows_for_none_and_begins_anew_after_a_while() {
    let (mut window, now, took) = (Window::default(), Instant::now(), Duration::from_millis(5));
    window.answered(MESSAGES_PER_BATCH, took, now);
    assert_eq!(window.batch(), BUSY / BATCHES, "no lane waited for room");
    window.limits(now);
    window.answered(3 * BUSY, took, now);
    assert_eq!(window.batch(), BUSY);
    let later = now + FORGOTTEN_AFTER;
    window.answered(BUSY, took, later);
    assert_eq!(window.batch(), BUSY, "no lane has waited for long");
    window.limits(later);
    assert_eq!(window.batch(), BUSY / BATCHES);
}

#[test]
fn answers_alone_keep_no_past_burst_in_use() {
    let now = Instant::now();
    let begins_anew = |mut window: Window, at| {
        window.limits(at);
        window.batch() == BUSY / BATCHES
    };
    let (mut slow, apart) = (wide(now), FORGOTTEN_AFTER / 2);
    (1..20).for_each(|number| slow.answered(1, FORGOTTEN_AFTER * 2, now + apart * number));
    assert!(begins_anew(slow, now + apart * 20), "a lane whose answers take two seconds goes on");
    let mut late = wide(now);
    late.answered(1, LATE, now + LATE);
    assert!(begins_anew(late, now + LATE));
}

#[test]
fn a_lane_without_an_answer_takes_room_from_others_for_a_second() {
    let (mut outbox, began) = (Outbox::default(), Instant::now());
    let (others, later) = (QueueName::new("others"), began + SILENT_AFTER);
    add(&mut outbox, 2 * BUSY, began);
    assert_eq!(leave(&mut outbox, began).iter().sum::<usize>(), BUSY, "the lane takes all room");
    for _ in 0..BUSY {
        outbox.add(dispatch("others", began));
    }
    let mut batches = |now| {
        while outbox.look(now).is_some() {}
        std::iter::from_fn(|| outbox.next_batch(&others, now)).map(|batch| batch.len()).sum::<usize>()
    };
    assert_eq!(batches(began), BUSY / BATCHES, "one batch");
    assert_eq!(batches(later), BUSY - BUSY / BATCHES, "the silent lane counts no more");
    outbox.ended(&orders(), BUSY / BATCHES, None, later);
    assert_eq!((outbox.silent, outbox.under_way), (BUSY / BATCHES, 2 * BUSY - BUSY / BATCHES));
}

/// The messages of each batch of so many messages, one each so often, and when the last one came due.
fn one_each(outbox: &mut Outbox, every: Duration, messages: u32, began: Instant) -> (Vec<usize>, Instant) {
    let mut batches = Vec::new();
    for number in 0..messages {
        add(outbox, 1, began + every * number);
        batches.extend(leave(outbox, began + every * number));
    }
    (batches, began + every * (messages - 1))
}

#[test]
fn while_all_lanes_have_many_batches_out_each_has_few() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    let mut batches_of = |lane: usize| {
        let queue = QueueName::new(format!("lane-{lane}"));
        let mut sends = || {
            outbox.add(dispatch(queue.as_str(), now));
            outbox.next_batch(&queue, now).is_some()
        };
        (0..2 * BATCHES_PER_LANE).filter(|_| sends()).count()
    };
    for lane in 0..MANY_BATCHES / BATCHES_PER_LANE {
        assert_eq!(batches_of(lane), BATCHES_PER_LANE);
    }
    assert_eq!(batches_of(99), FEW_BATCHES);
}

#[test]
fn a_message_among_few_waits_for_no_batch() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    add(&mut outbox, 1, now);
    add(&mut outbox, MANY - 2, now);
    outbox.window = wide(now);
    assert_eq!(leave(&mut outbox, now), [MANY - 1]);
    let later = now + SPAN;
    add(&mut outbox, 1, later);
    assert_eq!(leave(&mut outbox, later), [1]);
}

#[test]
fn a_rate_is_that_of_the_last_span() {
    let (mut rate, began) = (Rate::default(), Instant::now());
    assert!(!rate.is_of_many(began));
    for _ in 0..MANY {
        rate.count(1, began);
    }
    assert!(!rate.is_of_many(began), "the span has not passed");
    assert!(rate.is_of_many(began + SPAN));
    rate.count(1, began + SPAN);
    assert!(rate.is_of_many(began + SPAN * 3 / 2));
    assert!(!rate.is_of_many(began + SPAN * 2), "one message in the last span");
    rate.count(1, began + SPAN * 10);
    assert!(!rate.is_of_many(began + SPAN * 10), "none in the last span");
}

#[test]
fn many_messages_and_late_ones_wait_for_no_batch() {
    let (mut outbox, now) = busy_with_a_batch_out();
    add(&mut outbox, ENOUGH, now);
    assert_eq!(leave(&mut outbox, now), [ENOUGH]);
    outbox.add(dispatch("orders", now.checked_sub(HOLD).unwrap()));
    assert_eq!(leave(&mut outbox, now), [1], "it waited elsewhere");
}

#[test]
fn a_burst_leaves_in_full_batches_and_its_rest_waits() {
    let (mut outbox, now) = busy();
    add(&mut outbox, MOST + 1, now);
    assert_eq!(leave(&mut outbox, now), [MESSAGES_PER_BATCH; BATCHES]);
    assert!(outbox.has_due());
}

#[test]
fn a_batch_has_one_exchange() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    for exchange in ["audit", "audit", "billing"] {
        let mut other = dispatch("orders", now);
        let envelope = Envelope { exchange: exchange.to_owned(), ..Envelope::default() };
        other.delivery.envelope = Some(Box::new(envelope));
        outbox.add(other);
    }
    assert_eq!(leave(&mut outbox, now), [2, 1]);
}
