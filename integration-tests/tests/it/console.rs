//! The console in a real browser: signing in, reading, working.

use anyhow::{Result, ensure};
use integration_tests::{client::Client, clock::now_ms, sandbox::Sandbox};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{in_state, language, scenario};

/// If set, the pictures of docs/img are written anew.
const SHOOT: &str = "DUETIME_CONSOLE_SHOTS";

/// Dead tasks of one group, enough to see that an action takes all of it.
const DEAD: usize = 3;

/// Submits a task that is due too late to come due during the scenario.
pub(crate) async fn put_off(client: &Client, queue: &str, key: &str, payload: &str) -> Result<String> {
    // As text, because a number must arrive as it is written.
    let json = format!(
        r#"{{"queue":"{queue}","key":{},"due_at":{},"payload":{payload}}}"#,
        Value::from(key),
        now_ms() + 1_800_000
    );
    let answer: Value = client.send(Method::POST, "/v1/tasks", Some(json.into_bytes())).await?.json().await?;
    Ok(answer["id"].as_str().unwrap_or_default().to_owned())
}

/// Makes a task that was handed over and then given up by its consumer.
async fn die(client: &Client, queue: &str, why: &str) -> Result<()> {
    let id = client.submit(&json!({ "queue": queue, "payload": { "to": "nobody" } })).await?.id;
    in_state(client, &id, "delivered").await?;
    let report = json!({ "attempt": 1, "status": "discard", "status_msg": why });
    let _: Value = client.call(Method::POST, &format!("/v1/tasks/{id}/result"), Some(&report)).await?;
    in_state(client, &id, "dead").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_finds_what_is_wrong_and_puts_it_right_in_a_browser() {
    if !language::is_here("npm") || !language::is_here("chromium") {
        return;
    }
    scenario(Sandbox::builder(), async |sandbox| {
        let client = sandbox.client(0);
        let policy = json!({ "settle": "result", "max_attempts": 1 });
        let _: Value = client.call(Method::PUT, "/v1/queues/mail", Some(&policy)).await?;
        let evil = "<img src=x onerror=alert(1)>";
        put_off(&client, "orders", evil, r#"{"note":"<script>alert(1)</script>"}"#).await?;
        let big = put_off(&client, "orders", "big", r#"{"order":12345678901234567890123,"price":1.10}"#).await?;
        let cancel = put_off(&client, "orders", "to-cancel", "null").await?;
        for nth in 0..40 {
            put_off(&client, "orders", &format!("order-{nth}"), "{}").await?;
        }
        for _ in 0..DEAD {
            die(&client, "mail", "550 no such mailbox").await?;
        }
        let tasks = json!({ "big": big, "cancel": cancel, "dead": DEAD, "evil": evil });
        look(sandbox, "look.js", &tasks).await?;
        ensure!(in_state(&client, &cancel, "cancelled").await?.state == "cancelled");
        Ok(())
    })
    .await;
}

/// Lets the browser run the script, which acts like a person.
pub(crate) async fn look(sandbox: &Sandbox, script: &str, tasks: &Value) -> Result<()> {
    let folder = language::root().join("integration-tests/tests/it/console");
    let mut fetch = Command::new("npm");
    fetch.args(["ci", "--no-audit", "--no-fund", "--prefer-offline", "--cache"]).arg(language::kept("npm")?);
    language::run(fetch.current_dir(&folder)).await?;
    let bases: Vec<String> = sandbox.clients().iter().map(|client| client.base().to_owned()).collect();
    let mut look = Command::new("node");
    look.arg(script).current_dir(&folder);
    look.env("BASES", bases.join(",")).env("TOKEN", &sandbox.node(0).config().token).env("TASKS", tasks.to_string());
    let profile = tempfile::tempdir()?;
    look.env("CHROMIUM", "/usr/bin/chromium").env("PROFILE", profile.path());
    if std::env::var_os(SHOOT).is_some() {
        look.env("SHOTS", language::root().join("docs/img"));
    }
    let told = language::run(&mut look).await?;
    ensure!(told.contains("all is well"), "{told}");
    Ok(())
}
