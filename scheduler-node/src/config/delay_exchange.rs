//! `[[delay_exchange]]`: exchanges whose messages Duetime holds before they go on to another exchange.

use std::collections::HashMap;

use common::{
    queue::Unroutable,
    task::verdict::forwarded_unroutable,
    wire::{DelayRoute, amqp::ExchangeType},
};
use serde::Deserialize;

use super::complaint::Complaints;

/// AMQP allows 255 bytes; the name of the queue behind the exchange is this name after a prefix.
const MAX_NAME_BYTES: usize = 200;
const MAX_TARGET_BYTES: usize = 255;
/// Each exchange costs every node a channel, and the broker allows some two thousand on a connection.
const MAX_EXCHANGES: usize = 256;

/// An exchange for delayed messages, and the target of its messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayExchange {
    pub name: String,
    #[serde(rename = "type", default = "topic")]
    pub kind: ExchangeType,
    /// The exchange that receives the messages. It belongs to the application; Duetime does not declare it.
    pub deliver_to: String,
    /// What happens to a message for which `deliver_to` has no bound queue.
    #[serde(default = "unroutable")]
    pub unroutable: Unroutable,
}

fn unroutable() -> Unroutable {
    forwarded_unroutable(None)
}

const fn topic() -> ExchangeType {
    ExchangeType::Topic
}

impl DelayExchange {
    pub fn way(&self) -> DelayRoute {
        DelayRoute::new(&self.name, &self.deliver_to)
    }
}

pub(super) fn check(all: &[DelayExchange], complaints: &mut Complaints) {
    complaints.unless(
        all.len() <= MAX_EXCHANGES,
        "delay_exchange",
        format!("is given {} times; at most {MAX_EXCHANGES} are allowed", all.len()),
    );
    let targets: HashMap<&str, &str> = all.iter().map(|of| (of.name.as_str(), of.deliver_to.as_str())).collect();
    for (index, of) in all.iter().enumerate() {
        let key = |name: &str| format!("delay_exchange[{index}].{name}");
        complaints.unless(
            is_name(&of.name, MAX_NAME_BYTES),
            key("name"),
            format!(
                "is {:?}; it must be 1 to {MAX_NAME_BYTES} bytes and must not begin with `amq.` or `duetime`",
                of.name
            ),
        );
        complaints.unless(
            !of.deliver_to.is_empty()
                && of.deliver_to.len() <= MAX_TARGET_BYTES
                && !of.deliver_to.chars().any(char::is_control),
            key("deliver_to"),
            format!(
                "is {:?}; it must be the name of an exchange, 1 to {MAX_TARGET_BYTES} bytes without control characters",
                of.deliver_to
            ),
        );
        // A circle is reported once, at the first of its exchanges.
        let circle = circle(&of.name, &targets).filter(|way| !all[..index].iter().any(|of| way.contains(&&*of.name)));
        if let Some(way) = circle {
            let problem = format!("leads back to the delay exchange itself, by {way:?}; messages would never leave it");
            complaints.add(key("deliver_to"), problem);
        }
        let queue = of.way().queue;
        if let Some(other) = all[..index].iter().find(|other| other.way().queue == queue) {
            let problem = format!(
                "is {:?}; its tasks would be listed under `{queue}`, as those of {:?} are",
                of.name, other.name
            );
            complaints.add(key("name"), problem);
        }
    }
}

/// The exchanges through which messages of the delay exchange `first` come back to it. `None`: they leave for good, or
/// end in a circle without it.
fn circle<'a>(first: &'a str, targets: &HashMap<&'a str, &'a str>) -> Option<Vec<&'a str>> {
    let mut way = vec![first];
    for _ in 0..targets.len() {
        let next = *targets.get(way.last()?)?;
        if next == first {
            return Some(way);
        }
        way.push(next);
    }
    None
}

fn is_name(name: &str, most: usize) -> bool {
    let reserved = name.starts_with("amq.") || name == "duetime" || name.starts_with("duetime.");
    !name.is_empty() && name.len() <= most && !reserved && !name.chars().any(char::is_control)
}
