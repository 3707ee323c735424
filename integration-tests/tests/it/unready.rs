//! Nodes that cannot start, or not yet: exit codes and messages that tell the operator what to do.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    consumer::Answer,
    sandbox::{
        DatabaseConfig, Node, NodeConfig, Sandbox, Tether, binary, command, free_port, migrate, run, run_with, scratch,
    },
};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{scenario, submit_now, until};

/// Runs `duetime check` on a configuration of this text.
async fn check(name: &str, text: &str) -> Result<(Output, String)> {
    let file = scratch().join(format!("{name}.toml"));
    std::fs::write(&file, text)?;
    let output = run(&["check", "--config", file.to_str().context("paths are UTF-8")?]).await?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output, said))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_is_refused_by_key() -> Result<()> {
    let database = "[[database]]\nname = \"a\"\nurl = \"postgres://u:p@127.0.0.1:1/d\"\n";
    let halves = |first: &str, second: &str| {
        format!(
            "[[database]]\nname = \"a\"\nurl = \"postgres://u@h/a\"\nshards = \"{first}\"\n\
             [[database]]\nname = \"b\"\nurl = \"postgres://u@h/b\"\nshards = \"{second}\"\n"
        )
    };
    let cases = [
        ("unknown-key", format!("{database}[node]\ncolour = \"red\"\n"), "colour"),
        ("unknown-section", format!("{database}[colour]\nred = 1\n"), "colour"),
        ("no-database", String::new(), "database"),
        ("short-lease", format!("{database}[etcd]\nlease_ttl_ms = 10\n"), "etcd.lease_ttl_ms"),
        ("no-endpoint", format!("{database}[etcd]\nendpoints = []\n"), "etcd.endpoints"),
        ("bad-amqp", format!("{database}[amqp]\nurl = \"http://h\"\n"), "amqp.url"),
        ("bad-listen", format!("{database}[http]\nlisten = \"everywhere\"\n"), "http.listen"),
        ("open-door", format!("{database}[http]\nlisten = \"0.0.0.0:8080\"\n"), "auth"),
        (
            "bad-role",
            format!("{database}[[auth.token]]\nname = \"t\"\nrole = \"king\"\nsha256 = \"{}\"\n", "0".repeat(64)),
            "role",
        ),
        ("bad-hash", format!("{database}[[auth.token]]\nname = \"t\"\nrole = \"viewer\"\nsha256 = \"12\"\n"), "sha256"),
        (
            "no-certificate",
            format!(
                "{database}[amqp]\nurl = \"amqp://127.0.0.1:1\"\n[etcd]\nendpoints = [\"http://127.0.0.1:1\"]\n\
                 [http]\ncert_file = \"/etc/hostname\"\nkey_file = \"/etc/hostname\"\n"
            ),
            "http.cert_file",
        ),
        ("gap", halves("0-63", "65-127"), "shards"),
        ("overlap", halves("0-64", "64-127"), "shards"),
        ("not-toml", "[node".to_owned(), "toml"),
    ];
    for (name, text, key) in cases {
        let (output, said) = check(name, &text).await?;
        ensure!(output.status.code() == Some(1), "{name}: exit {:?}: {said}", output.status.code());
        ensure!(said.to_lowercase().contains(key), "{name}: does not name {key}: {said}");
    }
    let missing = run(&["check", "--config", "/nonexistent/duetime.toml"]).await?;
    ensure!(missing.status.code() == Some(1), "{missing:?}");
    ensure!(
        String::from_utf8_lossy(&missing.stderr).contains("/nonexistent")
            || String::from_utf8_lossy(&missing.stdout).contains("/nonexistent")
    );
    let usage = run(&["conjure"]).await?;
    ensure!(usage.status.code() == Some(2), "{usage:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tells_what_cannot_be_reached() -> Result<()> {
    let (etcd, amqp, database) = (free_port(), free_port(), free_port());
    let text = format!(
        "[etcd]\nendpoints = [\"http://127.0.0.1:{etcd}\"]\n[amqp]\nurl = \"amqp://guest:guest@127.0.0.1:{amqp}/%2f\"\n\
         [[database]]\nname = \"main\"\nurl = \"postgres://u:secret@127.0.0.1:{database}/d\"\n"
    );
    let (output, said) = check("unreachable", &text).await?;
    ensure!(output.status.code() == Some(3), "exit {:?}: {said}", output.status.code());
    for word in ["etcd", "amqp", "database"] {
        ensure!(said.contains(word), "does not name {word}: {said}");
    }
    ensure!(!said.contains("secret"), "shows a password: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_is_content_with_a_cluster_that_works() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let file = sandbox.node(0).file().to_str().context("paths are UTF-8")?.to_owned();
        let output = run(&["check", "--config", &file]).await?;
        ensure!(output.status.success(), "{output:?}");
        let again = run(&["migrate", "--config", &file]).await?;
        ensure!(again.status.success(), "{again:?}");
        let built = run(&["migrate", "--indexes", "--config", &file]).await?;
        ensure!(String::from_utf8_lossy(&built.stdout).contains("all indexes"), "{built:?}");
        Ok(())
    })
    .await;
}

