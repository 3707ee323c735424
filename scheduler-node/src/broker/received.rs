//! One message that a client has submitted, and where it came in.

use std::sync::Arc;

use common::wire::{Message, amqp::ExchangeType, screen::Trouble};

use super::ack::AckHandle;

/// An exchange behind which a queue of Duetime's takes every message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayExchange {
    pub name: String,
    pub kind: ExchangeType,
}

impl DelayExchange {
    /// The queue behind the exchange.
    pub(super) fn queue(&self) -> String {
        format!("duetime.delay.{}", self.name)
    }
}

/// The queue through which a message came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntakeSource {
    Submit,
    /// The delay exchange of this name.
    Delay(Arc<str>),
}

/// One message that came in. Any client with access to the broker may have written it: nothing in it is checked.
#[derive(Debug)]
pub struct Received {
    pub source: IntakeSource,
    pub message: Message,
    /// The reason why the message did not come as it was sent. Such a message cannot be a task.
    pub trouble: Option<Trouble>,
    /// The reason why its routing key in `duetime.in` does not lead here.
    pub astray: Option<&'static str>,
    pub ack: AckHandle,
    /// The exchange to which it was published.
    pub(super) exchange: String,
}
