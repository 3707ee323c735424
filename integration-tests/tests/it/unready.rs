//! Nodes that cannot start, or not yet: exit codes and messages that tell the operator what to do.

use std::{process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::{DatabaseConfig, Node, NodeConfig, Sandbox, Tether, free_port, run, scratch};

use crate::{scenario, until};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_a_schema_it_does_not_know() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let empty = sandbox.postgres(0).create_database("never_migrated").await?;
        let node = lone_node(sandbox, "early", |config| {
            config.etcd_prefix = "/early".into();
            config.databases = vec![DatabaseConfig { name: "db1".into(), url: empty.clone(), shards: "0-127".into() }];
        })?;
        node.start()?;
        let status = node.wait_ended(Duration::from_secs(30)).await?;
        ensure!(status.code() == Some(1), "{status}: {}", node.tail(20));
        ensure!(node.tail(20).contains("migrate"), "does not say what to do: {}", node.tail(20));
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
async fn a_port_in_use_is_told_before_anything_is_touched() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let port = sandbox.node(0).config().port;
        let node = lone_node(sandbox, "late", |config| config.port = port)?;
        node.start()?;
        let status = node.wait_ended(Duration::from_secs(20)).await?;
        ensure!(!status.success() && node.tail(20).contains("http.listen"), "{status}: {}", node.tail(20));
        Ok(())
    })
    .await;
}