/// A node on the sandbox's stores, except for the changes of `break_it`.
fn lone_node(sandbox: &Sandbox, name: &str, break_it: impl FnOnce(&mut NodeConfig)) -> Result<Node> {
    let mut config = sandbox.node(0).config().clone();
    config.name = name.to_owned();
    config.port = free_port();
    break_it(&mut config);
    Node::new(scratch(), config, Tether::Tethered)
}

/// Migrates the database of `node` and makes a change there.
async fn migrated(node: &Node, change: &str) -> Result<()> {
    migrate(node).await?;
    alter(&node.config().databases[0].url, change).await
}

async fn alter(url: &str, change: &str) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query(AssertSqlSafe(change.to_owned())).execute(&mut connection).await.with_context(|| change.to_owned())?;
    Ok(connection.close().await?)
}

/// Nodes of a cluster of their own on the sandbox's servers, on an empty database.
async fn cluster_apart(sandbox: &Sandbox, names: &[&str]) -> Result<Vec<Node>> {
    let apart = format!("{}_{}", sandbox.vhost(), names[0]);
    let amqp = sandbox.rabbit().add_vhost(&apart).await?;
    sandbox.rabbit().retire_vhost(apart.clone());
    let url = sandbox.postgres(0).create_database(&apart).await?;
    let node = |name: &&str| {
        lone_node(sandbox, name, |config| {
            config.etcd_prefix = format!("/{apart}");
            config.amqp_url = amqp.clone();
            config.databases = vec![DatabaseConfig { name: "main".into(), url: url.clone(), shards: String::new() }];
        })
    };
    names.iter().map(node).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_a_schema_that_no_migration_makes_fit() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let nodes = cluster_apart(sandbox, &["behind"]).await?;
        let newest = "WITH newest AS (
                          UPDATE duetime.migration SET version = 9999
                           WHERE version = (SELECT max(version) FROM duetime.migration))
                      UPDATE duetime.meta SET serves = 9999";
        migrated(&nodes[0], newest).await?;
        nodes[0].start()?;
        let status = nodes[0].wait_ended(Duration::from_secs(30)).await?;
        let said = nodes[0].tail(20);
        ensure!(status.code() == Some(1), "{status}: {said}");
        ensure!(said.contains("9999") && said.contains("update this node"), "does not say what to do: {said}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_databases_of_two_clusters() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let mut config = cluster_apart(sandbox, &["torn"]).await?[0].config().clone();
        let url = sandbox.postgres(0).create_database(&format!("{}_second", sandbox.vhost())).await?;
        config.databases[0].shards = "0-63".into();
        config.databases.push(DatabaseConfig { name: "second".into(), url: url.clone(), shards: "64-127".into() });
        let node = Node::new(scratch(), config, Tether::Tethered)?;
        migrate(&node).await?;
        alter(&url, "UPDATE duetime.meta SET cluster_id = gen_random_uuid()").await?;
        node.start()?;
        let status = node.wait_ended(Duration::from_secs(30)).await?;
        let said = node.tail(20);
        ensure!(status.code() == Some(1) && said.contains("belongs to cluster"), "{status}: {said}");
        let file = node.file().to_str().context("paths are UTF-8")?;
        let output = run(&["migrate", "--config", file]).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(4) && said.contains("belongs to cluster"), "{output:?}");
        Ok(())
    })
    .await;
}

