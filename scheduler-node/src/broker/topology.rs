//! The exchanges and queues that must exist before a message can pass, and their declaration.

use std::collections::HashSet;

use common::ids::ClusterId;
use common::wire::amqp::{
    CLUSTER, EXCHANGE, ExchangeType, IN, INVALID, REJECTED, RESULTS, SUBMIT, result_key, submit_key,
};
use lapin::{
    Channel, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use parking_lot::Mutex;

use super::{
    connection::{ANSWER_WITHIN, Link},
    error::{ACCESS_REFUSED, Error, PRECONDITION_FAILED, answer},
    received::DelayExchange,
    route::QueueDeclaration,
};

/// The number of times that consumers may lose or requeue a message before it counts as rejected. It is the
/// broker's own default from 4.0 on; earlier versions had no limit.
const TASK_DELIVERY_LIMIT: i64 = 20;
/// Duetime's own queues must lose no message to a node that restarts often. Not every version knows "unlimited".
const OWN_DELIVERY_LIMIT: i64 = 1_000_000;

/// The bounds of the queue for messages that cannot be tasks. They wait there for a person, so long, and the
/// oldest make room: no consumer reads them, and any client that may submit can fill the queue.
const INVALID_BYTES: i64 = 1 << 30;
const INVALID_KEPT_MS: i64 = 14 * 86_400_000;
const MAX_LENGTH: &str = "x-max-length";

/// The queues found with arguments other than Duetime's, so that each is logged once. One that is mended is forgotten.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashSet<String>>);

impl Strangers {
    /// Notes that a queue is as Duetime declares it: the next trouble with it is news.
    fn forget(&self, queue: &str) {
        self.0.lock().remove(queue);
    }

    fn complain(&self, queue: &str, refusal: &Error) {
        if self.0.lock().insert(queue.to_owned()) {
            let error = refusal.explained();
            tracing::warn!(queue, error, "queue {queue} exists with different arguments; using it as it is");
        }
    }

    /// Logs once that this user may not declare the queue which says whose the virtual host is.
    fn complain_of_rights(&self, queue: &str, refusal: &Error) {
        if self.0.lock().insert(queue.to_owned()) {
            let error = refusal.explained();
            tracing::warn!(queue, error, "cannot tell whether another cluster uses this virtual host; going on");
        }
    }

    /// Logs once that a queue is left alone, and returns the error.
    fn refuse(&self, queue: &str, refusal: &Error) -> Error {
        let (name, code, refusal) = (queue.to_owned(), refusal.reply_code(), refusal.explained());
        let error = if code == Some(ACCESS_REFUSED) {
            Error::MayNotDeclare { queue: name, refusal }
        } else {
            Error::Stranger { queue: name, refusal }
        };
        if self.0.lock().insert(queue.to_owned()) {
            tracing::warn!(queue, error = error.explained(), "queue {queue} cannot be used; its tasks wait");
        }
        error
    }
}

/// Makes the virtual host one of this cluster, or finds out that it belongs to another one. A queue says whose it is:
/// RabbitMQ refuses to declare it with the id of another cluster. No message passes through it.
pub(super) async fn claim_vhost(link: &Link, cluster: ClusterId, strangers: &Strangers) -> Result<(), Error> {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    // A rejected message would go to a queue of that name, which does not exist.
    let arguments =
        quorum([("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(&cluster.to_string()))]);
    let Err(refusal) = request_queue(&link.channel().await?, CLUSTER, options, arguments).await else {
        strangers.forget(CLUSTER);
        return Ok(());
    };
    match refusal.reply_code() {
        Some(PRECONDITION_FAILED) => Err(Error::OtherCluster { cluster, refusal: refusal.explained() }),
        // A user who may not declare it cannot find out.
        Some(ACCESS_REFUSED) => {
            strangers.complain_of_rights(CLUSTER, &refusal);
            Ok(())
        }
        _ => Err(refusal),
    }
}

/// Declares what every node needs on every connection: the exchange of the task queues, and the two queues for
/// reports and rejections.
pub(super) async fn declare_own(link: &Link, strangers: &Strangers) -> Result<(), Error> {
    let arguments = || quorum([("x-delivery-limit", OWN_DELIVERY_LIMIT.into())]);
    declare_queue(link, RESULTS, arguments(), strangers).await?;
    declare_queue(link, REJECTED, arguments(), strangers).await?;
    declare_exchanges(&link.channel().await?).await
}

/// Declares Duetime's own exchanges again, and binds the queues that a consuming node reads. Without them reports,
/// rejections and submissions come to no queue.
pub(super) async fn declare_ways_in(link: &Link) -> Result<(), Error> {
    let channel = link.channel().await?;
    declare_exchanges(&channel).await?;
    bind_submit(&channel).await
}

/// Declares Duetime's own exchanges, and binds the queues for reports and rejections.
async fn declare_exchanges(channel: &Channel) -> Result<(), Error> {
    declare_exchange(channel, EXCHANGE, ExchangeKind::Direct).await?;
    declare_exchange(channel, REJECTED, ExchangeKind::Fanout).await?;
    bind(channel, REJECTED, REJECTED, "").await?;
    declare_exchange(channel, IN, ExchangeKind::Topic).await?;
    bind(channel, RESULTS, IN, &result_key("#")).await
}

async fn bind_submit(channel: &Channel) -> Result<(), Error> {
    bind(channel, SUBMIT, IN, &submit_key("#")).await
}

/// Declares one task queue and binds it. Declares the exchange too: a person who deletes a queue by hand may
/// have deleted that as well.
pub(super) async fn declare_task_queue(
    link: &Link,
    declaration: &QueueDeclaration,
    strangers: &Strangers,
) -> Result<(), Error> {
    let queue = declaration.queue.as_str();
    let channel = link.channel().await?;
    declare_exchange(&channel, EXCHANGE, ExchangeKind::Direct).await?;
    if declaration.use_existing {
        declare_queue(link, queue, task_queue(declaration.max_length), strangers).await?;
    } else {
        declare_no_stranger(link, declaration, strangers).await?;
    }
    bind(&channel, queue, EXCHANGE, queue).await
}

fn task_queue(max_length: i64) -> FieldTable {
    quorum([
        (MAX_LENGTH, max_length.into()),
        // The default drops messages that were confirmed.
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", TASK_DELIVERY_LIMIT.into()),
        ("x-dead-letter-exchange", text(REJECTED)),
        // The default loses a rejection when the rejected queue has no leader at that moment.
        ("x-dead-letter-strategy", text("at-least-once")),
    ])
}

/// Declares a task queue, and refuses one that another program has declared: its consumers expect other messages. A
/// queue of Duetime's keeps its original length, so a queue that differs in nothing else counts as Duetime's.
async fn declare_no_stranger(link: &Link, declaration: &QueueDeclaration, strangers: &Strangers) -> Result<(), Error> {
    let (queue, options) = (declaration.queue.as_str(), QueueDeclareOptions { durable: true, ..Default::default() });
    let declare =
        async |max_length| request_queue(&link.channel().await?, queue, options, task_queue(max_length)).await;
    let Err(refusal) = declare(declaration.max_length).await else {
        strangers.forget(queue);
        return Ok(());
    };
    if !matches!(refusal.reply_code(), Some(PRECONDITION_FAILED | ACCESS_REFUSED)) {
        return Err(refusal);
    }
    let Some(max_length) = other_max_length(&refusal.explained()) else {
        return Err(strangers.refuse(queue, &refusal));
    };
    match declare(max_length).await {
        Ok(()) => {
            strangers.complain(queue, &refusal);
            Ok(())
        }
        Err(again) if again.reply_code() == Some(PRECONDITION_FAILED) => Err(strangers.refuse(queue, &again)),
        Err(error) => Err(error),
    }
}

/// The length of an existing queue, read from RabbitMQ's refusal to declare it with another one. The text is
/// `inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '20' but current is '10'`, or in later
/// versions `... the value '10' of type 'signedint'`.
fn other_max_length(refusal: &str) -> Option<i64> {
    let (_, rest) = refusal.split_once(&format!("inequivalent arg '{MAX_LENGTH}'"))?;
    let (_, current) = rest.split_once("current is")?;
    let digits = current.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

/// Declares the queue for messages that cannot be tasks. Each look of a person counts as a delivery, so the queue
/// has a limit of its own. One of an earlier version has none, and is used as it is.
pub(super) async fn declare_invalid(link: &Link, strangers: &Strangers) -> Result<(), Error> {
    let bounds = || quorum([("x-max-length-bytes", INVALID_BYTES.into()), ("x-message-ttl", INVALID_KEPT_MS.into())]);
    let (options, mut arguments) = (QueueDeclareOptions { durable: true, ..Default::default() }, bounds());
    arguments.insert("x-delivery-limit".into(), OWN_DELIVERY_LIMIT.into());
    match request_queue(&link.channel().await?, INVALID, options, arguments).await {
        Err(refusal) if matches!(refusal.reply_code(), Some(PRECONDITION_FAILED | ACCESS_REFUSED)) => {
            declare_queue(link, INVALID, bounds(), strangers).await
        }
        declared => declared.inspect(|()| strangers.forget(INVALID)),
    }
}

/// Declares the queue to which clients submit tasks, and the queue for messages that cannot be tasks.
pub(super) async fn declare_submit(link: &Link, strangers: &Strangers) -> Result<(), Error> {
    match declare_invalid(link, strangers).await {
        // A node can do without this queue, and declares it again when it has a message for it.
        Err(silence @ Error::Silent { .. }) if link.is_connected() => {
            tracing::warn!(
                queue = INVALID,
                why = silence.explained(),
                "RabbitMQ does not answer for a queue; messages that cannot be tasks wait"
            );
        }
        declared => declared?,
    }
    declare_queue(link, SUBMIT, intake_queue_args(), strangers).await?;
    bind_submit(&link.channel().await?).await
}

/// Declares the exchange, and a queue behind it that takes every message. Returns the reason if the exchange
/// cannot be declared; the queue exists all the same.
pub(super) async fn declare_delay_exchange(
    link: &Link,
    exchange: &DelayExchange,
    strangers: &Strangers,
) -> Result<Option<String>, Error> {
    let (name, queue) = (exchange.name.as_str(), exchange.queue());
    declare_queue(link, &queue, intake_queue_args(), strangers).await?;
    let channel = link.channel().await?;
    // No binding of a direct exchange takes every key. A topic exchange bound with `#` routes the same way here.
    let (kind, routing_key) = match exchange.kind {
        ExchangeType::Topic | ExchangeType::Direct => (ExchangeKind::Topic, "#"),
        ExchangeType::Fanout => (ExchangeKind::Fanout, ""),
        ExchangeType::Headers => (ExchangeKind::Headers, ""),
    };
    match declare_exchange(&channel, name, kind.clone()).await {
        Ok(()) => bind(&channel, &queue, name, routing_key).await.map(|()| None),
        Err(refusal) if matches!(refusal.reply_code(), Some(PRECONDITION_FAILED | ACCESS_REFUSED)) => {
            Ok(Some(format!(
                "the exchange `{name}` cannot be declared as a durable {kind:?} exchange, so it delays no messages: \
                 delete the existing one, grant this user the permission, or choose another name in \
                 [[delay_exchange]] ({})",
                refusal.explained()
            )))
        }
        Err(error) => Err(error),
    }
}

/// The arguments of an intake queue. Messages that expire before a node has taken them, or that were requeued
/// too often, are set aside.
fn intake_queue_args() -> FieldTable {
    quorum([
        ("x-delivery-limit", OWN_DELIVERY_LIMIT.into()),
        ("x-overflow", text("reject-publish")),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(INVALID)),
        ("x-dead-letter-strategy", text("at-least-once")),
    ])
}

/// Declares a queue on a channel of its own, because a refusal closes the channel. A queue that exists with
/// other arguments, or that this user may not configure, is used as it is.
async fn declare_queue(link: &Link, queue: &str, arguments: FieldTable, strangers: &Strangers) -> Result<(), Error> {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let Err(refusal) = request_queue(&link.channel().await?, queue, options, arguments).await else {
        strangers.forget(queue);
        return Ok(());
    };
    if !matches!(refusal.reply_code(), Some(PRECONDITION_FAILED | ACCESS_REFUSED)) {
        return Err(refusal);
    }
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    request_queue(&link.channel().await?, queue, passive, FieldTable::default()).await?;
    strangers.complain(queue, &refusal);
    Ok(())
}

async fn request_queue(
    channel: &Channel,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: FieldTable,
) -> Result<(), Error> {
    let declared = channel.queue_declare(name(queue), options, arguments);
    answer(|| format!("declare the queue `{queue}`"), ANSWER_WITHIN, declared).await?;
    Ok(())
}

async fn declare_exchange(channel: &Channel, exchange: &str, kind: ExchangeKind) -> Result<(), Error> {
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let declared = channel.exchange_declare(name(exchange), kind, options, FieldTable::default());
    answer(|| format!("declare the exchange `{exchange}`"), ANSWER_WITHIN, declared).await
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, routing_key: &str) -> Result<(), Error> {
    let options = QueueBindOptions::default();
    let bound = channel.queue_bind(name(queue), name(exchange), name(routing_key), options, FieldTable::default());
    answer(|| format!("bind the queue `{queue}` to `{exchange}`"), ANSWER_WITHIN, bound).await
}

fn quorum<const N: usize>(arguments: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    for (argument, value) in arguments {
        table.insert(argument.into(), value);
    }
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Converts a name that fits into AMQP's limit: a queue's name has at most 128 characters, Duetime's own names
/// are short, and the configuration checks its names.
fn name(text: &str) -> ShortString {
    ShortString::from(text)
}

#[cfg(test)]
mod tests {
    use super::{other_max_length, task_queue};

    #[test]
    fn the_reference_lists_every_argument_of_a_task_queue() {
        let page = include_str!("../../../docs/reference.md");
        for argument in task_queue(1).inner().keys() {
            assert!(page.contains(&format!("\n| `{argument}` | ")), "{argument}");
        }
    }

    #[test]
    fn the_length_of_a_queue_is_read_off_the_refusal_to_declare_it_with_another() {
        let old = "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q9' in vhost '/': received '20' but current is '10'";
        let new = "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '20' of type 'long' but \
                   current is the value '7' of type 'long'";
        let none = "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '20' but current is none";
        let other =
            "inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received 'a' but current is '10'";
        for (refusal, length) in [(old, Some(10)), (new, Some(7)), (none, None), (other, None), ("", None)] {
            assert_eq!(other_max_length(refusal), length, "{refusal}");
        }
    }
}
