//! Two clusters on one set of stores: the second says why it does not start, and the first goes on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    consumer::Answer,
    load::Load,
    sandbox::{
        DatabaseConfig, Node, NodeConfig, Sandbox, Tether, free_port, hide_variables, migrate, run, scratch, shared,
    },
};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::process::Command;

use crate::{confirm, held_up_ms, id_of, in_state, lasts, load, scenario, stream::Stream, until};

const SOON: Duration = Duration::from_secs(60);

/// No task may be later than this while etcd loses its data.
const GAP_MS: f64 = 5_000.0;

/// A node with the first node's configuration, after `change`.
fn stranger(sandbox: &Sandbox, name: &str, change: impl FnOnce(&mut NodeConfig)) -> Result<Node> {
    let mut config = sandbox.node(0).config().clone();
    config.name = name.to_owned();
    config.port = free_port();
    change(&mut config);
    Node::new(scratch(), config, Tether::Tethered)
}

/// A database of a cluster of its own, on the sandbox's server.
async fn other_database(sandbox: &Sandbox, name: &str) -> Result<Vec<DatabaseConfig>> {
    let url = sandbox.postgres(0).create_database(&format!("{}_{name}", sandbox.vhost())).await?;
    Ok(vec![DatabaseConfig { name: "main".into(), url, shards: String::new() }])
}

/// Waits until the node, which never becomes ready, gives a reason with all of `words`.
async fn says(node: &Node, words: &[&str]) -> Result<()> {
    let client = node.client();
    until(&format!("{} says {words:?}", node.name()), SOON, || async {
        let (ready, reasons) = client.readiness().await.ok()?;
        (!ready && words.iter().all(|word| reasons.contains(word))).then_some(())
    })
    .await
    .with_context(|| node.tail(20))?;
    let log = std::fs::read_to_string(node.log())?;
    ensure!(words.iter().all(|word| log.contains(word)), "the log does not say {words:?}:\n{}", node.tail(20));
    Ok(())
}

/// `duetime check` refuses the configuration with these words.
async fn check_refuses(node: &Node, words: &[&str]) -> Result<()> {
    let output = run(&["check", "--config", node.file().to_str().context("paths are UTF-8")?]).await?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(1) && words.iter().all(|word| said.contains(word)), "{output:?}");
    Ok(())
}

/// Deletes the cluster's keys, as if etcd had lost its data.
async fn wipe_etcd(sandbox: &Sandbox) -> Result<()> {
    let prefix = format!("{}/", sandbox.node(0).config().etcd_prefix);
    let deleted: u32 = etcdctl(sandbox, &["del", "--prefix", &prefix]).await?.parse()?;
    ensure!(deleted > 0, "nothing was there");
    Ok(())
}

async fn etcdctl(sandbox: &Sandbox, args: &[&str]) -> Result<String> {
    let endpoints = sandbox.etcd().endpoints().join(",");
    let mut command = Command::new("etcdctl");
    hide_variables(command.as_std_mut());
    command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoints]).args(args);
    let output = command.output().await.context("etcdctl")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_database_under_two_names_is_refused() {
    scenario(Sandbox::builder().nodes(1).first_has_all(), async |sandbox| {
        let node = stranger(sandbox, "second", |config| {
            let url = format!("{}?application_name=again", config.databases[0].url);
            config.databases.push(DatabaseConfig { name: "again".into(), url, shards: String::new() });
        })?;
        let words = ["`again`", "`db1`", "the same database under two names"];
        check_refuses(&node, &words).await?;
        let refused = migrate(&node).await.err().context("migrate takes one database twice")?;
        ensure!(words.iter().all(|word| refused.to_string().contains(word)), "{refused:#}");
        node.start()?;
        ensure!(!node.wait_ended(SOON).await?.success());
        let log = std::fs::read_to_string(node.log())?;
        ensure!(log.contains("the same database under two names"), "{}", node.tail(20));
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_first_database_is_refused() {
    scenario(Sandbox::builder().nodes(1).databases(2), async |sandbox| {
        let policy = json!({ "settle": "result", "timeout_ms": 5_000 });
        sandbox.consume("work", &policy, |_| Answer::report("succeeded")).await?;
        let mut other = PgConnection::connect(&sandbox.database_url(1)).await?;
        until("the other database has a copy of the queue", SOON, async || {
            let copied = sqlx::query_scalar("SELECT count(*) FROM duetime.queue").fetch_one(&mut other);
            (copied.await.unwrap_or(0_i64) > 0).then_some(())
        })
        .await?;
        let node = stranger(sandbox, "second", |config| config.databases.swap(0, 1))?;
        let words = ["`db2`", "not the first one"];
        check_refuses(&node, &words).await?;
        node.start()?;
        ensure!(!node.wait_ended(SOON).await?.success());
        let log = std::fs::read_to_string(node.log())?;
        ensure!(words.iter().all(|word| log.contains(word)), "{}", node.tail(20));
        sandbox.settled().await
    })
    .await;
}

/// The databases say that both are one cluster, so the virtual host lets both in: the second must not even read there,
/// because it could not write what a report says.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_cluster_on_the_same_databases_gets_no_shard_and_says_why() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let policy = json!({ "settle": "result", "timeout_ms": 5_000 });
        sandbox.consume("work", &policy, |_| Answer::report("succeeded")).await?;
        let owned = sandbox.owned().await;
        let prefix = format!("{}_second", sandbox.node(0).config().etcd_prefix);
        let node = stranger(sandbox, "second", |config| config.etcd_prefix = prefix)?;
        node.start()?;
        says(&node, &["another cluster uses it"]).await?;
        check_refuses(&node, &["another cluster uses it"]).await?;
        let numbers = load(sandbox, &[0, 1], Load::new("work", 50), Duration::from_secs(8)).await?;
        for number in numbers {
            in_state(&sandbox.client(0), &id_of(&sandbox.ledger, number)?, "succeeded").await?;
        }
        let taken = node.client().metric("duetime_shards_owned").await?;
        ensure!(taken == Some(0.0), "the second cluster owns {taken:?} shards");
        ensure!(sandbox.owned().await == owned, "{owned:?}, then {:?}", sandbox.owned().await);
        // It goes on refusing: the first cluster renews its note.
        says(&node, &["another cluster uses it"]).await?;
        node.kill();
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_cluster_on_the_same_virtual_host_publishes_nothing_and_says_why() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0], Load::new("mail", 100), Duration::from_secs(8));
        let databases = other_database(sandbox, "tenant").await?;
        let node = stranger(sandbox, "tenant", |config| {
            config.etcd_prefix.push_str("_tenant");
            config.databases = databases;
        })?;
        migrate(&node).await?;
        node.start()?;
        says(&node, &["virtual host belongs to another cluster", "duetime.cluster"]).await?;
        check_refuses(&node, &["virtual host belongs to another cluster"]).await?;
        // The task stays in its database.
        let id = node.client().submit(&json!({ "queue": "foreign" })).await?.id;
        lasts(Duration::from_secs(3)).await;
        stream.await?;
        let state = node.client().get(&id).await?.state;
        ensure!(["scheduled", "ready"].contains(&state.as_str()), "{state}");
        let queues = sandbox.rabbit().ctl(&["list_queues", "-q", "-p", sandbox.vhost(), "name"]).await?;
        ensure!(queues.contains("mail") && !queues.contains("foreign"), "{queues}");
        node.kill();
        Ok(())
    })
    .await;
}

