//! Errors between a node and its broker.

use std::time::Duration;

use common::{ids::ClusterId, wire::amqp::CLUSTER};
use lapin::protocol::AMQPError;

use crate::causes::explained;

pub(super) const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
pub(super) const PRECONDITION_FAILED: u16 = 406;

/// The words of a refusal over a routing key. A refusal of the whole exchange does not have them.
const OF_A_KEY: &str = "access to topic '";

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The error leaves the URL out: it holds a password.
    #[error("not an AMQP URL (`amqp://user:password@host:port/vhost`)")]
    Url,
    #[error("cannot connect")]
    Connect(#[source] lapin::Error),
    #[error("the broker requires a client certificate: set `amqp.cert_file` and `amqp.key_file`")]
    NoCertificate(#[source] lapin::Error),
    #[error("cannot {doing}")]
    Refused {
        doing: String,
        #[source]
        source: lapin::Error,
    },
    #[error("no answer within {within:?} to the request to {doing}")]
    Silent { doing: String, within: Duration },
    #[error("the connection is lost: {reason}")]
    Lost { reason: String },
    /// Duetime leaves such a queue alone: another application's consumers read it.
    #[error(
        "the queue `{queue}` exists in RabbitMQ, but Duetime did not declare it; to publish tasks to it, an operator \
         sets `use_existing` = `true` in the queue's policy ({refusal})"
    )]
    Stranger { queue: String, refusal: String },
    #[error(
        "this user may not declare the queue `{queue}` in RabbitMQ; grant it the permission to configure that queue, or \
         declare it as the reference says and set `use_existing` = `true` in the queue's policy ({refusal})"
    )]
    MayNotDeclare { queue: String, refusal: String },
    #[error(
        "the virtual host belongs to another cluster: its queue `{CLUSTER}` does not name this one, {cluster}. Give each \
         cluster a virtual host of its own; if the other is gone, delete that queue ({refusal})"
    )]
    OtherCluster { cluster: ClusterId, refusal: String },
    #[error("the broker ended the subscription to `{queue}`")]
    Unsubscribed { queue: String },
}

impl Error {
    /// The whole chain of causes on one line, for a log or a state that a person reads.
    pub(super) fn explained(&self) -> String {
        explained(self)
    }

    /// The error for a connection that did not show the certificate that the broker asked for. A broker that
    /// makes certificates optional goes on and may then refuse the login.
    pub(super) fn or_no_certificate(self) -> Self {
        match self {
            Self::Connect(source) if matches!(source.kind(), lapin::ErrorKind::IOError(_)) => {
                Self::NoCertificate(source)
            }
            error => error,
        }
    }

    /// Whether one queue is gone. That ends the reading of all, but the acks of the others still count.
    pub(super) const fn is_end_of_queue(&self) -> bool {
        matches!(self, Self::Unsubscribed { .. })
    }

    /// Whether the broker keeps this user or this connection from the thing, or says that it is not there.
    pub(super) fn is_refused_access(&self) -> bool {
        matches!(self.reply_code(), Some(ACCESS_REFUSED | NOT_FOUND | RESOURCE_LOCKED))
    }

    /// The code with which the broker refused, in AMQP's numbering (404 not found, 406 precondition failed, ...).
    pub(super) fn reply_code(&self) -> Option<u16> {
        let Self::Refused { source, .. } = self else {
            return None;
        };
        reply(source).map(AMQPError::get_id)
    }
}

/// The code and the text with which the broker closed a channel or the connection.
pub(super) fn reply(error: &lapin::Error) -> Option<&AMQPError> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(reply) => Some(reply),
        _ => None,
    }
}

/// Whether the broker closed the channel over a message and not over the route of all. Without a routing key of its own
/// (`has_own_key`), every message of the route is refused: a person has to grant the permission.
pub(super) fn is_of_message(reply: &AMQPError, has_own_key: bool) -> bool {
    match reply.get_id() {
        PRECONDITION_FAILED => true,
        ACCESS_REFUSED => has_own_key && reply.get_message().as_str().contains(OF_A_KEY),
        _ => false,
    }
}

/// Waits a bounded time for one answer of the broker.
pub(super) async fn answer<T>(
    doing: impl FnOnce() -> String,
    within: Duration,
    request: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(within, request).await {
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(source)) => Err(Error::Refused { doing: doing(), source }),
        Err(_) => Err(Error::Silent { doing: doing(), within }),
    }
}
