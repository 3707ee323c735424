//! The shape of messages for the consumers of another system: the queue's `format`.
//!
//! Each format turns the task's bytes into a body and headers. A payload that does not fit the format is refused when
//! it is submitted. If it was submitted before its queue got the format, its task is given up when it is due.

mod celery;
mod cloudevents;

use crate::{field::FieldError, queue::Format, task::Delivery, wire::amqp::Header};

/// The body and the content type that replace those of the submission.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaped {
    pub body: Vec<u8>,
    pub content_type: &'static str,
    pub content_encoding: &'static str,
    /// Headers in addition to those of every message; they override the task's own headers of the same name.
    pub headers: Vec<Header>,
}

/// Refuses a payload that does not fit the format; the error says why.
pub fn check(format: Format, payload: &[u8]) -> Result<(), FieldError> {
    match format {
        // Any bytes can be the data of an event.
        Format::Raw | Format::CloudEvents => Ok(()),
        Format::Celery => celery::check(payload),
    }
}

/// The attempt's message in the format; `None` leaves the message as submitted.
pub fn shape(format: Format, delivery: &Delivery) -> Result<Option<Shaped>, FieldError> {
    match format {
        Format::Raw => Ok(None),
        Format::Celery => celery::shape(delivery).map(Some),
        Format::CloudEvents => Ok(Some(cloudevents::shape(delivery))),
    }
}

#[cfg(test)]
mod tests;
