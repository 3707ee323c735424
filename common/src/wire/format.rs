//! What a message looks like to consumers that expect one of another system: its queue's `format`.
//!
//! Bytes in, bytes and headers out. A payload that cannot have the format is refused where it comes in; one that came in
//! before its queue got the format is given up when it is due.

mod celery;
mod cloudevents;

use crate::{field::FieldError, queue::Format, task::Delivery, wire::amqp::Header};

/// What takes the place of the body and the content type as they were submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaped {
    pub body: Vec<u8>,
    pub content_type: &'static str,
    pub content_encoding: &'static str,
    /// Beside those that every message has; they go before the task's own of the same name.
    pub headers: Vec<Header>,
}

/// Refuses a payload that cannot have the format; the error names what is wrong with it.
pub fn check(format: Format, payload: &[u8]) -> Result<(), FieldError> {
    match format {
        // Any bytes can be the data of an event.
        Format::Raw | Format::CloudEvents => Ok(()),
        Format::Celery => celery::check(payload),
    }
}

/// The message of this attempt in the format; `None`: as it was submitted.
pub fn shape(format: Format, delivery: &Delivery) -> Result<Option<Shaped>, FieldError> {
    match format {
        Format::Raw => Ok(None),
        Format::Celery => celery::shape(delivery).map(Some),
        Format::CloudEvents => Ok(Some(cloudevents::shape(delivery))),
    }
}

#[cfg(test)]
mod tests;
