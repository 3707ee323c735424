//! The behaviour of the delayed-message plugin, on a delay exchange of Duetime: the cases of the plugin's own test
//! suite.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use integration_tests::{
    clock::now_ms,
    sandbox::{Builder, Sandbox},
};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeBindOptions,
        ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};

use crate::{lasts, scenario, until};

const SOON: Duration = Duration::from_secs(60);

/// An application at the broker: its own exchange `orders`, and a publisher to the delay exchange in front of it.
pub(super) struct Shop {
    channel: Channel,
    _connection: Connection,
}

fn delaying(kind: &str) -> Builder {
    let section = "\n[[delay_exchange]]\nname = \"orders.delayed\"\ndeliver_to = \"orders\"\n";
    Sandbox::builder().config(&format!("{section}type = \"{kind}\"\n"))
}

fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

pub(super) fn headers(entries: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), value.clone());
    }
    BasicProperties::default().with_headers(table)
}

pub(super) fn delay(millis: i32) -> BasicProperties {
    headers(&[("x-delay", AMQPValue::LongInt(millis))])
}

fn header<'a>(message: &'a Delivery, name: &str) -> Option<&'a AMQPValue> {
    message.properties.headers().as_ref()?.inner().get(name)
}

pub(super) fn text(message: &Delivery) -> String {
    String::from_utf8_lossy(&message.data).into_owned()
}

impl Shop {
    pub(super) async fn open(sandbox: &Sandbox, kind: ExchangeKind) -> Result<Self> {
        let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        channel.exchange_declare("orders".into(), kind, options, FieldTable::default()).await?;
        Ok(Self { channel, _connection: connection })
    }

    /// Binds a queue to `orders`.
    pub(super) async fn queue(&self, queue: &str, routing_key: &str, arguments: FieldTable) -> Result<Consumer> {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        let bind = QueueBindOptions::default();
        self.channel.queue_bind(queue.into(), "orders".into(), routing_key.into(), bind, arguments).await?;
        let options = BasicConsumeOptions::default();
        Ok(self.channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?)
    }

    /// Publishes, and checks that the broker confirmed and routed the message.
    pub(super) async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = self.channel.basic_publish(exchange.into(), routing_key.into(), options, body, properties).await?;
        let confirmed = sent.await?;
        ensure!(confirmed.is_ack() && confirmed.take_message().is_none(), "`{exchange}` does not take it");
        Ok(())
    }

    async fn publish_delayed(&self, routing_key: &str, body: &str, properties: BasicProperties) -> Result<()> {
        self.publish("orders.delayed", routing_key, body.as_bytes(), properties).await
    }
}

pub(super) async fn next(consumer: &mut Consumer) -> Result<Delivery> {
    let message = tokio::time::timeout(SOON, consumer.next()).await.context("no message arrives")?;
    let message = message.context("the consumer ended")??;
    message.acker.ack(BasicAckOptions::default()).await?;
    Ok(message)
}

