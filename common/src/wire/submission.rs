//! A task that is submitted as an AMQP message: one in Duetime's own form, or a message that waits on its way to
//! another exchange.

use std::collections::BTreeMap;

use crate::{
    ids::QueueName,
    task::{
        Content, Envelope, OnDuplicate, ValidTask,
        envelope::{Field, MAX_DEPTH, Properties, Text},
    },
    time::{Present, UnixMicros},
    wire::{
        Limits, Problem, TaskRequest,
        amqp::ASIDE_HEADERS,
        check::{BYTES, DEFAULT_PRIORITY, check_headers, check_short, check_size},
    },
};

/// The most bytes of JSON for the properties and headers of a waiting message. Together with Duetime's own headers
/// they must fit into one frame (128 KiB) when the message is published.
const MAX_ENVELOPE_BYTES: usize = 64 << 10;

/// The delay headers of the delayed-message plugin and its successors. The first one with a value counts.
const X_DELAY: &str = "x-delay";
const X_DELIVERY_TIME: &str = "x-opt-delivery-time";
const X_DELIVERY_DELAY: &str = "x-opt-delivery-delay";

/// Headers that Duetime's own queue adds when it redelivers a message.
const OF_THE_QUEUE: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// The values of `content_encoding` that leave the body as it is. Clients also write the character set there.
const PLAIN_ENCODINGS: [&str; 5] = ["", "identity", "binary", "utf-8", "utf8"];

/// A message from the broker. Any client with access to the broker may have written it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    pub routing_key: String,
    /// The queue that its routing key in `duetime.in` named; `None` for a message that came another way.
    pub addressed_to: Option<String>,
    /// Whether RabbitMQ has delivered it before.
    pub redelivered: bool,
    pub properties: Properties,
    pub body: Vec<u8>,
}

/// The route of messages that are published to a delay exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayRoute {
    /// The queue that lists the message while it waits.
    pub queue: QueueName,
    /// The exchange that receives the message afterwards.
    pub deliver_to: String,
}

impl DelayRoute {
    /// Creates the route. The queue takes the exchange's name, as far as a queue's name allows.
    pub fn new(exchange: &str, deliver_to: &str) -> Self {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = exchange.chars().map(|c| if allowed(c) { c } else { '_' }).take(128).collect();
        Self { queue: QueueName::new(name), deliver_to: deliver_to.to_owned() }
    }
}