/// What `/readyz` says without a token.
async fn lacks(node: &Node) -> Option<(bool, Vec<String>)> {
    let answer = node.client().with_token(None).send(Method::GET, "/readyz", None).await.ok()?;
    let told: Value = answer.json().await.ok()?;
    let words = told["missing"].as_array()?.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect();
    told["reasons"].is_null().then_some((told["ready"].as_bool()?, words))
}

async fn waits_for_its_schema(node: &Node) -> Result<()> {
    until(&format!("{} waits for its schema", node.name()), Duration::from_secs(60), || async {
        (lacks(node).await? == (false, vec!["schema".to_owned()])).then_some(())
    })
    .await
    .with_context(|| node.tail(20))?;
    let (_, reasons) = node.client().readiness().await?;
    ensure!(reasons.contains("duetime migrate"), "does not say what to do: {reasons}");
    let alive = node.client().with_token(None).send(Method::GET, "/healthz", None).await?;
    ensure!(alive.status().is_success(), "{alive:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_before_the_migration_become_ready_after_it() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let nodes = cluster_apart(sandbox, &["early-1", "early-2"]).await?;
        for node in &nodes {
            node.start()?;
        }
        for node in &nodes {
            waits_for_its_schema(node).await?;
        }
        let task = serde_json::to_vec(&json!({ "queue": "mails" }))?;
        let refused = nodes[0].client().send(Method::POST, "/v1/tasks", Some(task)).await?.status();
        ensure!(refused == 503, "a task was not refused as unavailable: {refused}");

        migrate(&nodes[0]).await?;
        for node in &nodes {
            node.wait_ready(Duration::from_secs(60)).await?;
            ensure!(lacks(node).await == Some((true, Vec::new())), "{:?}", lacks(node).await);
        }
        is_delivered_by(&nodes[0]).await?;
        is_delivered_by(&nodes[1]).await?;

        // A schema that is too old is awaited too: its last migration has not succeeded yet.
        let url = &nodes[0].config().databases[0].url;
        let last = "version = (SELECT max(version) FROM duetime.migration)";
        nodes[1].stop(Duration::from_secs(60)).await?;
        alter(url, &format!("UPDATE duetime.migration SET success = false WHERE {last}")).await?;
        nodes[1].start()?;
        waits_for_its_schema(&nodes[1]).await?;
        alter(url, &format!("UPDATE duetime.migration SET success = true WHERE {last}")).await?;
        nodes[1].wait_ready(Duration::from_secs(60)).await?;
        is_delivered_by(&nodes[1]).await?;

        for (node, waits) in nodes.iter().zip([1, 2]) {
            let log = std::fs::read_to_string(node.log())?;
            let lines = log.lines().filter(|line| line.contains("waits for the migration")).count();
            ensure!(lines == waits, "{} warns {lines} times, not {waits}:\n{}", node.name(), node.tail(40));
            node.stop(Duration::from_secs(60)).await?;
        }
        Ok(())
    })
    .await;
}

