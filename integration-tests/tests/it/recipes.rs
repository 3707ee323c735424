//! The least-privilege recipes of docs/security.md, typed as they stand: permitted actions work, and all others are
//! refused.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use integration_tests::{
    page::Page,
    sandbox::{Etcd, Sandbox, Tether, command, hide_variables, run_with, scratch},
};
use lapin::{
    BasicProperties,
    options::{BasicAckOptions, BasicConsumeOptions, BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::process::Command;

use crate::{
    in_state, scenario,
    tenants::{Hand, report},
    until,
};

const SOON: Duration = Duration::from_secs(60);
const PASSWORD: &str = "PASSWORD";

/// The commands of the recipe that contains this word, a line each.
fn recipe(word: &str) -> Vec<String> {
    let fences = Page::read("docs/security.md").fences();
    let of = fences.iter().find(|fence| fence.no_test().is_some() && fence.text.contains(word)).expect("a recipe");
    let lines = of.text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.filter(|line| !line.starts_with('#') && !line.starts_with("--")).map(ToOwned::to_owned).collect()
}

/// Splits a line into words and removes quotes as a shell does.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
}

async fn restart(sandbox: &Sandbox) -> Result<()> {
    let node = sandbox.node(0);
    node.stop(SOON).await?;
    node.start()?;
    node.wait_ready(SOON).await
}

/// Properties with which RabbitMQ routes a message by a second key, which its receiver does not see.
fn also_to(key: &str, properties: BasicProperties) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert("BCC".into(), AMQPValue::FieldArray(vec![AMQPValue::LongString(key.into())].into()));
    properties.with_headers(headers)
}

/// Checks that RabbitMQ closed the channel over it.
fn refused<T>(outcome: Result<T>) -> Result<()> {
    let said = outcome.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(said.contains("ACCESS_REFUSED"), "it is not refused: {said}");
    Ok(())
}

async fn shop(sandbox: &Sandbox, user: &str) -> Result<Hand> {
    Hand::open(&sandbox.amqp_url().replace("guest:guest", &format!("{user}:{PASSWORD}"))).await
}

async fn may_not_publish(sandbox: &Sandbox, user: &str, exchange: &str, key: &str) -> Result<()> {
    let hand = shop(sandbox, user).await?;
    let outcome = hand.publish(exchange, key, b"1", BasicProperties::default()).await;
    refused(outcome).with_context(|| format!("{user} publishes to `{exchange}` with `{key}`"))
}

async fn may_not_read(sandbox: &Sandbox, user: &str, queue: &str) -> Result<()> {
    let hand = shop(sandbox, user).await?;
    let outcome = hand.channel.basic_get(queue.into(), BasicGetOptions::default()).await;
    refused(outcome.map_err(Into::into)).with_context(|| format!("{user} reads `{queue}`"))
}

