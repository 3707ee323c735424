//! A database joins running nodes, one after the other, and shards move to it while tasks fire.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{
    client::{Client, Failure},
    load::Load,
    sandbox::{DatabaseConfig, Sandbox, migrate},
};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::{confirm, scenario, stream::Stream, until};

const JOINED_WITHIN: Duration = Duration::from_secs(60);
const MOVED_WITHIN: Duration = Duration::from_secs(60);

/// Tasks that are due long after the scenario, on shards of all kinds.
const KEPT: usize = 40;

/// Adds the section to the file of a running node.
fn add(sandbox: &Sandbox, node: usize, section: &DatabaseConfig) -> Result<()> {
    let mut config = sandbox.node(node).config().clone();
    config.databases.push(section.clone());
    sandbox.node(node).reload(&config.toml())
}

/// The shards of each database, as a node lists them.
async fn listed(client: &Client) -> Result<Vec<(String, String)>> {
    let list: Value = client.call(Method::GET, "/v1/databases", None).await?;
    let views = list["databases"].as_array().context("a list")?.iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(views.map(|view| (text(&view["name"]), text(&view["shards"]))).collect())
}

async fn lists(client: &Client, expected: &[(&str, &str)]) -> Result<()> {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(name, shards)| ((*name).to_owned(), (*shards).to_owned())).collect();
    until(&format!("the node lists {expected:?}"), JOINED_WITHIN, || async {
        (listed(client).await.ok()? == expected).then_some(())
    })
    .await
}

async fn ask(client: &Client) -> Result<Value, Failure> {
    client.call(Method::POST, "/v1/shards/moves", Some(&json!({ "shards": "0-15", "to": "db2" }))).await
}

/// The revision at which the queue's policy last changed, as a database knows it.
async fn turn(url: &str) -> Result<Option<i64>> {
    let mut connection = PgConnection::connect(url).await?;
    let read = "SELECT revision FROM duetime.queue_turn WHERE queue = 'mail'";
    Ok(sqlx::query_scalar(read).fetch_optional(&mut connection).await?)
}

async fn keep(clients: &[Client]) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for number in 0..KEPT {
        let task = json!({ "queue": "kept", "delay_ms": 3_600_000, "partition_key": format!("p{number}") });
        ids.push(clients[number % clients.len()].submit(&task).await?.id);
    }
    Ok(ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_joins_running_nodes_and_takes_shards_once_every_node_uses_it() {
    scenario(Sandbox::builder().first_has_all().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let clients = sandbox.clients();
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 50));
        let mut kept = keep(&clients).await?;
        // A change that the new database is not told of when it is made.
        let policy = json!({ "settle": "confirm", "rate_per_second": 5_000 });
        clients[0].call::<Value>(Method::PUT, "/v1/queues/mail", Some(&policy)).await?;
        let section = sandbox.add_database().await?;
        // The schema is missing, so the node waits and goes on as before.
        add(sandbox, 0, &section)?;
        until("the node says what is missing", JOINED_WITHIN, || async {
            let log = std::fs::read_to_string(sandbox.node(0).log()).ok()?;
            log.contains("has no Duetime schema").then_some(())
        })
        .await?;
        lists(&clients[0], &[("db1", "0-255")]).await?;
        migrate(sandbox.node(0)).await?;
        lists(&clients[0], &[("db1", "0-255"), ("db2", "")]).await?;
        lists(&clients[1], &[("db1", "0-255")]).await?;
        let refused = ask(&clients[0]).await.err().context("node-2 does not use the database yet")?;
        let why = refused.problem("detail");
        ensure!(refused.status() == Some(409) && why.contains("node-2"), "{refused}");
        add(sandbox, 1, &section)?;
        lists(&clients[1], &[("db1", "0-255"), ("db2", "")]).await?;
        until("every node uses the database", JOINED_WITHIN, || async { ask(&clients[1]).await.ok() }).await?;
        kept.extend(keep(&clients).await?);
        until("all moves have ended", MOVED_WITHIN, || async {
            let moves: Value = clients[0].call(Method::GET, "/v1/shards/moves", None).await.ok()?;
            (moves["moves"].as_array()?.is_empty()).then_some(())
        })
        .await?;
        kept.extend(keep(&clients).await?);
        let (known, copied) = (turn(&sandbox.database_url(0)).await?, turn(&section.url).await?);
        ensure!(known.is_some() && known == copied, "{known:?} and {copied:?}");
        for client in &clients {
            lists(client, &[("db1", "16-255"), ("db2", "0-15")]).await?;
            for id in &kept {
                client.get(id).await?;
            }
        }
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(45)).await, "tasks are outstanding");
        sandbox.settled().await
    })
    .await;
}
