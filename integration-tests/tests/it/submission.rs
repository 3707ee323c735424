//! Tasks submitted over AMQP.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_ms, ledger::Number, sandbox::Sandbox};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{confirm, scenario, until};

const SOON: Duration = Duration::from_secs(60);

struct Producer {
    channel: Channel,
    connection: Connection,
}

impl Producer {
    async fn open(sandbox: &Sandbox) -> Result<Self> {
        let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, connection })
    }

    /// The next message of a queue, if there is one. The queue exists only once a node has published to it, and a
    /// get from a missing queue closes its channel.
    async fn get(&self, queue: &str) -> Result<Option<String>> {
        let channel = self.connection.create_channel().await?;
        let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await;
        if got.is_ok() {
            channel.close(200, "done".into()).await?;
        }
        Ok(got.ok().flatten().map(|got| String::from_utf8_lossy(&got.data).into_owned()))
    }

    async fn publish(&self, body: &[u8], headers: &[(&str, AMQPValue)]) -> Result<()> {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let properties = BasicProperties::default()
            .with_headers(table)
            .with_content_type("application/json".into())
            .with_expiration("600000".into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = self.channel.basic_publish("".into(), "duetime.submit".into(), options, body, properties).await?;
        let confirmed = sent.await?;
        ensure!(confirmed.is_ack() && confirmed.take_message().is_none(), "duetime.submit does not take it");
        Ok(())
    }

    /// Publishes tasks of the queue `later` with the keys 0, 1, 2 ... A key decides which database a task is for.
    async fn publish_keyed(&self, messages: i64) -> Result<()> {
        let due_ms = now_ms() + 3_600_000;
        for number in 0..messages {
            let headers = [
                ("duetime-queue", long("later")),
                ("duetime-due-ms", AMQPValue::LongLongInt(due_ms)),
                ("duetime-key", long(&number.to_string())),
            ];
            self.publish(b"{}", &headers).await?;
        }
        Ok(())
    }

    /// Submits one task, confirmed by the broker: from then on it may not be lost.
    async fn submit(&self, sandbox: &Sandbox, queue: &str, due_ms: i64) -> Result<Number> {
        let number = sandbox.ledger.submitting(queue, due_ms);
        let body = json!({ "n": number }).to_string();
        let headers = [("duetime-queue", long(queue)), ("duetime-due-ms", AMQPValue::LongLongInt(due_ms))];
        self.publish(body.as_bytes(), &headers).await?;
        Ok(number)
    }
}

fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Waits until the database has this number of tasks for the queue `later`.
async fn until_stored(database: &mut PgConnection, tasks: i64) -> Result<()> {
    let count = "SELECT count(*) FROM duetime.task WHERE queue = 'later'";
    until(&format!("{tasks} tasks are stored"), SOON * 3, async || {
        let stored: i64 = sqlx::query_scalar(count).fetch_one(&mut *database).await.ok()?;
        (stored == tasks).then_some(())
    })
    .await
}