/// A task that this node accepts reaches RabbitMQ.
async fn is_delivered_by(node: &Node) -> Result<()> {
    let id = node.client().submit(&json!({ "queue": "mails" })).await?.id;
    until(&format!("{} delivers", node.name()), Duration::from_secs(60), || async {
        let task = node.client().get(&id).await.ok()?;
        ["delivered", "succeeded"].contains(&task.state.as_str()).then_some(())
    })
    .await
    .with_context(|| node.tail(20))
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_tells_what_stays_from_what_may_pass() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let nodes = cluster_apart(sandbox, &["once"]).await?;
        let node = &nodes[0];
        migrate(node).await?;
        let file = node.file().to_str().context("paths are UTF-8")?;
        let good = &node.config().databases[0].url;
        let (head, _) = good.rsplit_once('/').context("a database in the URL")?;
        let (user, place) = good.rsplit_once('@').context("a server in the URL")?;
        let (user, _) = user.rsplit_once(':').context("a password in the URL")?;
        let cases = [
            ("a wrong password", "URL", format!("{user}:wrong@{place}"), 4),
            ("an unknown database", "URL", format!("{head}/nowhere"), 4),
            ("no TLS", "URL", format!("{good}?sslmode=require"), 4),
            ("no server", "URL", format!("postgres://u:p@127.0.0.1:{}/d", free_port()), 3),
        ];
        for (what, key, value, code) in cases {
            let variable = format!("DUETIME_DATABASE__0__{key}");
            let output = run_with(&["migrate", "--config", file], &[(&variable, &value)], "").await?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(code), "{what}: exit {:?}, not {code}: {said}", output.status.code());
            ensure!(!said.is_empty() && !said.contains("wrong@"), "{what}: {said}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_goes_on_to_the_last_database_without_a_reader() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let mut config = cluster_apart(sandbox, &["unread"]).await?[0].config().clone();
        let url = sandbox.postgres(0).create_database(&format!("{}_unread_second", sandbox.vhost())).await?;
        config.databases[0].shards = "0-63".into();
        config.databases.push(DatabaseConfig { name: "second".into(), url, shards: "64-127".into() });
        let node = Node::new(scratch(), config, Tether::Tethered)?;
        let file = node.file().to_str().context("paths are UTF-8")?;

        let (_, without_reader) = std::io::pipe()?;
        let mut command = command()?;
        command.args(["migrate", "--config", file]).stdout(without_reader).stderr(Stdio::piped());
        // `output` would put a pipe of its own in the place of ours.
        let ended = command.spawn()?.wait_with_output().await?;
        ensure!(ended.status.code() == Some(0), "{ended:?}");
        let again = run(&["migrate", "--config", file]).await?;
        let said = String::from_utf8_lossy(&again.stdout);
        ensure!(said.matches(" already, ").count() == 2, "a database was left out: {said}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_reach_a_store_keeps_trying_and_says_so() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let nowhere = free_port();
        let etcd = lone_node(sandbox, "no-etcd", |config| {
            config.etcd_endpoints = vec![format!("http://127.0.0.1:{nowhere}")];
        })?;
        let broker = lone_node(sandbox, "no-broker", |config| {
            config.amqp_url = format!("amqp://guest:guest@127.0.0.1:{nowhere}/%2f");
        })?;
        let database = lone_node(sandbox, "no-database", |config| {
            config.databases[0].url = format!("postgres://u:p@127.0.0.1:{nowhere}/d");
        })?;
        for (node, word) in [(&etcd, "etcd"), (&broker, "amqp|broker|rabbitmq"), (&database, "database|postgres")] {
            node.start()?;
            let client = node.client();
            until(&format!("{} names the missing server", node.name()), Duration::from_secs(40), || async {
                let (ready, why) = client.readiness().await.ok()?;
                let why = why.to_lowercase();
                (!ready && word.split('|').any(|word| why.contains(word))).then_some(())
            })
            .await
            .with_context(|| node.tail(20))?;
            ensure!(node.is_running(), "{} exited: {}", node.name(), node.tail(20));
            node.kill();
        }
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_log_cannot_be_written_works_and_stops_in_order() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let node = sandbox.node(0);
        node.stop(Duration::from_secs(60)).await?;
        let script = sandbox.folder().join("without-log");
        fs::write(&script, format!("#!/bin/sh\nexec '{}' \"$@\" 2>/dev/full\n", binary()?.display()))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        node.set_program(Some(&script));
        sandbox.restart(0).await?;
        sandbox.settled().await?;
        let policy = json!({ "settle": "reject" });
        sandbox.consume("mail", &policy, |_| Answer::ack()).await?;
        submit_now(&sandbox.client(0), &sandbox.ledger, "mail", &Value::Null).await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(30)).await, "the task is outstanding");
        let status = node.stop(Duration::from_secs(60)).await?;
        ensure!(status.success(), "{status}");
        node.set_program(None);
        sandbox.restart(0).await?;
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_told_before_anything_is_touched() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let port = sandbox.node(0).config().port;
        let node = lone_node(sandbox, "late", |config| config.port = port)?;
        node.start()?;
        let status = node.wait_ended(Duration::from_secs(60)).await?;
        ensure!(!status.success() && node.tail(20).contains("http.listen"), "{status}: {}", node.tail(20));
        Ok(())
    })
    .await;
}
