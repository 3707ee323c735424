//! The properties of a message that goes on unchanged, converted between AMQP's types and the stored ones.

use base64::{Engine, engine::general_purpose::STANDARD};
use common::{
    task::{
        self,
        envelope::{Field, Properties, Table, Text},
    },
    wire::amqp::{
        HEADER_BCC, HEADER_CC, HEADER_ERROR, HEADER_EXCHANGE, HEADER_EXPIRATION, HEADER_MESSAGE_ID, HEADER_PROPERTIES,
        HEADER_REDELIVERED, HEADER_ROUTING_KEY,
    },
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString},
};

use super::{
    message::{Outgoing, PERSISTENT},
    received::Received,
};

/// The most characters kept of the reason for which a message is set aside.
const REASON_CHARS: usize = 1_000;
/// The most bytes of a set-aside message's properties, so that its headers fit into one frame (128 KiB) with
/// Duetime's own. A longer frame costs the connection. Beyond the limit, the original headers are left out.
const MAX_ASIDE_BYTES: usize = 64 << 10;
/// The headers that would route copies of a message elsewhere when it is published again, and their names on a
/// message that is set aside.
const ROUTING_HEADERS: [(&str, &str); 2] = [("CC", HEADER_CC), ("BCC", HEADER_BCC)];

/// Reads all properties of a message.
pub(super) fn read(of: &BasicProperties) -> Properties {
    let text = |value: &Option<ShortString>| value.as_ref().map(|text| Text::from(text.as_str()));
    Properties {
        content_type: text(of.content_type()),
        content_encoding: text(of.content_encoding()),
        headers: of.headers().as_ref().map(table),
        delivery_mode: *of.delivery_mode(),
        priority: *of.priority(),
        correlation_id: text(of.correlation_id()),
        reply_to: text(of.reply_to()),
        expiration: text(of.expiration()),
        message_id: text(of.message_id()),
        timestamp: *of.timestamp(),
        kind: text(of.kind()),
        user_id: text(of.user_id()),
        app_id: text(of.app_id()),
        cluster_id: text(of.cluster_id()),
    }
}

/// The original properties, with the headers that name the attempt and those that were set since. A payload of another
/// type has replaced the original one, and with it its encoding.
pub(super) fn properties(outgoing: &Outgoing, envelope: &task::Envelope, user: Option<&str>) -> BasicProperties {
    let of = &envelope.properties;
    let mut headers = of.headers.as_ref().map(amqp_table).unwrap_or_default();
    for (name, value) in &outgoing.delivery.content.headers {
        headers.insert(short(&name.as_str().into()), AMQPValue::LongString(value.as_str().into()));
    }
    let id = outgoing.delivery.message_id().to_string();
    headers.insert(HEADER_MESSAGE_ID.into(), AMQPValue::LongString(id.into()));
    let redelivered = outgoing.delivery.redelivered || envelope.redelivered;
    headers.insert(HEADER_REDELIVERED.into(), AMQPValue::Boolean(redelivered));
    let content_type = &outgoing.delivery.content.content_type;
    if content_type == of.shown_content_type() {
        return besides_headers(of, user).with_headers(headers);
    }
    let replaced = Properties {
        content_type: Some(content_type.as_str().into()),
        content_encoding: None,
        headers: None,
        ..of.clone()
    };
    besides_headers(&replaced, user).with_headers(headers)
}