/// Its database has the name of the first cluster's, and another server.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_cluster_under_the_same_prefix_does_not_join_and_says_why() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0, 1], Load::new("mail", 100), Duration::from_secs(8));
        let name = sandbox.node(0).config().databases[0].name.clone();
        let seen = format!("{}/databases/{name}/seen", sandbox.node(0).config().etcd_prefix);
        until("the first cluster has noted its server", SOON, || async {
            let record = etcdctl(sandbox, &["get", &seen, "--print-value-only"]).await.ok()?;
            (!record.is_empty()).then_some(())
        })
        .await?;
        let server = shared::numbered_postgres(1).await?;
        let url = server.create_database(&format!("{}_guest", sandbox.vhost())).await?;
        let accept = format!("/v1/databases/{name}/accept-loss");
        let databases = vec![DatabaseConfig { name, url, shards: String::new() }];
        let vhost = format!("{}_guest", sandbox.vhost());
        let amqp_url = sandbox.rabbit().add_vhost(&vhost).await?;
        sandbox.rabbit().retire_vhost(vhost);
        let node = stranger(sandbox, "guest", |config| {
            config.databases = databases;
            config.amqp_url = amqp_url;
        })?;
        migrate(&node).await?;
        node.start()?;
        says(&node, &["belongs to cluster", "etcd.prefix"]).await?;
        check_refuses(&node, &["belongs to cluster", "etcd.prefix"]).await?;
        let accepted = node.client().call::<Value>("POST".parse()?, &accept, None).await;
        ensure!(accepted.as_ref().err().and_then(|failure| failure.status()) == Some(409), "{accepted:?}");
        stream.await?;
        let report = sandbox.client(0).cluster().await?;
        ensure!(report["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2), "{report}");
        node.kill();
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_etcd_loses_its_data_while_nodes_run_and_start_nothing_stops() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        // No fault window is opened: no loss of etcd may cause a copy.
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 100));
        wipe_etcd(sandbox).await?;
        let third = sandbox.add_node().await?;
        sandbox.restart(third).await?;
        sandbox.settled().await?;
        wipe_etcd(sandbox).await?;
        // Each node has noticed by the end of its lease.
        lasts(sandbox.lease_ttl()).await;
        sandbox.settled().await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        let lateness = sandbox.ledger.judge().lateness;
        ensure!(lateness.max_ms <= GAP_MS + held_up_ms() as f64, "{lateness}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_etcd_was_replaced_while_no_node_ran_works_again() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        for node in sandbox.nodes() {
            ensure!(node.stop(Duration::from_secs(30)).await?.success());
        }
        wipe_etcd(sandbox).await?;
        let began = Instant::now();
        for number in 0..2 {
            sandbox.node(number).start()?;
        }
        for number in 0..2 {
            sandbox.node(number).wait_ready(Duration::from_secs(90)).await?;
        }
        println!("ready after {:.1?}", began.elapsed());
        sandbox.settled().await?;
        load(sandbox, &[0, 1], Load::new("mail", 100), Duration::from_secs(2)).await?;
        Ok(())
    })
    .await;
}
