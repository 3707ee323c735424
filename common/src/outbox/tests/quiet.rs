//! Lanes from which nothing ends.

use super::*;

#[test]
fn the_messages_of_a_lane_from_which_nothing_ends_gather_and_its_batches_stay_few() {
    for (batches, every) in [(FEW_BATCHES, QUIET_AFTER / 2), (10, QUIET_AFTER / 10)] {
        let (mut outbox, began) = (Outbox { batches: SOME_BATCHES, ..Outbox::default() }, Instant::now());
        let (left, now) = one_each(&mut outbox, every, 15, began);
        assert_eq!(left, vec![1; batches], "it sends freely for a moment");
        end(&mut outbox, 1, now - began, now);
        assert_eq!(leave(&mut outbox, now), [15 - batches], "what has gathered leaves together");
    }
}

#[test]
fn a_lane_from_which_nothing_ends_goes_on_while_the_others_have_channels_enough() {
    let (mut outbox, began) = (Outbox::default(), Instant::now());
    let (left, _) = one_each(&mut outbox, QUIET_AFTER / 2, 15, began);
    assert_eq!(left, [1; 15]);
}

#[test]
fn messages_that_only_an_answer_of_their_own_lane_lets_leave_are_nothing_to_give_way_to() {
    let (mut outbox, began) = (Outbox { batches: SOME_BATCHES, ..Outbox::default() }, Instant::now());
    let (left, now) = one_each(&mut outbox, QUIET_AFTER / 2, 6, began);
    assert_eq!((left, outbox.ready, outbox.has_due()), (vec![1; FEW_BATCHES], 2, false));
    end(&mut outbox, 1, now - began, now);
    assert_eq!(leave(&mut outbox, now), [2]);
    assert_eq!((outbox.ready, outbox.held), (0, 0));
}

#[test]
fn messages_of_a_quiet_lane_leave_when_channels_are_no_longer_scarce() {
    let began = Instant::now();
    let mut outbox = Outbox { batches: SOME_BATCHES - FEW_BATCHES, under_way: 1, ..Outbox::default() };
    let (_, now) = one_each(&mut outbox, QUIET_AFTER / 2, 6, began);
    assert_eq!((outbox.held, outbox.look(now)), (2, None), "channels are scarce");
    outbox.ended(&QueueName::new("another"), 1, None, now);
    assert_eq!(outbox.look(now), None, "an end asks no other lane");
    let again_at = outbox.next_look().expect("a message stands ready");
    assert!(again_at < now + QUIET_AFTER && outbox.look(again_at).is_some());
    assert_eq!(leave(&mut outbox, again_at).len(), 1);
}

#[test]
fn messages_of_a_lane_with_stuck_batches_leave_when_others_have_made_room() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    let (others, batch) = (QueueName::new("others"), BUSY / BATCHES);
    add(&mut outbox, batch, now);
    assert_eq!(leave(&mut outbox, now), [batch]);
    for _ in 0..BUSY - batch {
        outbox.add(dispatch("others", now));
    }
    let others_send = std::iter::from_fn(|| outbox.next_batch(&others, now));
    assert_eq!(others_send.map(|batch| batch.len()).collect::<Vec<_>>(), [batch; BATCHES - 1], "they take all room");
    add(&mut outbox, 1, now);
    assert_eq!(leave(&mut outbox, now), [0; 0]);
    for _ in 1..BATCHES {
        outbox.ended(&others, batch, None, now);
    }
    assert_eq!((outbox.look(now), outbox.next_look()), (None, Some(now + QUIET_AFTER)));
    assert!(outbox.look(now + QUIET_AFTER).is_some());
    assert_eq!(leave(&mut outbox, now + QUIET_AFTER), [1]);
}

#[test]
fn messages_of_a_lane_whose_batches_stuck_after_channels_were_scarce_leave_when_they_are_not() {
    let (mut outbox, began) = (Outbox { batches: MANY_BATCHES, ..Outbox::default() }, Instant::now());
    let (left, now) = one_each(&mut outbox, QUIET_AFTER / 25, 6, began);
    assert_eq!((left, outbox.ready, outbox.held), (vec![1; FEW_BATCHES], 2, 0), "it is not quiet yet");
    let again_at = outbox.next_look().expect("messages stand ready");
    assert!(again_at <= now + QUIET_AFTER);
    assert_eq!((leave(&mut outbox, again_at), outbox.held), (vec![], 2));
    outbox.batches = FEW_BATCHES;
    let again_at = again_at + QUIET_AFTER;
    assert_eq!((outbox.next_look(), leave(&mut outbox, again_at)), (Some(again_at), vec![2]));
}

#[test]
fn a_lane_that_must_wait_has_one_more_look_planned_however_often_it_is_looked_at() {
    let (mut outbox, began) = (Outbox { batches: SOME_BATCHES, ..Outbox::default() }, Instant::now());
    let (_, mut now) = one_each(&mut outbox, QUIET_AFTER / 2, 5, began);
    for _ in 0..1_000 {
        now += Duration::from_millis(1);
        add(&mut outbox, 1, now);
        assert_eq!(leave(&mut outbox, now), [0; 0]);
        assert_eq!(outbox.looks.len(), 1);
    }
}

#[test]
fn a_lane_of_a_slow_broker_that_ends_batches_as_often_as_they_leave_sends_each_message_at_once() {
    let (mut outbox, began) = (Outbox::default(), Instant::now());
    let every = QUIET_AFTER / 5;
    one_each(&mut outbox, every, 5, began);
    for number in 5..50 {
        let now = began + every * number;
        end(&mut outbox, 1, every * 5, now);
        add(&mut outbox, 1, now);
        assert_eq!(leave(&mut outbox, now), [1], "{number}");
    }
}