/// The properties of a message that cannot be a task: the original ones with the reason and the origin, without
/// those that would make it go elsewhere or vanish. Each header that this adds is one of `ASIDE_HEADERS`.
pub(super) fn set_aside(received: &Received, reason: &str, user: Option<&str>) -> BasicProperties {
    let message = &received.message;
    let of = &message.properties;
    let mut headers = FieldTable::default();
    let fits = serde_json::to_string(of).is_ok_and(|json| json.len() <= MAX_ASIDE_BYTES);
    for (name, value) in of.headers.iter().flatten().filter(|_| fits) {
        let routing = ROUTING_HEADERS.iter().find(|(routing, _)| name.as_str() == Some(*routing));
        headers.insert(routing.map_or_else(|| short(name), |(_, aside)| (*aside).into()), amqp(value));
    }
    let mut say = |name: &str, text: Vec<u8>| {
        headers.insert(name.into(), AMQPValue::LongString(text.into()));
    };
    say(HEADER_ERROR, reason.chars().take(REASON_CHARS).collect::<String>().into_bytes());
    say(HEADER_EXCHANGE, received.exchange.clone().into_bytes());
    let trouble = received.trouble.as_ref();
    let routing_key = trouble.and_then(|trouble| trouble.routing_key.clone());
    say(HEADER_ROUTING_KEY, routing_key.unwrap_or_else(|| message.routing_key.clone().into_bytes()));
    if let Some(trouble) = trouble {
        say(HEADER_PROPERTIES, STANDARD.encode(&trouble.properties).into_bytes());
    }
    if let Some(expiration) = &of.expiration {
        say(HEADER_EXPIRATION, expiration.0.clone());
    }
    let lasting = Properties { expiration: None, headers: None, ..of.clone() };
    besides_headers(&lasting, user).with_headers(headers).with_delivery_mode(PERSISTENT)
}

/// Copies the properties other than headers. Leaves out the name of another user: the broker would close the
/// channel over it.
fn besides_headers(of: &Properties, user: Option<&str>) -> BasicProperties {
    let mut properties = BasicProperties::default();
    macro_rules! copy {
        ($($field:ident => $with:ident),*) => {
            $(if let Some(text) = &of.$field { properties = properties.$with(short(text)); })*
        };
    }
    copy!(
        content_type => with_content_type, content_encoding => with_content_encoding, correlation_id => with_correlation_id,
        reply_to => with_reply_to, expiration => with_expiration, message_id => with_message_id, kind => with_type,
        app_id => with_app_id, cluster_id => with_cluster_id
    );
    if let Some(text) = of.user_id.as_ref().filter(|text| user.is_some() && text.as_str() == user) {
        properties = properties.with_user_id(short(text));
    }
    if let Some(mode) = of.delivery_mode {
        properties = properties.with_delivery_mode(mode);
    }
    if let Some(priority) = of.priority {
        properties = properties.with_priority(priority);
    }
    if let Some(timestamp) = of.timestamp {
        properties = properties.with_timestamp(timestamp);
    }
    properties
}

/// The id that names the attempt of one of Duetime's messages.
pub(super) fn message_id(of: &BasicProperties) -> Option<String> {
    let kept = of.headers().as_ref().and_then(|headers| headers.inner().get(HEADER_MESSAGE_ID));
    match kept {
        Some(AMQPValue::LongString(id)) => Some(id.to_string()),
        _ => of.message_id().as_ref().map(ToString::to_string),
    }
}

/// Converts a text that arrived as a short string back into one.
pub(super) fn short(text: &Text) -> ShortString {
    ShortString::try_new(String::from_utf8_lossy(&text.0)).unwrap_or_default()
}

fn table(of: &FieldTable) -> Table {
    of.inner().iter().map(|(name, value)| (Text::from(name.as_str()), field(value))).collect()
}