/// How many of the messages of [`Producer::publish_keyed`] are for this database.
async fn of_first(first: &mut PgConnection, messages: i64) -> Result<i64> {
    let of_first = "SELECT count(*) FROM generate_series(0, $1::bigint - 1) AS n, duetime.meta AS m
                     WHERE duetime.shard_of('later', false, NULL, n::text, m.shard_count)
                           IN (SELECT id FROM duetime.shard WHERE status = 'here')";
    Ok(sqlx::query_scalar(of_first).bind(messages).fetch_one(first).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_for_a_node_that_started_while_the_first_of_two_databases_was_away() {
    const MESSAGES: i64 = 100;
    let sandbox = Sandbox::builder().databases(2).nodes(1).config("[queues]\nauto_create = false\n");
    scenario(sandbox, async |sandbox| {
        let producer = Producer::open(sandbox).await?;
        sandbox.put_queues(&[("later", confirm())]).await?;
        let fault = sandbox.ledger.fault("the first database stopped");
        sandbox.postgres(0).stop_immediately().await?;
        sandbox.kill(0);
        let node = sandbox.node(0);
        node.start()?;
        producer.publish_keyed(MESSAGES).await?;
        until("the node has taken the messages and gives them back", SOON, async || {
            let log = std::fs::read_to_string(node.log()).ok()?;
            log.contains("submitted messages are returned to the broker").then_some(())
        })
        .await?;
        sandbox.postgres(0).restart().await?;
        sandbox.ledger.heal(fault);
        let mut first = PgConnection::connect(&sandbox.database_url(0)).await?;
        let of_first = of_first(&mut first, MESSAGES).await?;
        until_stored(&mut first, of_first).await.context("in the first database")?;
        let mut second = PgConnection::connect(&sandbox.database_url(1)).await?;
        until_stored(&mut second, MESSAGES - of_first).await.context("in the second database")?;
        let aside = producer.get("duetime.submit.invalid").await?;
        ensure!(aside.is_none(), "a message was set aside: {aside:?}");
        node.wait_ready(SOON).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_become_tasks_while_more_of_them_wait_for_a_database_that_is_away_than_a_node_usually_holds() {
    const MESSAGES: i64 = 3_000;
    scenario(Sandbox::builder().databases(2).nodes(1), async |sandbox| {
        let producer = Producer::open(sandbox).await?;
        sandbox.put_queues(&[("later", confirm())]).await?;
        let fault = sandbox.ledger.fault("the second database stopped");
        sandbox.postgres(1).stop_immediately().await?;
        producer.publish_keyed(MESSAGES).await?;
        let mut first = PgConnection::connect(&sandbox.database_url(0)).await?;
        let of_first = of_first(&mut first, MESSAGES).await?;
        ensure!((1_000..MESSAGES - 1_000).contains(&of_first), "{of_first} of the messages are for the first database");
        until_stored(&mut first, of_first).await.context("in the first database, while the second one is away")?;
        sandbox.postgres(1).restart().await?;
        sandbox.ledger.heal(fault);
        let mut second = PgConnection::connect(&sandbox.database_url(1)).await?;
        until_stored(&mut second, MESSAGES - of_first).await.context("in the second database, when it is back")
    })
    .await;
}

/// Waits until the tasks arrive. The node gives a message's task its id, so the ledger learns it from the delivery.
async fn arrive(sandbox: &Sandbox, numbers: &[Number]) -> Result<()> {
    for number in numbers {
        let first = until(&format!("task {number} arrives"), SOON, || async {
            sandbox.ledger.arrivals().into_iter().find(|delivery| delivery.number == Some(*number))
        })
        .await?;
        sandbox.ledger.accepted(*number, &first.task);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_submitted_over_amqp_arrive_on_time_and_once() {
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let producer = Producer::open(sandbox).await?;
        let mut numbers = Vec::new();
        for n in 0..600 {
            numbers.push(producer.submit(sandbox, "mail", now_ms() + n % 7 * 400).await?);
        }
        arrive(sandbox, &numbers).await?;
        // A task may arrive before the node that took it counts it.
        until("all tasks are counted", SOON, async || {
            let mut counted = 0.0;
            for client in sandbox.clients() {
                let series = "duetime_tasks_submitted_total{queue=\"mail\",source=\"amqp\"}";
                counted += client.metric(series).await.ok()?.unwrap_or(0.0);
            }
            (counted >= 600.0).then_some(())
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_a_task_is_set_aside_with_the_reason() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let producer = Producer::open(sandbox).await?;
        let queue = ("duetime-queue", long("mail"));
        let cc = ("CC", AMQPValue::FieldArray(vec![long("x")].into()));
        for (body, headers, reason) in [
            (b"no queue".as_slice(), vec![], "duetime-queue"),
            (b"no number", vec![queue.clone(), ("duetime-delay-ms", long("soon"))], "duetime-delay-ms"),
            (
                b"no such mode",
                vec![queue.clone(), ("duetime-key", long("k")), ("duetime-on-duplicate", long("maybe"))],
                "maybe",
            ),
            (b"elsewhere", vec![queue, ("x-delay", AMQPValue::LongInt(5)), cc], "CC"),
        ] {
            producer.publish(body, &headers).await?;
            let aside = until("the message is set aside", SOON, || async {
                let got = producer.channel.basic_get("duetime.submit.invalid".into(), BasicGetOptions { no_ack: true });
                got.await.ok().flatten()
            })
            .await?;
            let said = aside.properties.headers().clone().context("it has headers")?;
            let Some(AMQPValue::LongString(error)) = said.inner().get("duetime-error") else {
                anyhow::bail!("no reason: {said:?}")
            };
            ensure!(error.to_string().contains(reason), "{error} does not name {reason}");
            ensure!(aside.data == body && said.inner().len() >= headers.len(), "{said:?}");
            // With an expiration it would vanish.
            ensure!(
                aside.properties.expiration().is_none()
                    && said.contains_key("duetime-expiration")
                    && !said.contains_key("CC")
            );
            ensure!(aside.properties.content_type().as_ref().is_some_and(|of| of.as_str() == "application/json"));
        }
        // A message is seen in the queue before the node counts it.
        until("each message is counted once", SOON, async || {
            let counted = sandbox.client(0).metric("duetime_submissions_invalid_total").await.ok()?;
            (counted == Some(4.0)).then_some(())
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_between_the_commit_and_the_ack_loses_nothing() {
    // The message is delivered again and becomes a second task: the promise is at least once.
    scenario(Sandbox::builder().failpoints(0, "after_receive=2*off->return"), async |sandbox| {
        let fault = sandbox.ledger.fault("a node dies between commit and ack");
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let producer = Producer::open(sandbox).await?;
        let mut bodies = std::collections::BTreeSet::new();
        let deadline = tokio::time::Instant::now() + SOON;
        for n in 0.. {
            if !sandbox.node(0).is_running() {
                break;
            }
            ensure!(tokio::time::Instant::now() < deadline, "node 0 does not die");
            let body = json!({ "survivor": n }).to_string();
            producer.publish(body.as_bytes(), &[("duetime-queue", long("survivors"))]).await?;
            bodies.insert(body);
        }
        until("all messages arrive", SOON, async || {
            while let Ok(Some(body)) = producer.get("survivors").await {
                bodies.remove(&body);
            }
            bodies.is_empty().then_some(())
        })
        .await?;
        sandbox.ledger.heal(fault);
        Ok(())
    })
    .await;
}
