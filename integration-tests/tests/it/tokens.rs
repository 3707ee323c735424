//! Tokens that are created and revoked while the cluster runs, and the audit of who did what.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{client::Client, sandbox::Sandbox};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{command::Terminal, scenario, until};

/// A new or revoked token takes effect on every node within a second; a busy machine needs longer.
pub(crate) const IN_FORCE_WITHIN: Duration = Duration::from_secs(60);

/// A note is written a tenth of a second after its answer; a busy machine needs longer.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn make(operator: &Client, token: &Value) -> Result<String> {
    let made: Value = operator.call(Method::POST, "/v1/tokens", Some(token)).await?;
    Ok(made["token"].as_str().context("the answer has the token")?.to_owned())
}

/// Waits until `client` gets `status`; `None`: it is let in.
pub(crate) async fn answers(client: &Client, status: Option<u16>, within: Duration) -> Result<()> {
    until(&format!("{} answers {status:?}", client.base()), within, || async {
        let answer = client.call::<Value>(Method::GET, "/v1/queues", None).await;
        let got = answer.as_ref().err().and_then(|failure| failure.status());
        (got == status && (status.is_some() || answer.is_ok())).then_some(())
    })
    .await
}

/// Waits until the audit has `count` deeds of that kind.
pub(crate) async fn noted(operator: &Client, what: &str, count: usize) -> Result<Vec<Value>> {
    let path = format!("/v1/audit?what={what}");
    until(&format!("{what} is noted {count} times"), NOTED_WITHIN, || async {
        let page: Value = operator.call(Method::GET, &path, None).await.ok()?;
        page["deeds"].as_array().filter(|deeds| deeds.len() >= count).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_made_on_one_node_is_good_on_all_within_a_second_and_revoked_as_fast() {
    scenario(Sandbox::builder(), async |sandbox| {
        let operator = sandbox.client(0);
        let token = make(&operator, &json!({ "name": "shop", "role": "producer", "queues": ["shop.*"] })).await?;
        let shop: Vec<Client> = sandbox.clients().iter().map(|client| client.with_token(Some(&token))).collect();
        for client in &shop {
            answers(client, None, IN_FORCE_WITHIN).await?;
        }
        shop[1].submit(&json!({ "queue": "shop.orders", "delay_ms": 3_600_000 })).await?;
        let foreign = shop[2].submit(&json!({ "queue": "mail", "delay_ms": 3_600_000 })).await;
        ensure!(foreign.as_ref().err().and_then(|failure| failure.status()) == Some(403), "{foreign:?}");
        sandbox.client(1).call::<Value>(Method::DELETE, "/v1/tokens/shop", None).await?;
        for client in &shop {
            answers(client, Some(401), IN_FORCE_WITHIN).await?;
        }
        let own: Value = operator.call(Method::GET, "/v1/tokens", None).await?;
        ensure!(!own.to_string().contains(&token), "a token is shown once: {own}");
        sandbox
            .client(0)
            .call::<Value>(
                Method::POST,
                "/v1/tasks/bulk",
                Some(&json!({
                    "action": "cancel", "filter": { "queue": "shop.orders" },
                })),
            )
            .await?;
        let deeds = noted(&operator, "task.bulk", 1).await?;
        ensure!(deeds[0]["detail"].as_str().is_some_and(|detail| detail.contains("done 1")), "{deeds:?}");
        // The submission to a foreign queue, and at least one request to each node with the revoked token.
        let refused = noted(&operator, "refused", 1 + shop.len()).await?;
        let is = |who: &str, status: u16| {
            refused.iter().any(|deed| deed["who"] == who && deed["status"] == status && deed["address"] == "127.0.0.1")
        };
        ensure!(is("shop", 403) && is("anonymous", 401), "{refused:?}");
        noted(&operator, "token.revoke", 1).await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_away_known_tokens_work_and_deeds_wait() {
    scenario(Sandbox::builder(), async |sandbox| {
        let operator = sandbox.client(0);
        let token = make(&operator, &json!({ "name": "watch", "role": "viewer" })).await?;
        let watch: Vec<Client> = sandbox.clients().iter().map(|client| client.with_token(Some(&token))).collect();
        for client in &watch {
            answers(client, None, IN_FORCE_WITHIN).await?;
        }
        let fault = sandbox.ledger.fault("database away");
        sandbox.postgres(0).kill();
        for client in &watch {
            // A viewer is refused for lack of permission (403); an unknown caller would get 401.
            let refused = client.call::<Value>(Method::POST, "/v1/queues/mail/pause", None).await;
            ensure!(refused.as_ref().err().and_then(|failure| failure.status()) == Some(403), "{refused:?}");
            let stranger = client.with_token(Some("nobody")).call::<Value>(Method::GET, "/v1/queues", None).await;
            ensure!(stranger.as_ref().err().and_then(|failure| failure.status()) == Some(401), "{stranger:?}");
        }
        sandbox.postgres(0).restart().await?;
        sandbox.ledger.heal(fault);
        let deeds = noted(&operator, "queue.pause", watch.len()).await?;
        ensure!(deeds.iter().all(|deed| deed["who"] == "watch" && deed["status"] == 403), "{deeds:?}");
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_before_a_node_stops_is_in_the_audit() {
    scenario(Sandbox::builder(), async |sandbox| {
        let client = sandbox.client(2);
        for number in 0..20 {
            let queue = format!("q{number}");
            client.put_queue(&queue, &json!({})).await?;
        }
        sandbox.node(2).stop(Duration::from_secs(30)).await?;
        let deeds = noted(&sandbox.client(0), "queue.put", 20).await?;
        ensure!(deeds.iter().filter(|deed| deed["node"] == sandbox.node(2).name()).count() == 20, "{deeds:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_made_listed_and_revoked_by_hand_and_the_audit_tells_who_did_it() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let (terminal, client) = (Terminal::of(sandbox), sandbox.client(0));
        let shop = ["token", "create", "shop", "--role", "producer", "--queue", "shop.*", "--expires-after", "8h"];
        let shown = terminal.text(&shop).await?;
        let token = shown.lines().next().and_then(|line| line.strip_prefix("token: ")).context("a token")?;
        answers(&client.with_token(Some(token)), None, IN_FORCE_WITHIN).await?;
        let error = terminal.refused(&shop).await?;
        ensure!(error.contains("shop") && error.lines().count() == 1, "{error}");

        let made = terminal.json(&["token", "create", "visitor", "--role", "viewer"]).await?;
        ensure!(made["name"] == "visitor" && made["token"].is_string(), "{made}");
        let shown = terminal.text(&["token", "list"]).await?;
        ensure!(
            shown.contains("shop.*") && shown.contains("in force, expires in 8 h") && !shown.contains(token),
            "{shown}"
        );
        let (out, error) = terminal.ends(0, &["token", "list", "--limit", "1"], "").await?;
        ensure!(out.contains("visitor") && !out.contains("shop") && error.contains("--cursor"), "{out}{error}");

        let shown = terminal.text(&["token", "revoke", "shop"]).await?;
        ensure!(shown.trim() == "shop  revoked", "{shown}");
        answers(&client.with_token(Some(token)), Some(401), IN_FORCE_WITHIN).await?;
        terminal.refused(&["token", "revoke", "shop"]).await?;

        noted(&client, "token.revoke", 2).await?;
        let shown = terminal.text(&["audit", "--what", "token.revoke", "--target", "shop"]).await?;
        ensure!(shown.contains("200") && shown.contains("404") && shown.lines().count() == 3, "{shown}");
        let one = ["audit", "--what", "token.revoke", "--limit", "1"];
        let newest = terminal.json(&one).await?;
        ensure!(newest["deeds"][0]["status"] == 404, "newest first: {newest}");
        let cursor = newest["next_cursor"].as_str().context("there is one more")?;
        let before = terminal.json(&[one.as_slice(), &["--cursor", cursor]].concat()).await?;
        ensure!(
            before["deeds"][0]["status"] == 200 && before["deeds"][0]["who"] == newest["deeds"][0]["who"],
            "{before}"
        );
        // One deed a page, so that the command must go on.
        let all = [one.as_slice(), &["--all"]].concat();
        let whole = terminal.json(&all).await?;
        ensure!(whole["deeds"].as_array().is_some_and(|deeds| deeds.len() == 2), "one document: {whole}");
        ensure!(whole["next_cursor"].is_null(), "{whole}");
        let (lines, error) = terminal.ends(0, &[&all[..], &["--output", "jsonl"]].concat(), "").await?;
        let deeds = lines.lines().map(|line| serde_json::from_str(line).context(line.to_owned()));
        let deeds: Vec<Value> = deeds.collect::<Result<_>>()?;
        let statuses: Vec<&Value> = deeds.iter().map(|deed| &deed["status"]).collect();
        ensure!(statuses == [404, 200] && !error.contains("--cursor"), "a deed a line: {lines}{error}");
        let shown = terminal.text(&all).await?;
        ensure!(shown.starts_with("AT") && shown.lines().count() == 3, "{shown}");
        let (line, error) = terminal.ends(0, &[&one[..], &["--output", "jsonl"]].concat(), "").await?;
        ensure!(line.lines().count() == 1 && error.contains("--all"), "{line}{error}");
        let nobody = terminal.json(&["audit", "--who", "nobody"]).await?;
        ensure!(nobody["deeds"] == json!([]), "{nobody}");
        Ok(())
    })
    .await;
}
