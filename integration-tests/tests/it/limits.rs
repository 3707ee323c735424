//! Limits of queues and tokens: every way in refuses a tenant at its limit, and no other tenant.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{client::Client, sandbox::Sandbox};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::{
    scenario,
    tenants::{Hand, for_queue},
    until,
};

const SOON: Duration = Duration::from_secs(60);

fn later(queue: &str) -> Value {
    json!({ "queue": queue, "delay_ms": 3_600_000, "payload": "x" })
}

/// A client on each node, with a token that every node knows.
async fn tenant(sandbox: &Sandbox, token: &Value) -> Result<Vec<Client>> {
    let made: Value = sandbox.client(0).call(Method::POST, "/v1/tokens", Some(token)).await?;
    let token = made["token"].as_str().context("the answer has the token")?;
    let clients: Vec<Client> = sandbox.clients().iter().map(|client| client.with_token(Some(token))).collect();
    for client in &clients {
        until("the token is in force", SOON, || async { client.list("queue=shop.a").await.ok() }).await?;
    }
    Ok(clients)
}

/// The name of the limit that refuses a task; `None` if it is accepted.
async fn refused(client: &Client, queue: &str) -> Result<Option<String>> {
    let answer = client.send(Method::POST, "/v1/tasks", Some(later(queue).to_string().into_bytes())).await?;
    let (status, retry_after) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    let body: Value = answer.json().await?;
    if status == 201 {
        return Ok(None);
    }
    ensure!(status == 429 && retry_after, "{status}: {body}");
    Ok(Some(body["limit"]["name"].as_str().context("it names the limit")?.to_owned()))
}

async fn accepted_until_refused(client: &Client, queue: &str) -> Result<usize> {
    for accepted in 0..100 {
        if refused(client, queue).await?.is_some() {
            return Ok(accepted);
        }
    }
    anyhow::bail!("100 tasks are accepted")
}

async fn limited(sandbox: &Sandbox, limit: &str) -> Result<f64> {
    let mut sum = 0.0;
    for client in sandbox.clients() {
        sum += client.metric(&format!("duetime_limited_total{{limit=\"{limit}\"}}")).await?.unwrap_or(0.0);
    }
    Ok(sum)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_at_its_limit_is_refused_by_every_node_while_another_goes_on() {
    scenario(Sandbox::builder().nodes(2).databases(2), async |sandbox| {
        let token = json!({ "name": "shop", "role": "producer", "queues": ["shop.*"], "limits": { "pending": 10 } });
        let shop = tenant(sandbox, &token).await?;
        let tasks: Vec<Value> = (0..15).map(|n| later(if n % 2 == 0 { "shop.a" } else { "shop.b" })).collect();
        let answers = shop[0].batch(&tasks).await?;
        let ids: Vec<&String> = answers.iter().flatten().collect();
        ensure!(ids.len() == 10, "{answers:?}");
        let problem = answers[14].as_ref().err().context("refused")?;
        ensure!(problem["status"] == 429 && problem["limit"]["used"] == 10, "{problem}");
        ensure!(refused(&shop[1], "shop.b").await?.as_deref() == Some("token.pending"), "the other node counts too");
        ensure!(refused(&sandbox.client(1), "mail").await?.is_none(), "another tenant goes on");

        // Finished tasks free capacity, on whichever node the next one is submitted.
        for id in &ids[..3] {
            shop[0].cancel(id).await?;
        }
        let room = || async { refused(&shop[1], "shop.a").await.ok()?.is_none().then_some(()) };
        until("there is room again", SOON, room).await?;
        ensure!(accepted_until_refused(&shop[1], "shop.a").await? == 2, "exactly the freed capacity is accepted");
        until("the other node knows that it is used", SOON, || async {
            refused(&shop[0], "shop.b").await.ok()?.map(drop)
        })
        .await?;
        ensure!(limited(sandbox, "token.pending").await? >= 8.0);

        let slow = json!({ "name": "slow", "role": "viewer", "limits": { "requests_per_second": 2 } });
        let slow = tenant(sandbox, &slow).await?;
        until("a request is beyond the token's rate", SOON, || async {
            let failure = slow[0].list("queue=mail").await.err()?;
            (failure.status() == Some(429) && failure.problem("type").ends_with(":limit")).then_some(())
        })
        .await?;
        ensure!(limited(sandbox, "token.requests_per_second").await? >= 1.0);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_messages_and_rows_with_the_reason_and_takes_what_a_schedule_makes() {
    scenario(Sandbox::builder().nodes(2).databases(2), async |sandbox| {
        let client = sandbox.client(0);
        client.put_queue("box", &json!({ "max_pending": 1, "max_schedules": 1 })).await?;
        ensure!(refused(&client, "box").await?.is_none());
        ensure!(refused(&sandbox.client(1), "box").await?.as_deref() == Some("queue.max_pending"));

        let hand = Hand::open(&sandbox.amqp_url()).await?;
        hand.publish("", "duetime.submit", b"1", for_queue("box")).await?;
        let reason = hand.take_aside().await?;
        ensure!(reason.contains("queue.max_pending"), "{reason}");

        let mut connection = PgConnection::connect(&sandbox.database_url(1)).await?;
        let submit = "SELECT duetime.submit('box', '1', now() + interval '1 h')::text";
        let id: String = sqlx::query_scalar(submit).fetch_one(&mut connection).await?;
        until("the row is refused with the reason", SOON, || async {
            let failure = client.get(&id).await.err()?;
            failure.problem("detail").contains("queue.max_pending").then_some(())
        })
        .await?;
        // The row is seen before its node counts it.
        until("the row and all refusals are counted", SOON, async || {
            let mut rows = 0.0;
            for client in sandbox.clients() {
                rows += client.metric("duetime_inbox_refused_total{reason=\"limit\"}").await.ok()?.unwrap_or(0.0);
            }
            (rows == 1.0 && limited(sandbox, "queue.max_pending").await.ok()? >= 3.0).then_some(())
        })
        .await?;

        let schedule = json!({ "queue": "box", "every_ms": 3_600_000 });
        client.call::<Value>(Method::PUT, "/v1/schedules/one", Some(&schedule)).await?;
        let second = client.call::<Value>(Method::PUT, "/v1/schedules/two", Some(&schedule)).await;
        ensure!(second.as_ref().is_err_and(|failure| failure.status() == Some(429)), "{second:?}");
        client.call::<Value>(Method::POST, "/v1/schedules/one/run", None).await.context("schedules are not refused")?;
        ensure!(client.queue("box").await?["counts"]["scheduled"].as_i64().unwrap_or_default() >= 1);
        Ok(())
    })
    .await;
}
