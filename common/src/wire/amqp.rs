//! The AMQP names, and the headers of messages.

use std::borrow::Cow;

use crate::task::Delivery;

/// The exchange that every queue is bound to.
pub const EXCHANGE: &str = "duetime";
/// The queue for the reports of consumers.
pub const RESULTS: &str = "duetime.results";
/// The exchange for rejected and dead-lettered messages, and the queue bound to it.
pub const REJECTED: &str = "duetime.rejected";
/// The queue for submitted tasks.
pub const SUBMIT: &str = "duetime.submit";
/// The queue for messages that cannot be tasks.
pub const INVALID: &str = "duetime.submit.invalid";

/// The queue that says which cluster the virtual host belongs to, in its arguments. It holds no messages.
pub const CLUSTER: &str = "duetime.cluster";

/// A topic exchange in front of two of these: `result.<queue>` leads to [`RESULTS`], `submit.<queue>` to [`SUBMIT`].
/// With it, RabbitMQ's topic permissions can restrict a user's reports and submissions to certain queues.
pub const IN: &str = "duetime.in";
/// How the routing keys in [`IN`] begin that lead to [`RESULTS`].
pub const RESULT_KEY: &str = "result.";
/// How the routing keys in [`IN`] begin that lead to [`SUBMIT`].
pub const SUBMIT_KEY: &str = "submit.";

/// The routing key in [`IN`] of reports on a queue's tasks; `#` matches every queue.
pub fn result_key(queue: &str) -> String {
    format!("{RESULT_KEY}{queue}")
}

/// The routing key in [`IN`] of tasks for a queue; `#` matches every queue.
pub fn submit_key(queue: &str) -> String {
    format!("{SUBMIT_KEY}{queue}")
}

const ASTRAY: &str = "its routing key in `duetime.in` does not lead here: keys of reports begin with `result.`, those of \
                      tasks with `submit.`, and a key in `CC` or `BCC` does not count";

/// The queue that a message to [`IN`] was addressed to; `None` for a message that came another way. `start`: how the
/// routing keys begin that lead to where the message was read. An error says why its key does not: a key in the
/// header `CC` or `BCC` led it there, which RabbitMQ 3 does not compare with the sender's topic permissions.
pub fn addressed_to<'a>(exchange: &str, routing_key: &'a str, start: &str) -> Result<Option<&'a str>, &'static str> {
    if exchange != IN {
        return Ok(None);
    }
    routing_key.strip_prefix(start).map(Some).ok_or(ASTRAY)
}

/// How the names begin that RabbitMQ makes for a client: those of direct reply-to, and those of queues declared without
/// a name.
const MADE_BY_RABBITMQ: [&str; 2] = ["amq.rabbitmq.reply-to.", "amq.gen-"];

/// Whether an answer may go to the queue that a message names in `reply_to`. The sender may write to few queues, but a
/// node to all, so a name that a client can choose may be that of another client's queue. The other names are random:
/// only the reader of such a queue knows its name, and gives it away by asking.
pub fn may_answer_to(reply_to: &str) -> bool {
    MADE_BY_RABBITMQ.iter().any(|start| reply_to.starts_with(start))
}

pub const HEADER_ATTEMPT: &str = "duetime-attempt";
pub const HEADER_MAX_ATTEMPTS: &str = "duetime-max-attempts";
pub const HEADER_DUE_MS: &str = "duetime-due-ms";
pub const HEADER_KEY: &str = "duetime-key";
pub const HEADER_PARTITION_KEY: &str = "duetime-partition-key";
pub(crate) const HEADER_VERSION: &str = "duetime-version";
pub const HEADER_REDELIVERED: &str = "duetime-redelivered";
/// The attempt, on a message that keeps its original message id.
pub const HEADER_MESSAGE_ID: &str = "duetime-message-id";
/// The receipt, which proves that the sender of a report received the attempt. Only a node can make it.
pub const HEADER_RECEIPT: &str = "duetime-receipt";
/// The reason why a message cannot be a task.
pub const HEADER_ERROR: &str = "duetime-error";
/// The original properties of a message that no client can parse, in base64.
pub const HEADER_PROPERTIES: &str = "duetime-properties";
/// The exchange and the routing key to which a message was published before it was set aside.
pub const HEADER_EXCHANGE: &str = "duetime-exchange";
pub const HEADER_ROUTING_KEY: &str = "duetime-routing-key";
/// The properties that would make a message expire, or copies of it go elsewhere, while it is set aside.
pub const HEADER_EXPIRATION: &str = "duetime-expiration";
pub const HEADER_CC: &str = "duetime-CC";
pub const HEADER_BCC: &str = "duetime-BCC";

/// The headers that a message gets when it is set aside. They are no fields of a task, so they do not keep a message
/// from becoming one after its cause is gone and a person has moved it back.
pub const ASIDE_HEADERS: [&str; 7] =
    [HEADER_ERROR, HEADER_PROPERTIES, HEADER_EXCHANGE, HEADER_ROUTING_KEY, HEADER_EXPIRATION, HEADER_CC, HEADER_BCC];

/// The type that publishers to an exchange expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeType {
    Topic,
    Direct,
    Fanout,
    Headers,
}

/// The three types of header values that every client reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    LongString(String),
    I64(i64),
    Bool(bool),
}

