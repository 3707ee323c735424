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