/// Checks that a consumer may hear that its task is to stop, but by no queue of its own.
async fn hears_of_a_stop(sandbox: &Sandbox, user: &str, queue: &str) -> Result<()> {
    const REPLIES: &str = "amq.rabbitmq.reply-to";
    let hand = shop(sandbox, user).await?;
    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let declared = hand.channel.queue_declare("".into(), exclusive, FieldTable::default()).await;
    refused(declared.map_err(Into::into)).with_context(|| format!("{user} declares a queue"))?;

    let (client, consumer) = (sandbox.client(0), shop(sandbox, user).await?);
    client.submit(&json!({ "queue": queue })).await?;
    let taken = consumer.take(queue).await?;
    client.call::<Value>(Method::POST, &format!("/v1/tasks/{}/stop", taken.task), None).await?;
    let without_acks = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut replies =
        consumer.channel.basic_consume(REPLIES.into(), "".into(), without_acks, FieldTable::default()).await?;
    let running = report(&taken.task, taken.receipt.as_deref()).with_reply_to(REPLIES.into());
    consumer.publish("duetime.in", &format!("result.{queue}"), br#"{"status":"running"}"#, running).await?;
    let reply = tokio::time::timeout(SOON, replies.next()).await?.context("the channel is open")??;
    let told: Value = serde_json::from_slice(&reply.data)?;
    ensure!(told == json!({ "id": taken.task, "attempt": 1, "stopping": true }), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_rabbitmq_allows_what_each_program_needs_and_nothing_else() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        for user in ["duetime", "shop-producer", "shop-consumer"] {
            // The user of an earlier run.
            sandbox.rabbit().ctl(&["delete_user", user]).await.ok();
        }
        for line in recipe("rabbitmqctl").iter().filter(|line| !line.contains("add_vhost")) {
            let words: Vec<String> = words(&line.replace("-p duetime ", &format!("-p {} ", sandbox.vhost())));
            sandbox.rabbit().ctl(&words[1..].iter().map(String::as_str).collect::<Vec<_>>()).await?;
        }
        let own = sandbox.amqp_url().replace("guest:guest", &format!("duetime:{PASSWORD}"));
        sandbox.node(0).set("DUETIME_AMQP__URL", &own);
        restart(sandbox).await?;
        let client = sandbox.client(0);
        for queue in ["shop.orders", "shop.jobs"] {
            client
                .put_queue(queue, &json!({ "settle": "result", "receipt": "required", "timeout_ms": 60_000 }))
                .await?;
        }

        let producer = shop(sandbox, "shop-producer").await?;
        producer.publish("duetime.in", "submit.shop.orders", b"7", BasicProperties::default()).await?;
        let consumer = shop(sandbox, "shop-consumer").await?;
        let taken = consumer.take("shop.orders").await?;
        let succeeded = report(&taken.task, taken.receipt.as_deref());
        consumer.publish("duetime.in", "result.shop.orders", br#"{"status":"succeeded"}"#, succeeded).await?;
        taken.message.ack(BasicAckOptions::default()).await?;
        in_state(&client, &taken.task, "succeeded").await?;
        hears_of_a_stop(sandbox, "shop-consumer", "shop.orders").await?;

        for (exchange, key) in [
            ("duetime.in", "submit.bank.orders"),
            ("duetime.in", "result.shop.orders"),
            ("", "duetime.submit"),
            ("duetime", "shop.orders"),
        ] {
            may_not_publish(sandbox, "shop-producer", exchange, key).await?;
        }
        for (exchange, key) in [
            ("duetime.in", "result.bank.orders"),
            ("duetime.in", "submit.shop.orders"),
            ("", "duetime.results"),
            ("duetime.rejected", ""),
        ] {
            may_not_publish(sandbox, "shop-consumer", exchange, key).await?;
        }
        let as_task = also_to("submit.shop.orders", BasicProperties::default());
        let as_task = consumer.publish("duetime.in", "result.shop.orders", b"8", as_task).await;
        let as_report = also_to("result.shop.orders", report(&taken.task, taken.receipt.as_deref()));
        let as_report = producer.publish("duetime.in", "submit.shop.orders", b"{}", as_report).await;
        if as_task.is_ok() && as_report.is_ok() {
            // RabbitMQ 3 compares only the routing key with the permissions.
            let hand = Hand::open(&sandbox.amqp_url()).await?;
            let aside = [hand.take_aside().await?, hand.take_aside().await?].join("; ");
            ensure!(aside.contains("`BCC`"), "{aside}");
            let both = || async {
                client.metric("duetime_messages_quarantined_total").await.ok()?.filter(|count| *count == 2.0)
            };
            until("no report came of either", SOON, both).await?;
        } else {
            // Later ones compare the other keys, too.
            refused(as_task)?;
            refused(as_report)?;
        }
        may_not_read(sandbox, "shop-producer", "shop.orders").await?;
        may_not_read(sandbox, "shop-consumer", "duetime.results").await?;

        // A relay is a consumer.
        let url = sandbox.amqp_url().replace("guest:guest", &format!("shop-consumer:{PASSWORD}"));
        let mut relay = command()?;
        relay.args(["relay", "--queue", "shop.jobs", "--command", "/bin/echo", "--", "done"]);
        let _relay = relay.env("DUETIME_AMQP__URL", url).kill_on_drop(true).spawn()?;
        let id = client.submit(&json!({ "queue": "shop.jobs" })).await?.id;
        in_state(&client, &id, "succeeded").await?;

        // A node cannot reach the queues of others, whatever is submitted.
        let bank = Hand::open(&sandbox.amqp_url()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        bank.channel.queue_declare("bank.orders".into(), durable, FieldTable::default()).await?;
        client.put_queue("bank.orders", &json!({ "use_existing": true })).await?;
        client.submit(&json!({ "queue": "bank.orders" })).await?;
        let closed = || async { client.metric("duetime_lanes_closed").await.ok()?.filter(|closed| *closed > 0.0) };
        until("the lane of the foreign queue is closed", SOON, closed).await?;
        let depth = bank.channel.basic_get("bank.orders".into(), BasicGetOptions::default()).await?;
        ensure!(depth.is_none(), "a task has landed there");
        Ok(())
    })
    .await;
}

/// The SQLSTATE with which a statement is refused.
async fn state(connection: &mut PgConnection, statement: &str) -> String {
    let outcome = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(connection).await;
    let code = outcome.err().and_then(|error| error.as_database_error()?.code().map(|code| code.into_owned()));
    code.unwrap_or_else(|| "allowed".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_postgresql_allows_what_each_program_needs_and_nothing_else() {
    scenario(Sandbox::builder().nodes(1).unwatched(), async |sandbox| {
        let (server, database) = (sandbox.postgres(0), format!("{}_least", sandbox.vhost()));
        for line in recipe("CREATE DATABASE") {
            let statement = line.replace("DATABASE duetime", &format!("DATABASE \"{database}\""));
            match server.execute(&statement).await {
                Err(error) if format!("{error:#}").contains("already exists") => {}
                outcome => outcome?,
            }
        }
        let url = |user: &str| {
            let (_, place) =
                server.url(&database).split_once('@').map(|(_, place)| ((), place.to_owned())).expect("a user");
            format!("postgres://{user}:{PASSWORD}@{place}")
        };
        let node = sandbox.node(0);
        let file = node.file().to_str().context("a path")?.to_owned();
        let migrated =
            run_with(&["migrate", "--config", &file], &[("DUETIME_DATABASE__0__URL", &url("duetime"))], "").await?;
        ensure!(migrated.status.success(), "{migrated:?}");
        node.set("DUETIME_DATABASE__0__URL", &url("duetime"));
        // The database is that of a new cluster, which needs a prefix and a virtual host of its own.
        let vhost = format!("{}_least", sandbox.vhost());
        node.set("DUETIME_AMQP__URL", &sandbox.rabbit().add_vhost(&vhost).await?);
        sandbox.rabbit().retire_vhost(vhost);
        node.set("DUETIME_ETCD__PREFIX", &format!("{}_least", node.config().etcd_prefix));
        restart(sandbox).await?;
        let client = sandbox.client(0);
        let id = client.submit(&json!({ "queue": "mail" })).await?.id;
        in_state(&client, &id, "delivered").await?;

        let mut shop = PgConnection::connect(&url("shop")).await?;
        let submit = "SELECT duetime.submit('mail', '1')::text";
        let id: String = sqlx::query_scalar(submit).fetch_one(&mut shop).await?;
        in_state(&client, &id, "delivered").await?;
        ensure!(
            state(&mut shop, "SELECT duetime.cancel(duetime.submit('mail', '1', now() + interval '1 hour'))").await
                == "allowed"
        );
        for denied in [
            "SELECT count(*) FROM duetime.task",
            "SELECT key FROM duetime.receipt_key",
            "SELECT duetime.rotate_receipt_key()",
            "DELETE FROM duetime.inbox",
            "CREATE TABLE duetime.mine (id int)",
        ] {
            ensure!(state(&mut shop, denied).await == "42501", "shop may {denied}");
        }
        let mut own = PgConnection::connect(&url("duetime")).await?;
        for denied in ["CREATE ROLE boss SUPERUSER", "CREATE DATABASE other", "SELECT pg_read_file('/etc/passwd')"] {
            ensure!(state(&mut own, denied).await == "42501", "nodes may {denied}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_etcd_allows_nodes_their_prefix_and_nothing_else() {
    scenario(Sandbox::builder().nodes(1).unwatched(), async |sandbox| {
        let etcd = Etcd::start(&scratch().join(format!("etcd-{}", sandbox.vhost())), 1, Tether::Tethered).await?;
        let endpoint = etcd.endpoints().first().context("a member")?.clone();
        let ctl = async |words: &[&str]| -> Result<String> {
            let mut command = Command::new("etcdctl");
            hide_variables(command.as_std_mut());
            let output =
                command.args(words).env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &endpoint).output().await?;
            let said =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            ensure!(output.status.success(), "{words:?}: {said}");
            Ok(said)
        };
        for line in recipe("etcdctl") {
            ctl(&words(&line)[1..].iter().map(String::as_str).collect::<Vec<_>>()).await?;
        }
        let node = sandbox.node(0);
        for (name, value) in [
            ("DUETIME_ETCD__ENDPOINTS", endpoint.as_str()),
            ("DUETIME_ETCD__PREFIX", "/duetime"),
            ("DUETIME_ETCD__USERNAME", "duetime"),
            ("DUETIME_ETCD__PASSWORD", PASSWORD),
        ] {
            node.set(name, value);
        }
        restart(sandbox).await?;
        let client = sandbox.client(0);
        let all = f64::from(sandbox.shard_count());
        let owned = || async { client.metric("duetime_shards_owned").await.ok()?.filter(|owned| *owned == all) };
        until("the node owns every shard", SOON, owned).await?;
        let id = client.submit(&json!({ "queue": "mail" })).await?.id;
        in_state(&client, &id, "delivered").await?;

        let user = "--user=duetime:PASSWORD";
        ctl(&[user, "get", "--prefix", "/duetime/"]).await?;
        for denied in [
            &[user, "put", "/other/key", "1"][..],
            &[user, "get", "/other/key"],
            &[user, "user", "list"],
            &["put", "/duetime/key", "1"],
            &["get", "--prefix", "/duetime/"],
        ] {
            ensure!(ctl(denied).await.is_err(), "{denied:?} is allowed");
        }
        Ok(())
    })
    .await;
}
