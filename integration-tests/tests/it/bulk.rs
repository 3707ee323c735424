//! Bulk operations: tasks cancelled and moved while they come due, exported to another cluster and back.

use std::{collections::BTreeSet, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{Router, routing::post};
use integration_tests::{
    client::Client,
    clock::now_ms,
    ledger::{Ledger, Number},
    sandbox::{Sandbox, command},
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    sync::{Semaphore, mpsc},
};

use crate::{command::Terminal, confirm, held_up_ms, id_of, in_state, scenario, submit};

const SOON: Duration = Duration::from_secs(60);

/// Submits this many tasks, due evenly from `first_ms` on.
async fn fill(
    client: &Client,
    ledger: &Ledger,
    queue: &str,
    tasks: i64,
    first_ms: i64,
    over_ms: i64,
) -> Result<Vec<Number>> {
    let mut numbers = Vec::new();
    for chunk in (0..tasks).collect::<Vec<_>>().chunks(5_000) {
        let due = |nth: i64| first_ms + nth * over_ms / tasks;
        let submitted: Vec<(Number, i64)> =
            chunk.iter().map(|nth| (ledger.submitting(queue, due(*nth)), due(*nth))).collect();
        let bodies: Vec<Value> = submitted
            .iter()
            .map(|(number, due_ms)| json!({ "queue": queue, "due_at": due_ms, "payload": { "n": number } }))
            .collect();
        for ((number, _), answer) in submitted.iter().zip(client.batch(&bodies).await?) {
            ledger.accepted(*number, &answer.map_err(anyhow::Error::msg)?);
            numbers.push(*number);
        }
    }
    Ok(numbers)
}

/// Sends request after request, to one node after the other; returns the sum of their answers: matched, done, in
/// flight.
async fn bulk(sandbox: &Sandbox, request: &Value) -> Result<(u64, u64, u64)> {
    let (mut sum, mut request) = ((0, 0, 0), request.clone());
    for turn in 0.. {
        let client = sandbox.client(turn % sandbox.nodes().len());
        let answer: Value = client.call(Method::POST, "/v1/tasks/bulk", Some(&request)).await?;
        ensure!(answer.get("interrupted").is_none(), "{answer}");
        sum.0 += answer["matched"].as_u64().context("matched")?;
        sum.1 += answer["done"].as_u64().context("done")?;
        sum.2 += answer["refused"]["in_flight"].as_u64().unwrap_or(0);
        request["cursor"] = answer["next_cursor"].clone();
        if request["cursor"].is_null() {
            break;
        }
    }
    Ok(sum)
}

/// The ids of all tasks of `queue` in that state.
async fn ids_in(client: &Client, queue: &str, state: &str) -> Result<BTreeSet<String>> {
    let (mut ids, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let path = format!("/v1/tasks?queue={queue}&state={state}&limit=1000{cursor}");
        let page: Value = client.call(Method::GET, &path, None).await?;
        ids.extend(
            page["tasks"].as_array().into_iter().flatten().filter_map(|task| Some(task["id"].as_str()?.to_owned())),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(ids),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_tasks_cancelled_while_they_come_due_none_that_was_cancelled_arrives() {
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        sandbox.consume_and_ack("other", &confirm()).await?;
        let (client, ledger) = (sandbox.client(0), &sandbox.ledger);
        let mut numbers = fill(&client, ledger, "mail", 45_000, now_ms() + 3_600_000, 600_000).await?;
        let others = fill(&sandbox.client(1), ledger, "other", 500, now_ms() + 3_000, 5_000).await?;
        numbers.extend(fill(&sandbox.client(2), ledger, "mail", 5_000, now_ms(), 8_000).await?);
        let request = json!({ "action": "cancel", "filter": { "queue": "mail" } });
        let (matched, done, in_flight) = bulk(sandbox, &request).await?;
        ensure!(matched == done + in_flight, "{matched} found, {done} done, {in_flight} in flight");
        let cancelled = ids_in(&client, "mail", "cancelled").await?;
        ensure!(cancelled.len() as u64 == done, "{done} done, {} cancelled", cancelled.len());
        let mut kept = 0;
        for number in &numbers {
            if cancelled.contains(&id_of(ledger, *number)?) {
                ledger.cancelled(*number, "cancelled");
            } else {
                kept += 1;
            }
        }
        // No task was missed: those not cancelled had been claimed before their turn came.
        ensure!(kept as u64 + done == 50_000 && done >= 45_000 && kept > 0, "{done} cancelled, {kept} not");
        ensure!(ledger.wait_all(SOON).await, "tasks are outstanding");
        // By now each task cancelled near its due time would have arrived.
        for number in others {
            ledger.wait_delivered(number, 1, SOON).await?;
        }
        let (matched, ..) = bulk(sandbox, &request).await?;
        ensure!(matched == 0, "{matched} left");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_moved_and_run_together_arrive_on_time_whoever_owns_them() {
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        sandbox.consume_and_ack("run", &confirm()).await?;
        let ledger = &sandbox.ledger;
        let later_ms = now_ms() + 3_600_000;
        let moved = fill(&sandbox.client(0), ledger, "mail", 1_000, later_ms, 5_000).await?;
        let run = fill(&sandbox.client(1), ledger, "run", 1_000, later_ms, 5_000).await?;
        let shift_ms = now_ms() + 3_000 - later_ms;
        let shift = json!({ "action": "move", "filter": { "queue": "mail" }, "shift_ms": shift_ms, "limit": 300 });
        ensure!(bulk(sandbox, &shift).await? == (1_000, 1_000, 0), "all are moved, once");
        for (nth, number) in (0..).zip(&moved) {
            ledger.moved(*number, later_ms + nth * 5 + shift_ms);
        }
        run.iter().for_each(|number| ledger.may_move(*number, now_ms()));
        let request = json!({ "action": "run", "filter": { "queue": "run" }, "limit": 300 });
        ensure!(bulk(sandbox, &request).await? == (1_000, 1_000, 0), "all are run, once");
        ensure!(ledger.wait_all(SOON).await, "tasks are outstanding");
        let lateness = ledger.judge().lateness;
        ensure!(lateness.p99_ms < 5_000.0 + held_up_ms() as f64, "{lateness}");
        Ok(())
    })
    .await;
}

/// The fields of an exported task that a submission has.
fn said(task: &Value) -> Value {
    let fields = [
        "queue",
        "due_at",
        "priority",
        "key",
        "version",
        "partition_key",
        "payload",
        "payload_base64",
        "content_type",
        "headers",
        "expires_at",
        "max_attempts",
        "timeout_ms",
        "retry",
    ];
    fields.into_iter().filter_map(|field| Some((field.to_owned(), task.get(field)?.clone()))).collect()
}

fn exported(text: &str, state: &str) -> Result<Vec<Value>> {
    let mut lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let end = lines.pop().context("an end")?;
    ensure!(end == json!({ "exported": lines.len() }), "{end}");
    lines.retain(|task| task["state"] == state);
    lines.sort_by_key(|task| task["due_at"].to_string());
    Ok(lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_exported_and_imported_is_what_was_submitted() {
    scenario(Sandbox::builder().nodes(2).databases(2), async |sandbox| {
        let (terminal, client) = (Terminal::of(sandbox), sandbox.client(0));
        let full = json!({
            "queue": "a", "payload": {"n": 1}, "due_at": "2040-01-01T00:00:00.000001Z", "priority": 2, "key": "k",
            "version": 3, "partition_key": "p", "max_attempts": 4, "timeout_ms": 5000, "retry": {"kind": "fixed", "delay_ms": 7},
            "expires_at": "2040-01-02T00:00:00Z", "headers": {"h": "v"},
        });
        client.submit(&full).await?;
        client.submit(&json!({ "queue": "b", "payload_base64": "AP8=", "content_type": "image/png", "due_at": "2041-01-01T00:00:00Z" })).await?;
        let exact = "{\"queue\":\"b\",\"payload\":{\"n\": 1.10},\"due_at\":\"2042-01-01T00:00:00Z\"}\n";
        terminal.ends(0, &["submit", "--batch", "-"], exact).await?;
        let of_lines = ["submit", "c", "--payload", "{\n\"n\": 1}", "--at", "2043-01-01T00:00:00Z", "--output", "jsonl"];
        ensure!(terminal.text(&of_lines).await?.lines().count() == 1, "one line");
        let cancelled = terminal.submitted(&["b", "--delay", "1h"]).await?;
        terminal.text(&["cancel", &cancelled]).await?;

        let before = terminal.text(&["export"]).await?;
        ensure!(before.contains("{\"n\": 1.10}"), "byte for byte: {before}");
        let of_queue = terminal.text(&["export", "--queue", "b", "--state", "scheduled"]).await?;
        ensure!(exported(&of_queue, "scheduled")?.len() == 2, "{of_queue}");
        let told = terminal.text(&["bulk", "cancel", "--all", "--yes"]).await?;
        ensure!(told == "cancel: 4 found, 4 done\n", "{told}");

        let (out, _) = terminal.ends(0, &["import", "-"], &before).await?;
        ensure!(out.contains("4 imported, 0 already there, 1 finished"), "{out}");
        let after = terminal.text(&["export"]).await?;
        let (first, second) = (exported(&before, "scheduled")?, exported(&after, "scheduled")?);
        ensure!(first.len() == 4 && after.contains("{\"n\": 1.10}"), "{after}");
        for (first, second) in first.iter().zip(&second) {
            ensure!(said(first) == said(second) && first["id"] != second["id"], "{first}\n{second}");
        }

        // Imports once more: the task with a key exists; the others do too, once their old ids are their keys.
        for there in [1, 4] {
            let (out, _) = terminal.ends(0, &["import", "-", "--key-from-id"], &before).await?;
            ensure!(out.contains(&format!("{there} already there")), "{out}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_import_refuses_is_kept_and_can_be_imported_again() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        let id = terminal.submitted(&["a", "--delay", "1h"]).await?;
        let whole = terminal.text(&["export"]).await?;
        let line = whole.lines().next().context("a line")?;
        let input = format!("{}\nnonsense\n{line}\n", line.replace("\"priority\":3", "\"priority\":9"));
        let folder = tempfile::tempdir()?;
        let kept = folder.path().join("refused.jsonl");
        let kept = kept.to_str().context("UTF-8")?;
        let (out, error) = terminal.ends(1, &["import", "-", "--refused", kept], &input).await?;
        ensure!(out.starts_with("1 imported, 0 already there, 0 finished and skipped, 2 refused"), "{out}");
        ensure!(
            error.contains("line 1: `priority`") && error.contains("line 2: ") && error.contains("cut off"),
            "{error}"
        );
        let mended = std::fs::read_to_string(kept)?.replace("\"priority\":9", "\"priority\":3");
        let (out, error) = terminal.ends(1, &["import", "-"], &mended).await?;
        ensure!(
            out.starts_with("1 imported") && out.contains("1 refused") && !error.contains("cut off"),
            "{out}\n{error}"
        );
        let (out, _) = terminal.ends(0, &["import", "-", "--from-line", "3", "--output", "json"], &input).await?;
        ensure!(serde_json::from_str::<Value>(&out)?["imported"] == 1, "{out}");

        // By the business key instead of the id.
        let client = sandbox.client(0);
        client.submit(&json!({ "queue": "a", "key": "k 1", "partition_key": "p", "delay_ms": 3_600_000 })).await?;
        let by_key = ["--queue", "a", "--key", "k 1", "--partition-key", "p"];
        let with = |words: &[&'static str]| [words, &by_key].concat();
        ensure!(terminal.json(&with(&["get"])).await?["key"] == "k 1");
        ensure!(terminal.json(&with(&["move", "--delay", "2h"])).await?["state"] == "scheduled");
        terminal.refused(&with(&["retry"])).await?;
        ensure!(terminal.json(&with(&["cancel"])).await?["outcome"] == "cancelled");
        terminal.refused(&["get", "--queue", "a", "--key", "nobody's"]).await?;
        // Two keys that differ by a tab are two tasks.
        for key in ["order\t7", "order7"] {
            client.submit(&json!({ "queue": "b", "key": key, "delay_ms": 3_600_000 })).await?;
        }
        for key in ["order\t7", "order7"] {
            let cancelled = terminal.json(&["cancel", "--queue", "b", "--key", key]).await?;
            ensure!(cancelled["outcome"] == "cancelled", "{cancelled}");
        }

        let counted = terminal.json(&["bulk", "cancel", "--queue", "a", "--dry-run"]).await?;
        ensure!(counted["matched"] == 4 && counted["done"] == 4 && counted["dry_run"] == true, "{counted}");
        ensure!(client.get(&id).await?.state == "scheduled", "a dry run changes nothing");
        let error = terminal.refused(&["bulk", "cancel", "--yes"]).await?;
        ensure!(error.contains("every task"), "{error}");
        let done = terminal.json(&["bulk", "cancel", "--queue", "a", "--yes"]).await?;
        ensure!(done["matched"] == 4 && done["done"] == 4, "{done}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_warns_of_tasks_that_wait_for_others_outside_the_file() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let (terminal, client) = (Terminal::of(sandbox), sandbox.client(0));
        client.submit(&json!({ "queue": "pay", "key": "k", "partition_key": "p", "delay_ms": 3_600_000 })).await?;
        let waits = json!({ "queue": "ship", "partition_key": "p", "depends_on": [{ "queue": "pay", "key": "k" }] });
        client.submit(&waits).await?;
        let (part, whole) = (terminal.text(&["export", "--queue", "ship"]).await?, terminal.text(&["export"]).await?);
        terminal.text(&["bulk", "cancel", "--all", "--yes"]).await?;
        let (_, error) = terminal.ends(0, &["import", "-"], &part).await?;
        ensure!(error.contains("warning: 1 tasks wait for tasks that are not in this file"), "{error}");
        let (_, error) = terminal.ends(0, &["import", "-"], &whole).await?;
        ensure!(!error.contains("not in this file"), "{error}");
        Ok(())
    })
    .await;
}

/// An import of standard input at a node that accepts all tasks of a batch once `answers` lets it, and tells when it
/// has one.
async fn held_import(input: &str, answers: &Arc<Semaphore>) -> Result<(Child, mpsc::Receiver<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (received, receives) = mpsc::channel(1);
    let (url, answers) = (format!("http://{}", listener.local_addr()?), Arc::clone(answers));
    let route = post(move |body: String| {
        let (received, answers) = (received.clone(), Arc::clone(&answers));
        async move {
            received.send(()).await.expect("the test waits for it");
            answers.acquire().await.expect("open").forget();
            let tasks: Vec<Value> = serde_json::from_str(&body).expect("a batch");
            json!({ "results": vec![json!({}); tasks.len()] }).to_string()
        }
    });
    let app = Router::new().route("/v1/tasks/batch", route);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut command = command()?;
    command.args(["import", input, "--url", &url]).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok((command.spawn()?, receives))
}

/// Its standard input stays open: the process that writes it may go on for hours.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_gets_a_signal_ends_after_its_answers_and_says_how_far_it_came() -> Result<()> {
    for input in ["-", "/dev/stdin"] {
        ended_by_a_signal(input).await.with_context(|| format!("import {input}"))?;
    }
    Ok(())
}

async fn ended_by_a_signal(input: &str) -> Result<()> {
    let answers = Arc::new(Semaphore::new(0));
    let (mut import, mut receives) = held_import(input, &answers).await?;
    let task = concat!(
        r#"{"id":"00000000-0000-0000-0000-00000abc0005","queue":"q","state":"scheduled","due_at":"2033-05-18T03:33:20Z","#,
        r#""created_at":"1970-01-01T00:00:00Z","attempt":0,"priority":3,"payload":1,"content_type":"application/json"}"#,
        "\n"
    );
    // A chunk of a thousand, and one that is not full yet.
    let mut input = import.stdin.take().context("a pipe")?;
    input.write_all(task.repeat(1_500).as_bytes()).await?;
    receives.recv().await.context("a batch")?;
    let pid = import.id().context("it runs")?.to_string();
    ensure!(Command::new("kill").args(["-s", "TERM", &pid]).status().await?.success(), "no signal");
    let mut errors = BufReader::new(import.stderr.take().context("a pipe")?);
    let mut said = String::new();
    errors.read_line(&mut said).await?;
    ensure!(said.contains("stopping"), "{said}");
    answers.add_permits(1);
    let ended = tokio::time::timeout(SOON, import.wait_with_output()).await.context("it waits for its input")??;
    errors.read_to_string(&mut said).await?;
    let out = String::from_utf8(ended.stdout)?;
    ensure!(ended.status.code() == Some(3) && out.starts_with("1,000 imported"), "{}: {out}{said}", ended.status);
    ensure!(said.contains("stopped by a signal") && said.contains("--from-line 1001"), "{said}");
    drop(input);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_about_many_is_refused_by_the_field_and_changes_nothing() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let (client, ledger) = (sandbox.client(0), &sandbox.ledger);
        let number = submit(&client, ledger, "mail", now_ms() + 600_000, &Value::Null).await?;
        for (request, field) in [
            (json!({ "action": "cancel" }), "filter"),
            (json!({ "action": "cancel", "filter": {} }), "filter"),
            (json!({ "action": "forget", "all": true }), "action"),
            (json!({ "action": "cancel", "filter": { "state": "dead" } }), "filter.state"),
            (json!({ "action": "cancel", "filter": { "colour": "red" } }), "filter.colour"),
            (json!({ "action": "move", "all": true }), "due_at"),
            (json!({ "action": "cancel", "all": true, "limit": 0 }), "limit"),
            (json!({ "action": "cancel", "all": true, "cursor": "x" }), "cursor"),
        ] {
            let answer = client.call::<Value>(Method::POST, "/v1/tasks/bulk", Some(&request)).await;
            let refused = answer.expect_err("it is refused");
            ensure!(refused.status() == Some(422) && refused.problem("field") == field, "{request}: {refused}");
        }
        for (query, field) in
            [("limit=5", "limit"), ("state=done", "state"), ("queue=a%2Fb", "queue"), ("error=", "error")]
        {
            let answer = client.call::<Value>(Method::GET, &format!("/v1/tasks/export?{query}"), None).await;
            let refused = answer.expect_err("it is refused");
            ensure!(refused.status() == Some(422) && refused.problem("field") == field, "{query}: {refused}");
        }
        let id = id_of(ledger, number)?;
        in_state(&client, &id, "scheduled").await?;
        ledger.cancelled(number, &client.cancel(&id).await?);
        Ok(())
    })
    .await;
}
