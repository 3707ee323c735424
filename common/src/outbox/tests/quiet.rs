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
    assert!(outbox.look(now).is_some());
    assert_eq!(leave(&mut outbox, now).len(), 1);
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
