use common::task::Envelope;

use super::{super::tests::dispatch, *};

fn add(outbox: &mut Outbox, messages: usize, publish_at: Instant) {
    for _ in 0..messages {
        outbox.add(dispatch("orders", publish_at), publish_at);
    }
}

/// An outbox of a node that sends many messages, and the present.
fn busy() -> (Outbox, Instant) {
    let now = Instant::now();
    (Outbox { rate: Rate { began: Some(now), last: MANY, present: 0 }, ..Outbox::default() }, now)
}

/// The same with a batch of one message out.
fn busy_with_a_batch_out() -> (Outbox, Instant) {
    let (mut outbox, now) = busy();
    add(&mut outbox, 1, now);
    assert_eq!(leave(&mut outbox, now), [1]);
    (outbox, now)
}

fn orders() -> QueueName {
    QueueName::new("orders")
}

/// The messages of each batch that leaves now.
fn leave(outbox: &mut Outbox, now: Instant) -> Vec<usize> {
    std::iter::from_fn(|| outbox.next_batch(&orders(), now)).map(|batch| batch.len()).collect()
}

#[test]
fn a_lane_has_a_batch_out_whatever_the_others_have_and_more_while_all_have_few() {
    let lane = |batches, under_way| Lane { batches, under_way, ..Lane::default() };
    assert!(lane(0, 0).may_send(usize::MAX));
    assert!(!lane(1, MESSAGES_PER_BATCH).may_send(MESSAGES_UNDER_WAY));
    assert!(lane(1, MESSAGES_PER_BATCH).may_send(MESSAGES_UNDER_WAY - 1));
    assert!(!lane(BATCHES_PER_LANE, BATCHES_PER_LANE).may_send(BATCHES_PER_LANE), "it leaves channels to others");
}

#[test]
fn a_message_leaves_at_once_or_with_the_next_ones_when_a_batch_ends() {
    let (mut outbox, now) = busy_with_a_batch_out();
    add(&mut outbox, 1, now);
    add(&mut outbox, 1, now);
    assert_eq!(leave(&mut outbox, now), [0; 0], "a batch is out");
    outbox.ended(&orders(), 1);
    assert_eq!(leave(&mut outbox, now), [2]);
    outbox.ended(&orders(), 2);
    assert!(outbox.lanes.is_empty(), "an idle lane is forgotten");
    assert_eq!((outbox.waiting, outbox.under_way), (0, 0));
}

#[test]
fn a_few_messages_wait_a_moment_for_a_slow_batch() {
    let (mut outbox, began) = busy_with_a_batch_out();
    add(&mut outbox, 1, began);
    assert_eq!(leave(&mut outbox, began), [0; 0]);
    add(&mut outbox, ENOUGH - 2, began);
    assert_eq!(leave(&mut outbox, began), [0; 0]);
    assert_eq!(outbox.looks.len(), 1, "one look for each lane");
    assert_eq!(outbox.next_look(), Some(began + HOLD));
    assert_eq!(outbox.look(began), None);
    assert_eq!(outbox.look(began + HOLD), Some(orders()));
    assert_eq!(leave(&mut outbox, began + HOLD), [ENOUGH - 1]);
    assert_eq!(outbox.next_look(), None);
}

#[test]
fn a_look_may_come_early_and_leaves_another_one() {
    let (mut outbox, began) = busy_with_a_batch_out();
    let later = began + HOLD / 2;
    add(&mut outbox, 1, began);
    assert_eq!(leave(&mut outbox, began), [0; 0]);
    outbox.ended(&orders(), 1);
    assert_eq!(leave(&mut outbox, later), [1]);
    add(&mut outbox, 1, later);
    assert_eq!(leave(&mut outbox, later), [0; 0]);
    assert_eq!(outbox.look(began + HOLD), Some(orders()), "the look of the message that has left");
    assert_eq!(leave(&mut outbox, began + HOLD), [0; 0]);
    assert_eq!(outbox.next_look(), Some(later + HOLD));
}

#[test]
fn a_message_among_few_waits_for_no_batch() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    add(&mut outbox, 1, now);
    add(&mut outbox, MANY - 2, now);
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
        rate.count(began);
    }
    assert!(!rate.is_of_many(began), "the span has not passed");
    assert!(rate.is_of_many(began + SPAN));
    rate.count(began + SPAN);
    assert!(rate.is_of_many(began + SPAN * 3 / 2));
    assert!(!rate.is_of_many(began + SPAN * 2), "one message in the last span");
    rate.count(began + SPAN * 10);
    assert!(!rate.is_of_many(began + SPAN * 10), "none in the last span");
}

#[test]
fn many_messages_and_late_ones_wait_for_no_batch() {
    let (mut outbox, now) = busy_with_a_batch_out();
    add(&mut outbox, ENOUGH, now);
    assert_eq!(leave(&mut outbox, now), [ENOUGH]);
    outbox.add(dispatch("orders", now.checked_sub(HOLD).unwrap()), now);
    assert_eq!(leave(&mut outbox, now), [1], "it waited elsewhere");
}

#[test]
fn a_burst_leaves_in_full_batches_and_its_rest_waits() {
    let (mut outbox, now) = busy();
    add(&mut outbox, 2 * MESSAGES_PER_BATCH + 1, now);
    assert_eq!(leave(&mut outbox, now), [MESSAGES_PER_BATCH; 2]);
    assert_eq!(outbox.waiting(), 1);
}

#[test]
fn a_batch_has_one_exchange() {
    let (mut outbox, now) = (Outbox::default(), Instant::now());
    for exchange in ["audit", "audit", "billing"] {
        let mut other = dispatch("orders", now);
        let envelope = Envelope { exchange: exchange.to_owned(), ..Envelope::default() };
        other.delivery.envelope = Some(Box::new(envelope));
        outbox.add(other, now);
    }
    assert_eq!(leave(&mut outbox, now), [2, 1]);
}
