//! A broker that accepts only clients with a certificate. Nodes and relays present one, and report a missing one.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::sandbox::{Authority, Rabbit, Sandbox, Tether, command, run_with, scratch};
use serde_json::json;

use crate::{in_state, scenario, until};

const SOON: Duration = Duration::from_secs(60);

/// The variables by which a process presents the certificate of `name` and logs in by it.
fn variables(authority: &Authority, rabbit: &Rabbit, name: &str) -> Result<Vec<(&'static str, String)>> {
    let files = authority.client(name)?;
    Ok(vec![
        ("DUETIME_AMQP__URL", format!("{}?auth_mechanism=external", rabbit.tls_url(""))),
        ("DUETIME_AMQP__CA_FILE", authority.file().display().to_string()),
        ("DUETIME_AMQP__CERT_FILE", files.cert.display().to_string()),
        ("DUETIME_AMQP__KEY_FILE", files.key.display().to_string()),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn with_certificates_tasks_are_delivered_and_without_one_the_node_says_why() {
    scenario(Sandbox::builder().nodes(1).unwatched(), async |sandbox| {
        let place = |what: &str| scratch().join(format!("{what}-{}", sandbox.vhost()));
        let authority = Authority::new(&place("authority"))?;
        let rabbit = Rabbit::start_encrypted(&place("rabbit"), Tether::Tethered, &authority).await?;
        for user in ["node", "relay"] {
            rabbit.ctl(&["add_user", user, "unused"]).await?;
            rabbit.ctl(&["set_permissions", user, ".*", ".*", ".*"]).await?;
        }
        let (node, client) = (sandbox.node(0), sandbox.client(0));
        let file = node.file().to_str().expect("a path").to_owned();

        let (ca, url) = (authority.file().display().to_string(), rabbit.tls_url("guest:guest@"));
        let without = [("DUETIME_AMQP__URL", url.as_str()), ("DUETIME_AMQP__CA_FILE", ca.as_str())];
        let checked = run_with(&["check", "--config", &file], &without, "").await?;
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        ensure!(!checked.status.success() && said.contains("amqp.cert_file"), "{said}");
        node.stop(SOON).await?;
        for (name, value) in without {
            node.set(name, value);
        }
        node.start()?;
        let says_why = || async {
            let (_, said) = client.readiness().await.ok()?;
            said.contains("amqp.cert_file").then_some(())
        };
        until("the node says that it needs a certificate", SOON, says_why).await?;

        node.stop(SOON).await?;
        for (name, value) in variables(&authority, &rabbit, "node")? {
            node.set(name, &value);
        }
        node.start()?;
        node.wait_ready(SOON).await?;
        let id = client.submit(&json!({ "queue": "mail" })).await?.id;
        in_state(&client, &id, "delivered").await?;

        client.put_queue("jobs", &json!({ "settle": "result", "timeout_ms": 60_000 })).await?;
        let mut relay = command()?;
        relay.args(["relay", "--queue", "jobs", "--command", "/bin/echo", "--", "done"]);
        relay.envs(variables(&authority, &rabbit, "relay")?);
        let _relay = relay.kill_on_drop(true).spawn()?;
        let id = client.submit(&json!({ "queue": "jobs" })).await?.id;
        in_state(&client, &id, "succeeded").await?;
        // Stopped before its broker goes.
        node.stop(SOON).await.map(drop)
    })
    .await;
}