pub type Header = (Cow<'static, str>, HeaderValue);

impl Delivery {
    /// All headers of the message. `max_attempts` is the task's effective budget: its own, or its queue's. The header
    /// holds the number of the last attempt, which is higher for a task that was given a new budget by hand.
    pub fn headers(&self, max_attempts: i32) -> Vec<Header> {
        let last_attempt = i64::from(self.attempts_base.number()) + i64::from(max_attempts);
        let mut headers: Vec<Header> = vec![
            (HEADER_ATTEMPT.into(), HeaderValue::I64(i64::from(self.attempt.number()))),
            (HEADER_MAX_ATTEMPTS.into(), HeaderValue::I64(last_attempt)),
            (HEADER_DUE_MS.into(), HeaderValue::I64(self.due_at.millis())),
            (HEADER_REDELIVERED.into(), HeaderValue::Bool(self.redelivered)),
        ];
        if let Some(key) = &self.key {
            headers.push((HEADER_KEY.into(), HeaderValue::LongString(key.clone())));
            headers.push((HEADER_VERSION.into(), HeaderValue::I64(self.version)));
        }
        if let Some(partition_key) = &self.partition_key {
            headers.push((HEADER_PARTITION_KEY.into(), HeaderValue::LongString(partition_key.clone())));
        }
        let own = self.content.headers.iter();
        headers.extend(own.map(|(name, value)| (name.clone().into(), HeaderValue::LongString(value.clone()))));
        headers
    }

    /// The priority in RabbitMQ, where a higher number goes first: 5 for tasks of priority 1, 1 for those of priority
    /// 5.
    pub fn amqp_priority(&self) -> u8 {
        u8::try_from(6 - self.priority.clamp(1, 5)).expect("1 to 5")
    }

    /// The due time in whole seconds, as AMQP timestamps are.
    pub fn amqp_timestamp_s(&self) -> u64 {
        u64::try_from(self.due_at.micros().div_euclid(1_000_000)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        ids::{Attempt, QueueName, ShardId, TaskId},
        task::Content,
        time::UnixMicros,
    };

    fn delivery() -> Delivery {
        Delivery {
            id: TaskId::mint(uuid::Uuid::nil(), ShardId::new(1)),
            attempt: Attempt::new(2),
            attempts_base: Attempt::NONE,
            queue: QueueName::new("q"),
            due_at: UnixMicros::new(1_700_000_000_999_999),
            content: Content {
                payload: b"null".to_vec(),
                content_type: "application/json".to_owned(),
                headers: BTreeMap::from([("traceparent".to_owned(), "00-1".to_owned())]),
            },
            priority: 1,
            key: None,
            partition_key: Some("p".to_owned()),
            version: 0,
            max_attempts: None,
            timeout_ms: None,
            redelivered: true,
            envelope: None,
        }
    }

    #[test]
    fn headers_are_the_agreed_ones_and_the_tasks_own() {
        let text = |value: &str| HeaderValue::LongString(value.to_owned());
        let expected: Vec<Header> = vec![
            ("duetime-attempt".into(), HeaderValue::I64(2)),
            ("duetime-max-attempts".into(), HeaderValue::I64(25)),
            ("duetime-due-ms".into(), HeaderValue::I64(1_700_000_000_999)),
            ("duetime-redelivered".into(), HeaderValue::Bool(true)),
            ("duetime-partition-key".into(), text("p")),
            ("traceparent".into(), text("00-1")),
        ];
        assert_eq!(delivery().headers(25), expected);
        let keyed = Delivery { key: Some("k".to_owned()), version: 7, ..delivery() }.headers(25);
        assert_eq!(keyed[4..6], [("duetime-key".into(), text("k")), ("duetime-version".into(), HeaderValue::I64(7))]);
    }

    #[test]
    fn a_message_to_the_door_names_its_queue_by_its_routing_key() {
        assert_eq!(addressed_to(IN, &result_key("a.b"), RESULT_KEY), Ok(Some("a.b")));
        assert_eq!(addressed_to(IN, &submit_key("a"), SUBMIT_KEY), Ok(Some("a")));
        for exchange in ["", "other"] {
            assert_eq!(addressed_to(exchange, "result.a", RESULT_KEY), Ok(None), "{exchange}");
        }
        for (key, start) in [
            ("submit.a", RESULT_KEY),
            ("result.a", SUBMIT_KEY),
            ("result", RESULT_KEY),
            ("results.a", RESULT_KEY),
            ("a", SUBMIT_KEY),
        ] {
            assert_eq!(addressed_to(IN, key, start), Err(ASTRAY), "{key} {start}");
        }
    }

    #[test]
    fn an_answer_goes_only_to_a_queue_whose_name_rabbitmq_made() {
        for queue in ["amq.rabbitmq.reply-to.g1h2AAtyZXBseUAxNTUx.MiZb", "amq.gen-JzTY20BRgKO-HjmUJj0wLg"] {
            assert!(may_answer_to(queue), "{queue}");
        }
        for queue in [SUBMIT, RESULTS, "orders", "", "amq.rabbitmq.reply-to", "a.amq.gen-1", "amq.rabbitmq.trace"] {
            assert!(!may_answer_to(queue), "{queue}");
        }
    }

    #[test]
    fn a_new_budget_of_attempts_moves_the_last_one() {
        let revived = Delivery { attempt: Attempt::new(26), attempts_base: Attempt::new(25), ..delivery() };
        assert_eq!(revived.headers(25)[1], ("duetime-max-attempts".into(), HeaderValue::I64(50)));
    }

    #[test]
    fn priority_is_turned_round_and_time_is_in_seconds() {
        let amqp = |priority| Delivery { priority, ..delivery() }.amqp_priority();
        assert_eq!([1, 3, 5].map(amqp), [5, 3, 1]);
        assert_eq!(delivery().amqp_timestamp_s(), 1_700_000_000);
    }
}