impl Message {
    /// The task of a message in Duetime's own form: `duetime-...` headers hold the fields, the body is the payload.
    pub fn submitted(&self, now: Present, limits: &Limits) -> Result<ValidTask, Problem> {
        let mut request = TaskRequest::default();
        let mut own = BTreeMap::new();
        for (name, field) in self.headers() {
            let name = name.as_str().ok_or_else(|| refuse("headers", "the name of a header is not UTF-8"))?;
            if ASIDE_HEADERS.contains(&name) {
                continue;
            }
            if let Some(option) = name.strip_prefix("duetime-") {
                set(&mut request, option, field)?;
            } else if [X_DELAY, X_DELIVERY_TIME, X_DELIVERY_DELAY].contains(&name) {
                return Err(refuse(name, format!("`{name}` applies only to a delay exchange; use `duetime-delay-ms`")));
            } else if !name.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("x-")) {
                // The broker adds headers that begin with `x-` on the way.
                own.insert(name.to_owned(), text(name, field)?.to_owned());
            }
        }
        if let Some(queue) = &self.addressed_to {
            if !request.queue.is_empty() && request.queue != *queue {
                let detail = format!("`duetime-queue` is `{}`, but the routing key names `{queue}`", request.queue);
                return Err(refuse("duetime-queue", detail));
            }
            request.queue.clone_from(queue);
        }
        if request.queue.is_empty() {
            return Err(refuse("duetime-queue", "the header `duetime-queue` is missing: it names the queue"));
        }
        if request.key.is_none() {
            // The message id becomes the key, so that a message that arrives twice is one task.
            request.key =
                self.properties.message_id.as_ref().and_then(Text::as_str).filter(|id| !id.is_empty()).map(Into::into);
        }
        check_headers(&own)?;
        check_size(self.body.len(), limits)?;
        self.check_encoding()?;
        let content_type = match &self.properties.content_type {
            Some(given) => given.as_str().ok_or_else(|| refuse("content_type", "`content_type` is not UTF-8"))?,
            None => BYTES,
        };
        check_short("content_type", content_type)?;
        let mut task = request.validate(now, limits)?;
        task.content = Content { payload: self.body.clone(), content_type: content_type.to_owned(), headers: own };
        Ok(task)
    }

    /// Refuses a body that only its `content_encoding` explains. A task has no place for that.
    fn check_encoding(&self) -> Result<(), Problem> {
        let Some(encoding) = &self.properties.content_encoding else { return Ok(()) };
        let is_plain = |encoding: &str| PLAIN_ENCODINGS.iter().any(|plain| encoding.eq_ignore_ascii_case(plain));
        if encoding.as_str().is_some_and(is_plain) {
            return Ok(());
        }
        let given = String::from_utf8_lossy(&encoding.0);
        let detail = format!(
            "consumers would not learn that the body is encoded as `{}`: leave `content_encoding` out, and name the \
             form of the body in `content_type`",
            given.escape_debug()
        );
        Err(refuse("content_encoding", detail))
    }

    /// The task that is this very message, on its way to another exchange.
    pub fn delayed(&self, way: &DelayRoute, now: Present, limits: &Limits) -> Result<ValidTask, Problem> {
        check_size(self.body.len(), limits)?;
        let mut properties = self.properties.clone();
        let due_at = match properties.headers.as_mut() {
            Some(headers) => {
                headers.retain(|(name, _)| !name.as_str().is_some_and(|name| OF_THE_QUEUE.contains(&name)));
                take_delay(headers, now)?
            }
            None => None,
        };
        if self.headers().any(|(_, field)| field.depth() > MAX_DEPTH) {
            return Err(refuse("headers", format!("headers may be nested at most {MAX_DEPTH} levels deep")));
        }
        let envelope = Envelope {
            exchange: way.deliver_to.clone(),
            routing_key: self.routing_key.as_str().into(),
            properties,
            redelivered: self.redelivered,
        };
        let size = serde_json::to_string(&envelope).map_or(usize::MAX, |json| json.len());
        if size > MAX_ENVELOPE_BYTES {
            return Err(refuse(
                "headers",
                format!("properties and headers may take at most {MAX_ENVELOPE_BYTES} bytes, not {size}"),
            ));
        }
        let content_type = self.properties.shown_content_type().to_owned();
        Ok(ValidTask {
            queue: way.queue.clone(),
            due_at: due_at.unwrap_or(now.latest),
            due_now: due_at.is_none(),
            content: Content { payload: self.body.clone(), content_type, headers: BTreeMap::new() },
            priority: DEFAULT_PRIORITY,
            keyed: None,
            partition_key: None,
            depends_on: Vec::new(),
            max_attempts: None,
            timeout_ms: None,
            retry: None,
            expires_at: None,
            envelope: Some(Box::new(envelope)),
        })
    }

    fn headers(&self) -> impl Iterator<Item = &(Text, Field)> {
        self.properties.headers.iter().flatten()
    }
}

impl Properties {
    /// The content type of a task that is this message.
    pub fn shown_content_type(&self) -> &str {
        let own = self.content_type.as_ref().and_then(Text::as_str);
        own.filter(|text| check_short("content_type", text).is_ok()).unwrap_or(BYTES)
    }
}

/// Reads one `duetime-` header.
fn set(request: &mut TaskRequest, option: &str, field: &Field) -> Result<(), Problem> {
    let name = format!("duetime-{option}");
    let whole = || integer(field).ok_or_else(|| refuse(&name, format!("`{name}` must be a whole number")));
    let small = |number: i64| i32::try_from(number).map_err(|_| refuse(&name, format!("`{name}` is out of range")));
    let moment = |millis: i64| {
        UnixMicros::from_millis(millis).filter(UnixMicros::is_writable).ok_or_else(|| {
            refuse(&name, format!("`{name}` must be Unix milliseconds before the year 10000, not {millis}"))
        })
    };
    match option {
        "queue" => request.queue = text(&name, field)?.to_owned(),
        "due-ms" => request.due_at = Some(moment(whole()?)?),
        "delay-ms" => request.delay_ms = Some(whole()?),
        "priority" => request.priority = Some(i16::try_from(whole()?).unwrap_or(i16::MAX)),
        "partition-key" => request.partition_key = Some(text(&name, field)?.to_owned()),
        "max-attempts" => request.max_attempts = Some(small(whole()?)?),
        "timeout-ms" => request.timeout_ms = Some(whole()?),
        "expires-ms" => request.expires_at = Some(moment(whole()?)?),
        "expires-after-ms" => request.expires_after_ms = Some(whole()?),
        "key" => request.key = Some(text(&name, field)?.to_owned()),
        "version" => request.version = Some(whole()?),
        "on-duplicate" => request.on_duplicate = Some(on_duplicate(&name, text(&name, field)?)?),
        "depends-on" => {
            let list = serde_json::from_str(text(&name, field)?);
            request.depends_on =
                Some(list.map_err(|error| refuse(&name, format!("`{name}` must be a JSON list: {error}")))?);
        }
        _ => {
            return Err(refuse(
                &name,
                format!("there is no header `{name}`; names that begin with `duetime-` are reserved"),
            ));
        }
    }
    Ok(())
}