fn field(value: &AMQPValue) -> Field {
    match value {
        AMQPValue::Boolean(value) => Field::Bool(*value),
        AMQPValue::ShortShortInt(value) => Field::I8(*value),
        AMQPValue::ShortShortUInt(value) => Field::U8(*value),
        AMQPValue::ShortInt(value) => Field::I16(*value),
        AMQPValue::ShortUInt(value) => Field::U16(*value),
        AMQPValue::LongInt(value) => Field::I32(*value),
        AMQPValue::LongUInt(value) => Field::U32(*value),
        AMQPValue::LongLongInt(value) => Field::I64(*value),
        AMQPValue::Float(value) => Field::F32(value.to_bits()),
        AMQPValue::Double(value) => Field::F64(value.to_bits()),
        AMQPValue::DecimalValue(value) => Field::Decimal { scale: value.scale, value: value.value },
        AMQPValue::ShortString(value) => Field::Text(value.as_str().into()),
        AMQPValue::LongString(value) => Field::Text(Text(value.as_bytes().to_vec())),
        AMQPValue::ByteArray(value) => Field::Bytes(Text(value.as_slice().to_vec())),
        AMQPValue::FieldArray(values) => Field::Array(values.as_slice().iter().map(field).collect()),
        AMQPValue::Timestamp(value) => Field::Time(*value),
        AMQPValue::FieldTable(value) => Field::Table(table(value)),
        AMQPValue::Void => Field::Void,
    }
}

fn amqp_table(of: &Table) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, field) in of {
        table.insert(short(name), amqp(field));
    }
    table
}

fn amqp(field: &Field) -> AMQPValue {
    match field {
        Field::Bool(value) => AMQPValue::Boolean(*value),
        Field::I8(value) => AMQPValue::ShortShortInt(*value),
        Field::U8(value) => AMQPValue::ShortShortUInt(*value),
        Field::I16(value) => AMQPValue::ShortInt(*value),
        Field::U16(value) => AMQPValue::ShortUInt(*value),
        Field::I32(value) => AMQPValue::LongInt(*value),
        Field::U32(value) => AMQPValue::LongUInt(*value),
        Field::I64(value) => AMQPValue::LongLongInt(*value),
        Field::F32(bits) => AMQPValue::Float(f32::from_bits(*bits)),
        Field::F64(bits) => AMQPValue::Double(f64::from_bits(*bits)),
        Field::Decimal { scale, value } => AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value }),
        Field::Text(text) => AMQPValue::LongString(text.0.clone().into()),
        Field::Bytes(bytes) => AMQPValue::ByteArray(bytes.0.clone().into()),
        Field::Array(fields) => AMQPValue::FieldArray(FieldArray::from(fields.iter().map(amqp).collect::<Vec<_>>())),
        Field::Time(value) => AMQPValue::Timestamp(*value),
        Field::Table(fields) => AMQPValue::FieldTable(amqp_table(fields)),
        Field::Void => AMQPValue::Void,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::tests::bench::outgoing;

    #[test]
    fn a_payload_of_another_type_that_replaces_a_forwarded_one_goes_out_with_its_own_type() {
        let text = |text: &str| Some(Text::from(text));
        let own = Properties {
            content_type: text("text/plain"),
            content_encoding: text("gzip"),
            app_id: text("shop"),
            ..Properties::default()
        };
        let envelope = task::Envelope { properties: own, ..task::Envelope::default() };
        let mut message = outgoing("late");
        for (content_type, encoding) in [("text/plain", Some("gzip")), ("application/json", None)] {
            message.delivery.content.content_type = content_type.to_owned();
            let sent = properties(&message, &envelope, None);
            assert_eq!(sent.content_type().as_ref().map(ShortString::as_str), Some(content_type));
            assert_eq!(sent.content_encoding().as_ref().map(ShortString::as_str), encoding);
            assert_eq!(sent.app_id().as_ref().map(ShortString::as_str), Some("shop"));
        }
    }

    #[test]
    fn a_message_is_marked_if_its_attempt_or_the_message_itself_may_have_come_before() {
        for (attempt, message) in [(false, false), (false, true), (true, false)] {
            let envelope = task::Envelope { redelivered: message, ..task::Envelope::default() };
            let mut outgoing = outgoing("late");
            outgoing.delivery.redelivered = attempt;
            let sent = properties(&outgoing, &envelope, None);
            let mark = sent.headers().as_ref().and_then(|headers| headers.inner().get(HEADER_REDELIVERED));
            assert_eq!(mark, Some(&AMQPValue::Boolean(attempt || message)));
        }
    }
}
