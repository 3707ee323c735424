//! Whether RabbitMQ alone does what it does for a node: queues with the same arguments, messages with headers of the
//! same names.
//! Otherwise the ratio of the two would compare different work.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_us, sandbox::Sandbox};
use lapin::{BasicProperties, options::BasicGetOptions};
use serde_json::json;
use tokio::time::Instant;

use super::{broker::Broker, raw};

const ARRIVES_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Fails where a node's queue, which has no consumer any more, differs from a queue of RabbitMQ alone.
pub(super) async fn ensure_same(cluster: &Sandbox, broker: &Broker, of_node: &str, of_raw: &str) -> Result<()> {
    let words = ["list_queues", "-p", cluster.vhost(), "--no-table-headers", "--quiet", "name", "arguments"];
    let listed = cluster.rabbit().ctl(&words).await?;
    let arguments = |queue: &str| listed.lines().find_map(|line| line.strip_prefix(queue)?.strip_prefix('\t'));
    let (node, raw) = (arguments(of_node).context("a node's queue")?, arguments(of_raw).context("the raw queue")?);
    ensure!(node == raw, "a node's queue has the arguments {node}, that of RabbitMQ alone has {raw}");

    cluster.live()?.submit(&json!({ "queue": of_node, "payload": {} })).await?;
    let node = header_names(&next(broker, of_node).await?);
    let raw = header_names(&raw::message(of_raw, now_us(), 1).properties);
    ensure!(node == raw, "a node's message has the headers {node:?}, that of RabbitMQ alone has {raw:?}");
    Ok(())
}

/// The next message that the queue gives out. That takes a while where its last consumer has only just gone.
async fn next(broker: &Broker, queue: &str) -> Result<BasicProperties> {
    let channel = broker.channels().first().context("a channel")?;
    let deadline = Instant::now() + ARRIVES_WITHIN;
    loop {
        if let Some(message) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await? {
            return Ok(message.properties.clone());
        }
        ensure!(Instant::now() < deadline, "no message of {queue} comes");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn header_names(properties: &BasicProperties) -> BTreeSet<String> {
    let headers = properties.headers().iter().flat_map(|headers| headers.inner().keys());
    // RabbitMQ's own begin with `x-`.
    headers.map(|name| name.as_str().to_owned()).filter(|name| !name.starts_with("x-")).collect()
}