fn on_duplicate(name: &str, requested: &str) -> Result<OnDuplicate, Problem> {
    OnDuplicate::parse(requested)
        .ok_or_else(|| refuse(name, format!("`{name}` must be keep, reject, replace or version, not `{requested}`")))
}

/// The due time of the message; `None` when it does not wait. The delay in the header is negated: a second delay
/// exchange then does not delay the message again, and its consumer sees that it has waited.
fn take_delay(headers: &mut [(Text, Field)], now: Present) -> Result<Option<UnixMicros>, Problem> {
    for name in [X_DELAY, X_DELIVERY_TIME, X_DELIVERY_DELAY] {
        let Some((_, field)) = headers.iter_mut().find(|(of, _)| of.as_str() == Some(name)) else { continue };
        let Some(millis) = waiting(name, field)? else { continue };
        let too_late = || refuse(name, format!("`{name}` reaches past the year 9999"));
        if name == X_DELIVERY_TIME {
            // Every moment before 1970 has passed, also one before the year 0.
            let due_at = UnixMicros::from_millis(millis.max(0)).filter(UnixMicros::is_writable).ok_or_else(too_late)?;
            return Ok(Some(due_at).filter(|due_at| *due_at > now.earliest));
        }
        let Some(wait_ms) = u64::try_from(millis).ok().filter(|wait_ms| *wait_ms > 0) else { return Ok(None) };
        let due_at = now.latest.plus(std::time::Duration::from_millis(wait_ms));
        if due_at >= UnixMicros::LAST {
            return Err(too_late());
        }
        negate(field, millis);
        return Ok(Some(due_at));
    }
    Ok(None)
}

/// The delay in milliseconds, as the delayed-message plugin reads it. `None` for a type that the plugin takes for no
/// delay. Text that is not a number is refused, where the plugin would not delay. So is every other type in the headers
/// of its successors: their senders ask for a delay that Duetime does not know.
fn waiting(name: &str, field: &Field) -> Result<Option<i64>, Problem> {
    let float = match field {
        Field::F32(bits) => f64::from(f32::from_bits(*bits)),
        Field::F64(bits) => f64::from_bits(*bits),
        Field::Text(_) => {
            return integer(field)
                .map(Some)
                .ok_or_else(|| refuse(name, format!("`{name}` is text, but not a whole number")));
        }
        // AMQP's own type for a moment, in seconds. A value too large for the type is past the year 9999 in any case.
        Field::Time(seconds) if name == X_DELIVERY_TIME => {
            return Ok(Some(i64::try_from(*seconds).unwrap_or(i64::MAX).saturating_mul(1_000)));
        }
        Field::Void => return Ok(None),
        other => {
            return match integer(other) {
                None if name != X_DELAY => {
                    Err(refuse(name, format!("`{name}` has a type that is no number; use a whole number")))
                }
                millis => Ok(millis),
            };
        }
    };
    if float.is_nan() {
        return Err(refuse(name, format!("`{name}` is not a number")));
    }
    // Truncated towards zero; a value too large for the type is past the year 9999 in any case.
    Ok(Some(float as i64))
}

fn negate(field: &mut Field, millis: i64) {
    *field = match field {
        Field::I8(value) => Field::I8(-*value),
        Field::I16(value) => Field::I16(-*value),
        Field::I32(value) => Field::I32(-*value),
        _ => Field::I64(-millis),
    };
}

/// A whole number of any type, or text that spells one.
fn integer(field: &Field) -> Option<i64> {
    match field {
        Field::I8(value) => Some((*value).into()),
        Field::U8(value) => Some((*value).into()),
        Field::I16(value) => Some((*value).into()),
        Field::U16(value) => Some((*value).into()),
        Field::I32(value) => Some((*value).into()),
        Field::U32(value) => Some((*value).into()),
        Field::I64(value) => Some(*value),
        Field::Text(text) => text.as_str()?.trim().parse().ok(),
        _ => None,
    }
}

fn text<'a>(name: &str, field: &'a Field) -> Result<&'a str, Problem> {
    let text = match field {
        Field::Text(text) => text.as_str(),
        _ => None,
    };
    text.ok_or_else(|| refuse(name, format!("the header `{}` must be text in UTF-8", name.escape_debug())))
}

fn refuse(field: &str, detail: impl Into<String>) -> Problem {
    Problem::invalid_field(field.to_owned(), detail)
}

#[cfg(test)]
mod tests;