async fn is_silent(consumer: &mut Consumer, time: Duration) -> bool {
    tokio::time::timeout(time, consumer.next()).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_on_as_it_came_and_only_its_delay_is_turned_round() {
    scenario(delaying("topic"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        let mut all = shop.queue("all", "#", FieldTable::default()).await?;
        let mut paid = shop.queue("paid", "*.paid", FieldTable::default()).await?;
        let body = [0, 159, 146, 150, 255];
        let mut inner = FieldTable::default();
        inner.insert("deep".into(), AMQPValue::ByteArray(vec![0, 255].into()));
        let sent = headers(&[
            ("x-delay", AMQPValue::LongInt(800)),
            ("text", AMQPValue::LongString(vec![0, 255].into())),
            ("double", AMQPValue::Double(0.1)),
            ("yes", AMQPValue::Boolean(true)),
            ("when", AMQPValue::Timestamp(7)),
            ("table", AMQPValue::FieldTable(inner)),
            ("list", AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::ShortShortInt(-3)].into())),
        ])
        .with_content_type("application/x-test".into())
        .with_content_encoding("none".into())
        .with_delivery_mode(1)
        .with_priority(7)
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_expiration("60000".into())
        .with_message_id("mine".into())
        .with_timestamp(1_234)
        .with_type("t".into())
        .with_app_id("shop".into());
        // The broker checks the user id, so a client can only send its own, which stays.
        let user = sandbox.amqp_url().split("//").nth(1).and_then(|rest| rest.split(':').next()).map(str::to_owned);
        let sent = sent.with_user_id(user.context("the URL names a user")?.into());
        let before_ms = now_ms();
        shop.publish("orders.delayed", "eu.paid", &body, sent.clone()).await?;
        for consumer in [&mut all, &mut paid] {
            let got = next(consumer).await?;
            ensure!(now_ms() - before_ms >= 800, "it is early");
            ensure!(got.data == body && got.exchange.as_str() == "orders" && got.routing_key.as_str() == "eu.paid");
            ensure!(header(&got, "x-delay") == Some(&AMQPValue::LongInt(-800)), "{:?}", got.properties);
            ensure!(header(&got, "duetime-message-id").is_some(), "it does not name its attempt");
            // All other headers, and every property, arrive as sent.
            let mut kept = got.properties.headers().clone().context("it has headers")?.inner().clone();
            kept.retain(|name, _| !name.as_str().starts_with("duetime-"));
            kept.insert("x-delay".into(), AMQPValue::LongInt(800));
            ensure!(got.properties.clone().with_headers(kept.into()) == sent, "{:?}\n{sent:?}", got.properties);
        }
        shop.publish_delayed("eu.open", "open", delay(10)).await?;
        ensure!(text(&next(&mut all).await?) == "open" && is_silent(&mut paid, Duration::from_millis(500)).await);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_in_the_order_of_their_delays() {
    scenario(delaying("direct"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Direct).await?;
        let mut queue = shop.queue("a", "a", FieldTable::default()).await?;
        // Delays begin when a node reads the message: they differ by far more than that takes.
        for millis in [5_000, 1_000, 3_000, 2_000, 1_000, 4_000] {
            shop.publish_delayed("a", &millis.to_string(), delay(millis)).await?;
        }
        let mut arrived = Vec::new();
        for _ in 0..6 {
            arrived.push(text(&next(&mut queue).await?));
        }
        ensure!(arrived == ["1000", "1000", "2000", "3000", "4000", "5000"], "{arrived:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_of_another_type_counts_as_the_plugin_has_it() {
    scenario(delaying("fanout"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Fanout).await?;
        let mut queue = shop.queue("a", "", FieldTable::default()).await?;
        let at_ms = now_ms() + 700;
        for (name, value) in [
            ("x-delay", long("700")),
            ("x-delay", AMQPValue::Double(700.9)),
            ("x-delay", AMQPValue::LongLongInt(700)),
            ("x-opt-delivery-delay", AMQPValue::LongInt(700)),
            ("x-opt-delivery-time", AMQPValue::LongLongInt(at_ms)),
        ] {
            let before_ms = now_ms();
            shop.publish_delayed("any.key", name, headers(&[(name, value.clone())])).await?;
            let got = next(&mut queue).await?;
            ensure!(now_ms() >= at_ms.min(before_ms + 700), "{name} {value:?} is early");
            ensure!(text(&got) == name && got.routing_key.as_str() == "any.key");
        }
        let before_ms = now_ms();
        for value in [AMQPValue::LongInt(0), AMQPValue::LongInt(-60_000), AMQPValue::Boolean(true)] {
            shop.publish_delayed("", "now", headers(&[("x-delay", value.clone())])).await?;
            let got = next(&mut queue).await?;
            ensure!(header(&got, "x-delay") == Some(&value), "{value:?} is not as it came");
        }
        shop.publish_delayed("", "now", BasicProperties::default()).await?;
        next(&mut queue).await?;
        ensure!(now_ms() - before_ms < 10_000, "a message without a delay is delayed");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_headers_exchange_routes_by_headers_after_the_delay() {
    scenario(delaying("headers"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Headers).await?;
        let mut blue = FieldTable::default();
        blue.insert("colour".into(), long("blue"));
        let mut queue = shop.queue("blue", "", blue).await?;
        let sent = headers(&[("colour", long("blue")), ("x-delay", AMQPValue::LongInt(300))]);
        shop.publish_delayed("", "blue", sent).await?;
        ensure!(text(&next(&mut queue).await?) == "blue");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exchanges_bound_to_one_another_delay_once() {
    scenario(delaying("topic"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        let mut queue = shop.queue("a", "#", FieldTable::default()).await?;
        // The application's own exchange in front of the delay.
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        shop.channel.exchange_declare("front".into(), ExchangeKind::Fanout, options, FieldTable::default()).await?;
        let bind = ExchangeBindOptions::default();
        shop.channel
            .exchange_bind("orders.delayed".into(), "front".into(), "".into(), bind, FieldTable::default())
            .await?;
        let before_ms = now_ms();
        shop.publish("front", "k", b"delay", delay(600)).await?;
        let got = next(&mut queue).await?;
        ensure!(now_ms() - before_ms >= 600 && got.routing_key.as_str() == "k");
        shop.publish("front", "k", b"nodelay", BasicProperties::default()).await?;
        ensure!(text(&next(&mut queue).await?) == "nodelay");
        // A message that has waited once does not wait again.
        let waited = got.properties.clone().with_expiration("60000".into());
        let before_ms = now_ms();
        shop.publish_delayed("k", "again", waited).await?;
        ensure!(text(&next(&mut queue).await?) == "again" && now_ms() - before_ms < 50_000);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_die_before_and_after_the_due_time_lose_no_message() {
    scenario(delaying("topic"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        let mut queue = shop.queue("a", "#", FieldTable::default()).await?;
        shop.publish_delayed("k", "during", delay(12_000)).await?;
        shop.publish_delayed("k", "after", delay(25_000)).await?;
        listed(sandbox, 2).await?;
        for number in 0..3 {
            sandbox.kill(number);
        }
        // The broker accepts it while no node is running.
        shop.publish_delayed("k", "meanwhile", delay(2_000)).await?;
        lasts(Duration::from_secs(13)).await;
        for number in 0..3 {
            sandbox.restart(number).await?;
        }
        let mut arrived = std::collections::BTreeSet::new();
        while arrived.len() < 3 {
            arrived.insert(text(&next(&mut queue).await?));
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_is_listed_and_cancelled_like_any_task() {
    scenario(delaying("topic"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        let mut queue = shop.queue("a", "#", FieldTable::default()).await?;
        // Half a year: beyond the plugin's limit.
        let far = AMQPValue::LongLongInt(15_552_000_000);
        shop.publish_delayed("k", "far", headers(&[("x-delay", far)])).await?;
        shop.publish_delayed("k", "cancelled", delay(15_000)).await?;
        let tasks = listed(sandbox, 2).await?;
        let client = sandbox.client(1);
        ensure!(client.cancel(&tasks[0].id).await? == "cancelled");
        client.run(&tasks[1].id).await?;
        ensure!(text(&next(&mut queue).await?) == "far" && is_silent(&mut queue, Duration::from_secs(16)).await);
        Ok(())
    })
    .await;
}

/// The messages that wait behind the delay exchange, soonest first.
async fn listed(sandbox: &Sandbox, count: usize) -> Result<Vec<integration_tests::client::Task>> {
    until("the messages are tasks", SOON, || async {
        let tasks = sandbox.live().ok()?.list("queue=orders.delayed&state=scheduled").await.ok()?;
        (tasks.len() == count).then_some(tasks)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_of_another_type_in_the_way_is_named_until_it_is_gone() {
    scenario(delaying("topic"), async |sandbox| {
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        shop.channel.exchange_delete("orders.delayed".into(), ExchangeDeleteOptions::default()).await?;
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let name = "orders.delayed";
        shop.channel.exchange_declare(name.into(), ExchangeKind::Headers, options, FieldTable::default()).await?;
        let client = sandbox.client(0);
        let named = async |wanted: bool| {
            until("readiness names the exchange", SOON, || async {
                let (ready, text) = client.readiness().await.ok()?;
                (ready && text.contains(name) == wanted).then_some(())
            })
            .await
        };
        named(true).await?;
        shop.channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await?;
        named(false).await?;
        let mut queue = shop.queue("a", "#", FieldTable::default()).await?;
        shop.publish_delayed("k", "through", delay(50)).await?;
        ensure!(text(&next(&mut queue).await?) == "through");
        Ok(())
    })
    .await;
}
