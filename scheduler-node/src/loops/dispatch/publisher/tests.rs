use std::collections::BTreeMap;

use common::{
    task::Content,
    time::UnixMicros,
    wire::amqp::{HEADER_MAX_ATTEMPTS, HeaderValue},
};

use super::*;
use crate::store::tests::fixture::fresh_id;

#[test]
fn the_last_attempt_of_a_new_budget_is_counted_from_where_it_began() {
    let delivery = Delivery {
        id: fresh_id(),
        attempt: Attempt::new(26),
        attempts_base: Attempt::new(25),
        queue: QueueName::new("q"),
        due_at: UnixMicros::new(0),
        content: Content { payload: Vec::new(), content_type: String::new(), headers: BTreeMap::new() },
        priority: 3,
        key: None,
        partition_key: None,
        version: 0,
        max_attempts: Some(4),
        timeout_ms: None,
        redelivered: false,
        envelope: None,
    };
    let outgoing = outgoing(delivery, None, &Queue::with_defaults(QueueName::new("q")), &ReceiptKeys::default());
    let headers = outgoing.delivery.headers(outgoing.max_attempts);
    assert!(headers.contains(&(HEADER_MAX_ATTEMPTS.into(), HeaderValue::I64(29))), "{headers:?}");
}

#[test]
fn a_message_is_published_while_the_lease_of_its_claim_must_live_and_for_some_seconds_at_most() {
    for (lease_ttl_s, expected_ms) in [(2, 1_000), (3, 1_500), (10, 5_000), (600, 5_000)] {
        assert_eq!(longest_hold(Duration::from_secs(lease_ttl_s)), Duration::from_millis(expected_ms));
    }
}
