//! A delivery in its AMQP form, property by property, and the parts of an answer that identify its attempt.

use std::time::Instant;

use common::{
    ids::QueueName,
    task::Delivery,
    wire::{
        amqp::{HEADER_ATTEMPT, HEADER_RECEIPT, HeaderValue, RESULTS},
        format::Shaped,
    },
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::Value;

pub(super) const PERSISTENT: u8 = 2;

/// One attempt to publish a task, with the values that the policy adds.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    pub delivery: Delivery,
    /// The limit in force for the task: its own, or its queue's.
    pub max_attempts: i32,
    /// Whether the consumer must report. Otherwise silence counts as an answer too.
    pub wants_result: bool,
    /// The message in its queue's format. `None`: the message as it was submitted.
    pub shaped: Option<Shaped>,
    /// The receipt that a report of the attempt brings back.
    pub receipt: Option<String>,
    /// The instant from which the message must not be sent: by then another node may own the task and have published
    /// a marked copy. `None`: the message may be sent at any time.
    pub send_before: Option<Instant>,
}

impl Outgoing {
    pub(super) fn body(&self) -> &[u8] {
        self.shaped.as_ref().map_or(&self.delivery.content.payload, |shaped| &shaped.body)
    }

    /// Whether the message must not be sent any more.
    pub fn is_too_late(&self, now: Instant) -> bool {
        self.send_before.is_some_and(|before| now >= before)
    }
}

/// The part that all messages of one batch share.
pub(super) struct Envelope {
    queue: ShortString,
}

impl Envelope {
    /// `None` when the name is too long for AMQP.
    pub(super) fn new(queue: &QueueName) -> Option<Self> {
        Some(Self { queue: ShortString::try_new(queue.as_str()).ok()? })
    }

    pub(super) fn properties(&self, outgoing: &Outgoing) -> BasicProperties {
        let delivery = &outgoing.delivery;
        let properties = BasicProperties::default()
            .with_message_id(delivery.message_id().to_string().into())
            .with_correlation_id(delivery.id.to_string().into())
            .with_type(self.queue.clone())
            .with_delivery_mode(PERSISTENT)
            .with_priority(delivery.amqp_priority())
            .with_timestamp(delivery.amqp_timestamp_s())
            .with_headers(headers(outgoing));
        let properties = match (&outgoing.shaped, ShortString::try_new(delivery.content.content_type.as_str())) {
            (Some(shaped), _) => properties
                .with_content_type(shaped.content_type.into())
                .with_content_encoding(shaped.content_encoding.into()),
            (None, Ok(content_type)) => properties.with_content_type(content_type),
            // A submission with such a content type was refused. A message without the type is better than no
            // message.
            (None, Err(_)) => properties,
        };
        if outgoing.wants_result { properties.with_reply_to(RESULTS.into()) } else { properties }
    }
}

fn headers(outgoing: &Outgoing) -> FieldTable {
    let delivery = &outgoing.delivery;
    let mut table = FieldTable::default();
    let shaped = outgoing.shaped.iter().flat_map(|shaped| shaped.headers.iter().cloned());
    for (name, value) in delivery.headers(outgoing.max_attempts).into_iter().chain(shaped) {
        // A submission with a name longer than AMQP allows was refused.
        if let Ok(name) = ShortString::try_new(name) {
            table.insert(name, amqp(value));
        }
    }
    if let Some(receipt) = &outgoing.receipt {
        table.insert(HEADER_RECEIPT.into(), AMQPValue::LongString(receipt.as_str().into()));
    }
    table
}

fn amqp(value: HeaderValue) -> AMQPValue {
    match value {
        HeaderValue::LongString(text) => AMQPValue::LongString(text.into()),
        HeaderValue::I64(number) => AMQPValue::LongLongInt(number),
        HeaderValue::Bool(flag) => AMQPValue::Boolean(flag),
    }
}

/// The attempt that a report names. Accepts any integer type, and text and a float, because some clients write those.
pub(super) fn attempt_of(headers: &FieldTable) -> Option<i64> {
    match json(headers.inner().get(HEADER_ATTEMPT)?) {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().and_then(whole)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A float without a fraction that is small enough for an attempt.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX)).then_some(number as i64)
}

/// The reason why the broker dead-lettered a message: `rejected`, `delivery_limit`, `expired` or `maxlen`. The
/// newest death comes first.
pub(super) fn death_of(headers: &FieldTable) -> Option<String> {
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else {
        return None;
    };
    let AMQPValue::FieldTable(newest) = deaths.as_slice().first()? else {
        return None;
    };
    match json(newest.inner().get("reason")?) {
        Value::String(reason) => Some(reason),
        _ => None,
    }
}

/// A table of headers as JSON. Bytes that are not UTF-8 are converted with replacement characters.
pub(super) fn json_of(headers: &FieldTable) -> Value {
    let entries = headers.inner().iter();
    Value::Object(entries.map(|(name, value)| (name.as_str().to_owned(), json(value))).collect())
}

fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        AMQPValue::Timestamp(value) => (*value).into(),
        AMQPValue::Float(value) => (*value).into(),
        AMQPValue::Double(value) => (*value).into(),
        AMQPValue::DecimalValue(value) => (f64::from(value.value) / 10_f64.powi(i32::from(value.scale))).into(),
        AMQPValue::ShortString(value) => value.as_str().into(),
        AMQPValue::LongString(value) => value.to_string().into(),
        AMQPValue::ByteArray(value) => String::from_utf8_lossy(value.as_slice()).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        AMQPValue::FieldTable(table) => json_of(table),
        AMQPValue::Void => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldArray;

    use super::*;

    fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert((*name).into(), value.clone());
        }
        table
    }

    #[test]
    fn the_newest_death_gives_the_reason() {
        let death = |reason: &str| AMQPValue::FieldTable(table(&[("reason", AMQPValue::LongString(reason.into()))]));
        let deaths = FieldArray::from(vec![death("delivery_limit"), death("rejected")]);
        let headers = table(&[("x-death", AMQPValue::FieldArray(deaths))]);
        assert_eq!(death_of(&headers).as_deref(), Some("delivery_limit"));
        assert_eq!(death_of(&table(&[("x-death", AMQPValue::LongInt(3))])), None);
        assert_eq!(death_of(&table(&[])), None);
    }

    #[test]
    fn an_attempt_that_is_not_a_whole_number_is_none() {
        for (value, attempt) in [
            (AMQPValue::LongString(" 12 ".into()), Some(12)),
            (AMQPValue::LongString("twelve".into()), None),
            (AMQPValue::Double(2.0), Some(2)),
            (AMQPValue::Float(2.0), Some(2)),
            (AMQPValue::Double(1.5), None),
            (AMQPValue::Double(1e300), None),
            (AMQPValue::Double(f64::NAN), None),
            (AMQPValue::Void, None),
            (AMQPValue::Timestamp(u64::MAX), None),
        ] {
            assert_eq!(attempt_of(&table(&[(HEADER_ATTEMPT, value)])), attempt);
        }
    }
}
