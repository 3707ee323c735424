//! Nodes that take over another configuration while they run.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    client::Client,
    http,
    load::Load,
    sandbox::{Node, Sandbox, hex_sha256},
};
use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    types::FieldTable,
};

use crate::{
    confirm,
    delay_exchange::{Shop, delay, next, text},
    flows, load, scenario,
    tokens::answers,
    until,
};

const SOON: Duration = Duration::from_secs(60);
const SUCCESSFUL: &str = "duetime_config_last_reload_successful";
const DELAY_QUEUE: &str = "duetime.delay.orders.delayed";

fn token(name: &str, secret: &str) -> String {
    format!("\n[[auth.token]]\nname = {name:?}\nrole = \"operator\"\nsha256 = {:?}\n", hex_sha256(secret))
}

fn delay_exchange() -> String {
    "\n[[delay_exchange]]\nname = \"orders.delayed\"\ndeliver_to = \"orders\"\n".to_owned()
}

async fn says(node: &Node, words: &str) -> Result<()> {
    let said = || async { fs::read_to_string(node.log()).ok()?.contains(words).then_some(()) };
    until(&format!("the log says `{words}`"), SOON, said).await
}

async fn has(client: &Client, metric: &str, value: f64) -> Result<()> {
    until(&format!("{metric} is {value}"), SOON, || async {
        (client.metric(metric).await.ok()? == Some(value)).then_some(())
    })
    .await
}

/// A browser that is signed in with a token.
struct Browser {
    cookie: String,
    base: String,
}

impl Browser {
    async fn sign_in(base: &str, token: &str) -> Result<Self> {
        let sign_in = http::stepwise()
            .post(format!("{base}/console/sign-in"))
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("token={token}"));
        let answer = sign_in.send().await?;
        let cookie = answer.headers().get("set-cookie").context("signed in")?.to_str()?;
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(Self { cookie, base: base.to_owned() })
    }

    async fn is_let_in(&self) -> Result<bool> {
        let page = http::stepwise().get(format!("{}/console/queues", self.base)).header("cookie", &self.cookie);
        Ok(page.send().await?.status().is_success())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_node_takes_tokens_and_the_log_filter_over_and_a_mistake_changes_nothing() {
    let builder = Sandbox::builder().nodes(1).config(&token("old", "old-secret"));
    scenario(builder, async |sandbox| {
        let (node, operator) = (sandbox.node(0), sandbox.client(0));
        let mut config = node.config().clone();
        let mut file = |more: String| {
            config.more = more;
            config.toml()
        };
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let load = load(sandbox, &[0], Load::new("mail", 100), Duration::from_secs(8));
        flows(sandbox, 50).await?;
        let [old, new] = ["old-secret", "new-secret"].map(|token| operator.with_token(Some(token)));
        answers(&old, None, SOON).await?;
        answers(&new, Some(401), SOON).await?;
        let browser = Browser::sign_in(&node.url(), "old-secret").await?;
        ensure!(browser.is_let_in().await?, "a session of the old token");
        ensure!(!fs::read_to_string(node.log())?.contains("task confirmed"), "a line of the level debug");

        let debug = "\n[telemetry]\nlog = \"info,scheduler_node=debug\"\n[scheduler]\nbatch = 321\n";
        node.reload(&file(format!("{}{debug}", token("new", "new-secret"))))?;
        answers(&new, None, SOON).await?;
        answers(&old, Some(401), Duration::ZERO).await?;
        ensure!(!browser.is_let_in().await?, "the session ends with its token");
        says(node, "task confirmed").await?;
        says(node, "changed keys take effect after a restart: scheduler.batch").await?;
        has(&operator, SUCCESSFUL, 1.0).await?;

        node.reload(&file(format!("{}\n[scheduler]\nbatch = 0\n", token("newer", "newer-secret"))))?;
        has(&operator, SUCCESSFUL, 0.0).await?;
        says(node, "changes nothing").await?;
        answers(&operator.with_token(Some("newer-secret")), Some(401), Duration::ZERO).await?;
        answers(&new, None, Duration::ZERO).await?;

        // Without a signal the node finds the change by itself.
        node.rewrite(&file(String::new()))?;
        answers(&new, Some(401), SOON).await?;
        has(&operator, SUCCESSFUL, 1.0).await?;
        load.await?;
        Ok(())
    })
    .await;
}

async fn waiting(channel: &Channel) -> Result<(u32, u32)> {
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let queue = channel.queue_declare(DELAY_QUEUE.into(), passive, FieldTable::default()).await?;
    Ok((queue.message_count(), queue.consumer_count()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_exchange_comes_and_goes_while_tasks_flow_and_no_message_is_lost_or_doubled() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let (node, operator) = (sandbox.node(0), sandbox.client(0));
        let mut config = node.config().clone();
        let without = config.toml();
        config.more = delay_exchange();
        let with = config.toml();
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let load = load(sandbox, &[0], Load::new("mail", 100), Duration::from_secs(6));
        let shop = Shop::open(sandbox, ExchangeKind::Topic).await?;
        let mut paid = shop.queue("paid", "#", FieldTable::default()).await?;
        let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;

        let reconnects = operator.metric("duetime_broker_reconnects_total").await?;
        node.reload(&with)?;
        until("the delay exchange is declared", SOON, || async {
            let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
            let channel = connection.create_channel().await.ok()?;
            let (name, kind) = ("orders.delayed".into(), ExchangeKind::Topic);
            channel.exchange_declare(name, kind, options, FieldTable::default()).await.ok()?;
            waiting(&channel).await.is_ok_and(|(_, consumers)| consumers == 1).then_some(())
        })
        .await?;
        let publish = async |body: &str, delay_ms: i32| {
            shop.publish("orders.delayed", "a", body.as_bytes(), delay(delay_ms)).await
        };
        publish("soon", 200).await?;
        publish("later", 15_000).await?;
        ensure!(text(&next(&mut paid).await?) == "soon");
        let listed = operator.list("queue=orders.delayed").await?;
        ensure!(listed.iter().any(|task| task.state == "scheduled"), "the later one waits: {listed:?}");

        node.reload(&without)?;
        let channel = connection.create_channel().await?;
        let ended = || async { waiting(&channel).await.ok().filter(|(_, consumers)| *consumers == 0) };
        until("the node consumes no longer", SOON, ended).await?;
        publish("parked", 200).await?;
        ensure!(text(&next(&mut paid).await?) == "later", "what came through it before goes on");
        ensure!(waiting(&channel).await?.0 == 1, "a message waits at the broker");

        node.reload(&with)?;
        ensure!(text(&next(&mut paid).await?) == "parked");
        let now = operator.metric("duetime_broker_reconnects_total").await?;
        ensure!(now == reconnects, "on the same connections: {reconnects:?} -> {now:?}");
        load.await?;
        Ok(())
    })
    .await;
}
