//! The command line as a person or a script uses it: the real program against a real cluster, judged by its output
//! and its exit code: 0 done, 1 refused, 2 usage, 3 unreachable.

use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    client::Client,
    load::Load,
    sandbox::{Sandbox, command, free_port, run_with},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{flows, in_state, moves, scenario, stream::Stream};

/// An id that no task has.
const NOBODY: &str = "0199f3a0-0000-7000-8000-000000000005";

/// A terminal whose commands all go to the same cluster.
pub(crate) struct Terminal {
    urls: String,
    token: String,
}

impl Terminal {
    /// The first address has no listener: every command skips it.
    pub(crate) fn of(sandbox: &Sandbox) -> Self {
        let urls: Vec<String> = sandbox.nodes().iter().map(|node| node.url()).collect();
        Self {
            urls: format!("http://127.0.0.1:{},{}", free_port(), urls.join(",")),
            token: sandbox.node(0).config().token.clone(),
        }
    }

    async fn typed(&self, words: &[&str], input: &str) -> Result<Output> {
        let output = run_with(words, &[("DUETIME_URLS", &self.urls), ("DUETIME_TOKEN", &self.token)], input).await?;
        let said = [output.stdout.as_slice(), &output.stderr].concat();
        ensure!(!String::from_utf8_lossy(&said).contains(&self.token), "{words:?} shows the token");
        Ok(output)
    }

    /// The standard output and error of a command that must end with `code`.
    pub(crate) async fn ends(&self, code: i32, words: &[&str], input: &str) -> Result<(String, String)> {
        let output = self.typed(words, input).await?;
        let (out, error) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        ensure!(output.status.code() == Some(code), "{words:?}: {} instead of {code}\n{out}\n{error}", output.status);
        Ok((out, error))
    }

    /// The output for a person.
    pub(crate) async fn text(&self, words: &[&str]) -> Result<String> {
        Ok(self.ends(0, words, "").await?.0)
    }

    /// The output for a program.
    pub(crate) async fn json(&self, words: &[&str]) -> Result<Value> {
        let (out, _) = self.ends(0, &[words, &["--output", "json"]].concat(), "").await?;
        serde_json::from_str(&out).with_context(|| format!("{words:?}: {out}"))
    }

    async fn lines(&self, words: &[&str]) -> Result<Vec<Value>> {
        let (out, _) = self.ends(0, &[words, &["--output", "jsonl"]].concat(), "").await?;
        out.lines().map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
    }

    /// The text on standard error when the node refuses.
    pub(crate) async fn refused(&self, words: &[&str]) -> Result<String> {
        Ok(self.ends(1, words, "").await?.1)
    }

    pub(crate) async fn submitted(&self, words: &[&str]) -> Result<String> {
        let task = self.json(&[&["submit"], words].concat()).await?;
        Ok(task["id"].as_str().context("an id")?.to_owned())
    }

    /// Cancels new tasks after those of `refused`, with this standard output and error. All must be cancelled, and the
    /// command must end with `code`.
    async fn cancels_all_but(
        &self,
        refused: &[&str],
        output: Stdio,
        errors: Stdio,
        client: &Client,
        code: i32,
    ) -> Result<()> {
        let mut ids = Vec::new();
        for _ in refused.len()..3 {
            ids.push(client.submit(&json!({ "queue": "mail", "delay_ms": 3_600_000 })).await?.id);
        }
        let mut cancel = command()?;
        cancel.arg("cancel").args(refused).args(&ids);
        cancel.env("DUETIME_URLS", &self.urls).env("DUETIME_TOKEN", &self.token);
        // `output` would put pipes of its own in the place of ours.
        let ended = cancel.stdout(output).stderr(errors).spawn()?.wait_with_output().await?;
        ensure!(ended.status.code() == Some(code), "{ended:?} instead of {code}");
        for id in &ids {
            ensure!(client.get(id).await?.state == "cancelled", "{id}: {ended:?}");
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_submitted_shown_moved_and_cancelled_by_hand() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        let shown = terminal.text(&["submit", "later", "--payload", "{\"n\": 1.10}", "--delay", "30m"]).await?;
        ensure!(shown.contains("scheduled  due ") && shown.contains("(in 30 m)"), "{shown}");
        let id = shown.split_whitespace().next().context("an id")?.to_owned();

        let shown = terminal.text(&["get", &id]).await?;
        ensure!(shown.contains("later") && shown.contains("{\"n\": 1.10}"), "{shown}");
        let task = terminal.json(&["get", &id]).await?;
        ensure!(task == of_the_api(sandbox, &id).await?, "{task}");

        let moved = terminal.json(&["move", &id, "--at", "2040-01-01T00:00:00Z"]).await?;
        ensure!(moved["due_at"] == "2040-01-01T00:00:00.000000Z", "{moved}");
        let shown = terminal.text(&["move", &id, "--delay", "2h"]).await?;
        ensure!(shown.contains("due "), "{shown}");

        let other = terminal.submitted(&["later", "--delay", "1h"]).await?;
        let (out, error) = terminal.ends(1, &["cancel", &id, NOBODY, &other], "").await?;
        ensure!(out.matches("cancelled").count() == 2 && error.contains(NOBODY), "{out}\n{error}");
        let third = terminal.submitted(&["later", "--delay", "1h"]).await?;
        let answer = terminal.json(&["cancel", &third]).await?;
        ensure!(answer == json!({ "id": third, "outcome": "cancelled" }), "{answer}");
        terminal.refused(&["cancel", NOBODY]).await?;
        let error = terminal.refused(&["get", NOBODY]).await?;
        ensure!(error.starts_with("duetime: ") && error.lines().count() == 1, "{error}");
        let error = terminal.refused(&["submit", "later", "--priority", "9"]).await?;
        ensure!(error.contains("`priority`"), "{error}");
        Ok(())
    })
    .await;
}

/// The task as the API itself shows it.
async fn of_the_api(sandbox: &Sandbox, id: &str) -> Result<Value> {
    Ok(sandbox.client(1).call(reqwest::Method::GET, &format!("/v1/tasks/{id}"), None).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_run_reported_and_tried_again_by_hand() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let (terminal, client) = (Terminal::of(sandbox), sandbox.client(0));
        terminal.text(&["queue", "set", "work", "settle=result"]).await?;
        let id = terminal.submitted(&["work", "--delay", "1h", "--max-attempts", "1", "--header", "a=b"]).await?;
        terminal.text(&["run", &id]).await?;
        in_state(&client, &id, "delivered").await?;
        let error = terminal.refused(&["run", &id]).await?;
        ensure!(error.contains("delivered"), "{error}");

        let running = ["--attempt", "1", "--status", "running", "--progress", "40", "--worker", "hand"];
        let task = terminal.json(&[&["result", &id], running.as_slice()].concat()).await?;
        ensure!(task["state"] == "running" && task["progress"] == 40 && task["worker"] == "hand", "{task}");
        let discarded = ["result", &id, "--attempt", "1", "--status", "discard", "--status-msg", "no use"];
        terminal.text(&discarded).await?;
        let shown = terminal.text(&["get", &id]).await?;
        ensure!(shown.contains("dead") && shown.contains("no use") && shown.contains("ATTEMPT"), "{shown}");

        let again = terminal.json(&["retry", &id]).await?;
        ensure!(again["id"] == id.as_str(), "{again}");
        in_state(&client, &id, "delivered").await?;
        let succeeded = ["result", &id, "--attempt", "2", "--status", "succeeded", "--result", "{\"x\":1}"];
        terminal.text(&succeeded).await?;
        let task = terminal.json(&["get", &id]).await?;
        ensure!(task["state"] == "succeeded" && task["result"] == json!({ "x": 1 }), "{task}");
        let error = terminal.refused(&["retry", &id, &id]).await?;
        ensure!(error.contains("2 of 2 were refused"), "{error}");
        terminal
            .refused(&succeeded[..6].iter().map(|word| if *word == "2" { "7" } else { word }).collect::<Vec<_>>())
            .await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_tells_each_refused_line_by_its_number_and_lists_follow_to_the_end() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        let task = "{\"queue\":\"many\",\"delay_ms\":3600000}\n";
        let input =
            format!("{}\n{{\"queue\":\"many\",\"priority\":9}}\nnonsense\n{}", task.repeat(3), task.repeat(10_100));
        let (out, error) = terminal.ends(1, &["submit", "--batch", "-"], &input).await?;
        ensure!(out.trim() == "10,103 accepted, 2 refused, 0 failed or unknown", "{out}");
        ensure!(error.contains("line 5: ") && error.contains("line 6: "), "{error}");

        let (out, _) = terminal
            .ends(1, &["submit", "--batch", "-", "--output", "json"], "{\"queue\":\"b\",\"delay_ms\":3600000}\n\n1\n")
            .await?;
        let answer: Value = serde_json::from_str(&out)?;
        ensure!(answer["results"][0]["queue"] == "b" && answer["results"][1]["error"]["index"] == 1, "{answer}");
        let (out, _) = terminal.ends(0, &["submit", "--batch", "-", "--output", "jsonl"], task).await?;
        ensure!(out.lines().count() == 1 && out.contains("\"id\""), "{out}");

        let all = terminal.lines(&["list", "--queue", "many", "--all"]).await?;
        ensure!(all.len() == 10_104, "{} tasks", all.len());
        let page = terminal.json(&["list", "--queue", "many", "--limit", "7"]).await?;
        ensure!(page["tasks"].as_array().is_some_and(|tasks| tasks.len() == 7), "{page}");
        let cursor = page["next_cursor"].as_str().context("a cursor")?;
        let next = terminal.json(&["list", "--queue", "many", "--limit", "7", "--cursor", cursor]).await?;
        ensure!(next["tasks"][0]["id"] != page["tasks"][0]["id"], "{next}");
        let whole = terminal.json(&["list", "--queue", "many", "--all"]).await?;
        ensure!(whole["tasks"].as_array().is_some_and(|tasks| tasks.len() == 10_104), "one document");
        let table = terminal.text(&["list", "--state", "scheduled", "--queue", "b"]).await?;
        ensure!(table.starts_with("ID") && table.lines().count() == 2, "{table}");
        let error = terminal.refused(&["list", "--cursor", "nonsense"]).await?;
        ensure!(error.contains("cursor"), "{error}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_put_looked_at_paused_run_and_deleted_by_hand() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        terminal.refused(&["schedule", "get", "nightly"]).await?;
        let fields = ["queue=reports", "cron=30 2 * * *", "time_zone=Europe/Berlin", "payload={\"deep\": 1.0}"];
        let put = terminal.text(&[&["schedule", "put", "nightly"][..], &fields].concat()).await?;
        ensure!(put.contains("30 2 * * *  Europe/Berlin") && put.contains("{\"deep\": 1.0}"), "{put}");
        let never = terminal.refused(&["schedule", "put", "never", "queue=q", "cron=0 0 30 2 *"]).await?;
        ensure!(never.contains("never fires"), "{never}");
        let next = terminal.text(&["schedule", "next", "nightly", "--count", "3"]).await?;
        ensure!(next.lines().count() == 3, "{next}");
        ensure!(terminal.text(&["schedule", "pause", "nightly"]).await? == "nightly  paused\n");
        ensure!(terminal.text(&["schedule", "list"]).await?.contains("paused"));
        ensure!(terminal.json(&["schedule", "resume", "nightly"]).await?["paused"] == false);
        terminal.text(&["schedule", "pause", "nightly"]).await?;
        terminal.text(&["queue", "pause", "reports"]).await?;
        let task = terminal.json(&["schedule", "run", "nightly"]).await?;
        ensure!(task["queue"] == "reports", "{task}");
        ensure!(terminal.text(&["schedule", "delete", "nightly"]).await? == "nightly  deleted\n");
        ensure!(terminal.json(&["schedule", "list"]).await?["schedules"] == serde_json::json!([]));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_set_field_by_field_paused_and_deleted_by_hand() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        terminal.refused(&["queue", "get", "mine"]).await?;
        let changed = terminal.text(&["queue", "set", "mine", "settle=confirm", "max_attempts=3"]).await?;
        ensure!(changed.contains("settle: - -> \"confirm\""), "{changed}");
        let changed = terminal.text(&["queue", "set", "mine", "max_attempts=4", "timeout_ms=5000"]).await?;
        ensure!(changed == "max_attempts: 3 -> 4\ntimeout_ms: 1800000 -> 5000\n", "{changed}");
        let queue = terminal.json(&["queue", "set", "mine", "timeout_ms=null"]).await?;
        let policy = &queue["policy"];
        ensure!(
            policy["settle"] == "confirm" && policy["max_attempts"] == 4 && policy["timeout_ms"] == 1_800_000,
            "{queue}"
        );
        let error = terminal.refused(&["queue", "set", "mine", "colour=red"]).await?;
        ensure!(error.contains("`colour`"), "{error}");

        ensure!(terminal.text(&["queue", "pause", "mine"]).await? == "mine  paused\n");
        ensure!(terminal.json(&["queue", "get", "mine"]).await?["paused"] == true);
        ensure!(terminal.json(&["queue", "resume", "mine"]).await?["paused"] == false);
        ensure!(terminal.json(&["queue", "list"]).await?["queues"][0]["name"] == "mine");
        terminal.text(&["queue", "set", "others", "max_attempts=3"]).await?;
        let (out, error) = terminal.ends(0, &["queue", "list", "--limit", "1"], "").await?;
        ensure!(out.contains("mine") && !out.contains("others") && error.contains("--cursor mine"), "{out}{error}");
        let all = terminal.lines(&["queue", "list", "--limit", "1", "--all"]).await?;
        ensure!(all.len() == 2 && all[1]["name"] == "others", "{all:?}");
        let shown = terminal.text(&["queue", "get", "mine"]).await?;
        ensure!(shown.contains("max_attempts") && shown.contains("SCHEDULED"), "{shown}");
        let id = terminal.submitted(&["mine", "--delay", "1h"]).await?;
        let error = terminal.refused(&["queue", "delete", "mine"]).await?;
        ensure!(error.contains("cancel them first"), "{error}");
        terminal.text(&["cancel", &id]).await?;
        ensure!(terminal.text(&["queue", "delete", "mine"]).await? == "mine  deleted\n");
        terminal.refused(&["queue", "pause", "mine"]).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_asked_to_move_and_databases_are_drained_by_hand() {
    scenario(Sandbox::builder().databases(2), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        let shown = terminal.text(&["database", "list", "--load"]).await?;
        ensure!(
            shown.contains("serving, first") && shown.contains("64-127") && shown.contains("FINISHED/S"),
            "{shown}"
        );
        let listed = terminal.json(&["shard", "list"]).await?;
        ensure!(listed["shards"][64]["database"] == "db2" && listed["shards"][0]["status"] == "here", "{listed}");
        let lines = terminal.lines(&["shard", "list"]).await?;
        ensure!(lines.len() == 128 && lines[64]["database"] == "db2", "{lines:?}");
        let shown = terminal.text(&["shard", "rebalance", "--dry-run"]).await?;
        ensure!(shown.contains("64 -> 64") && shown.contains("no shard has to move"), "{shown}");

        // Each command takes its time, and no move may reach its cut meanwhile.
        let _held_up = (moves::hold_up(sandbox, 0).await?, moves::hold_up(sandbox, 1).await?);
        let shown = terminal.text(&["shard", "move", "0-3,64", "--to", "db2"]).await?;
        ensure!(shown == "0-3  moves to db2\n64  already in db2\n", "{shown}");
        let moves = terminal.json(&["shard", "moves", "--ended"]).await?;
        ensure!(moves["moves"].as_array().is_some_and(|all| all.len() == 4), "{moves}");
        let error = terminal.refused(&["shard", "move", "3-5", "--to", "db2"]).await?;
        ensure!(error.contains("the shards 3 move already"), "{error}");
        let error = terminal.refused(&["shard", "move", "9", "--to", "nowhere"]).await?;
        ensure!(error.contains("there are: db1, db2"), "{error}");
        let (_, error) = terminal.ends(2, &["shard", "move", "9-3", "--to", "db2"], "").await?;
        ensure!(error.contains("`9-3`"), "{error}");
        let off = terminal.json(&["shard", "call-off", "0-3"]).await?;
        ensure!(off["called_off"] == "0-3", "{off}");
        terminal.refused(&["shard", "call-off", "9"]).await?;

        let shown = terminal.text(&["database", "drain", "db2"]).await?;
        ensure!(shown.starts_with("db2  draining, "), "{shown}");
        let error = terminal.refused(&["database", "drain", "db1"]).await?;
        ensure!(error.contains("the last one that receives shards"), "{error}");
        let error = terminal.refused(&["database", "remove", "db2"]).await?;
        ensure!(error.contains("database `db2`"), "{error}");
        let error = terminal.refused(&["database", "remove", "db1"]).await?;
        ensure!(error.contains("cannot be removed"), "{error}");
        let shown = terminal.text(&["database", "undrain", "db2"]).await?;
        ensure!(shown.starts_with("db2  serving, "), "{shown}");
        terminal.text(&["shard", "call-off", "64-127"]).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_and_a_picture_of_it_at_work_are_shown() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        let shown = terminal.text(&["cluster"]).await?;
        ensure!(shown.contains("master node-") && shown.contains("256 of 256 shards"), "{shown}");
        let report = terminal.json(&["cluster", "--shards"]).await?;
        ensure!(report["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2), "{report}");

        sandbox.consume_and_ack("mail", &json!({ "settle": "confirm" })).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 60));
        flows(sandbox, 60).await?;
        let picture = terminal.json(&["top", "--once"]).await?;
        let shown = terminal.text(&["top", "--once"]).await?;
        stream.end().await?;
        ensure!(picture["queues"][0]["queue"] == "mail", "{picture}");
        ensure!(picture["queues"][0]["submitted_per_second"].as_f64().is_some_and(|rate| rate > 5.0), "{picture}");
        ensure!(picture["lateness"]["p99_ms"].is_number() && picture["shards_unowned"] == 0, "{picture}");
        let nodes = picture["nodes"].as_array().context("nodes")?;
        ensure!(nodes.len() == 2 && nodes.iter().all(|node| node["figures"]["heap_entries"].is_number()), "{picture}");
        ensure!(shown.contains("PUBLISHED/S") && shown.contains("mail") && shown.contains("p99"), "{shown}");
        // With a single address, the cluster's report names the addresses of the nodes.
        let one = Terminal { urls: sandbox.node(1).url(), token: terminal.token };
        let picture = one.json(&["top", "--once"]).await?;
        let nodes = picture["nodes"].as_array().context("nodes")?;
        ensure!(nodes.iter().all(|node| node["figures"]["heap_entries"].is_number()), "{picture}");
        let error = one.ends(2, &["top"], "").await?.1;
        ensure!(error.contains("--once"), "{error}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_or_was_never_answered_is_said_to_be_so() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let terminal = Terminal::of(sandbox);
        let nowhere = format!("http://127.0.0.1:{}", free_port());
        let lone = Terminal { urls: nowhere, token: terminal.token.clone() };
        for words in [
            ["submit", "q"].as_slice(),
            &["get", NOBODY],
            &["list"],
            &["cancel", NOBODY],
            &["cancel", NOBODY, NOBODY],
            &["move", NOBODY, "--delay", "1s"],
            &["run", NOBODY],
            &["retry", NOBODY],
            &["result", NOBODY, "--attempt", "1", "--status", "running"],
            &["queue", "list"],
            &["queue", "set", "q", "settle=result"],
            &["bulk", "cancel", "--all", "--yes"],
            &["export"],
            &["cluster"],
            &["top", "--once"],
        ] {
            let error = lone.ends(3, words, "").await?.1;
            ensure!(error.contains("no node can be reached"), "{words:?}: {error}");
        }
        lone.ends(3, &["submit", "--batch", "-"], "{\"queue\":\"q\"}\n").await?;

        // A node that receives the request and does not answer it.
        sandbox.node(0).pause()?;
        let (_, error) = terminal.ends(3, &["run", NOBODY, "--timeout", "1s"], "").await?;
        let (_, of_batch) = terminal.ends(3, &["submit", "--batch", "-", "--timeout", "1s"], "1\n2\n").await?;
        sandbox.node(0).resume()?;
        ensure!(error.contains("outcome is unknown"), "{error}");
        ensure!(of_batch.contains("lines 1 to 2: the outcome is unknown"), "{of_batch}");

        let stranger = Terminal { urls: terminal.urls.clone(), token: "guess".into() };
        let error = stranger.refused(&["list"]).await?;
        ensure!(error.contains("DUETIME_TOKEN"), "{error}");
        // A command warns before it sends the token where others can read it.
        let away = Terminal { urls: "http://192.0.2.1:1".into(), token: terminal.token.clone() };
        let error = away.ends(3, &["list", "--timeout", "200ms"], "").await?.1;
        ensure!(error.contains("warning") && error.contains("https"), "{error}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_mistake_in_the_words_ends_with_two_and_asks_nobody() -> Result<()> {
    let terminal = Terminal { urls: String::new(), token: "hush-hush".into() };
    for words in [
        ["submit"].as_slice(),
        &["submit", "q", "--delay", "soon"],
        &["submit", "q", "--payload", "{"],
        &["submit", "q", "--payload-file", "/nowhere"],
        &["submit", "--batch", "/nowhere"],
        &["get"],
        &["get", "not-an-id"],
        &["list", "--state", "asleep"],
        &["cancel"],
        &["move", NOBODY],
        &["run", "7"],
        &["retry"],
        &["result", NOBODY],
        &["queue", "get", "a b"],
        &["queue", "set", "q"],
        &["cluster", "--url", "ftp://a"],
        &["top", "--output", "json"],
        &["completions", "abacus"],
        &["list", "--token-file", "/nowhere"],
        &["get", NOBODY, "--queue", "q", "--key", "k"],
        &["get", "--key", "k"],
        &["get", "--queue", "q", "--key", ".."],
        &["bulk", "cancel", "--all"],
        &["bulk", "forget", "--all"],
        &["import", "/nowhere"],
        &["lst"],
    ] {
        terminal.ends(2, words, "").await?;
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = terminal.text(&["completions", shell]).await?;
        ensure!(script.contains("submit"), "{shell}");
    }
    let help = terminal.text(&["submit", "--help"]).await?;
    ensure!(help.contains("Examples:") && help.contains("DUETIME_TOKEN"), "{help}");
    Ok(())
}

/// A file, a node and a proxy can hold bytes that a terminal obeys.
#[tokio::test]
async fn a_complaint_has_no_byte_that_a_terminal_obeys() -> Result<()> {
    let terminal = Terminal { urls: String::new(), token: "hush-hush".into() };
    let task = format!("{{\"id\":\"{NOBODY}\",\"queue\":\"q\",\"state\":\"\\u001b[2J\"}}\n");
    let (_, error) = terminal.ends(1, &["import", "-"], &task).await?;
    ensure!(error.contains("\\u{1b}[2J") && !error.contains('\u{1b}'), "{error:?}");

    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let behind = Terminal { urls: format!("http://{}", proxy.local_addr()?), token: "hush-hush".into() };
    let answers = async {
        let (mut asked, _) = proxy.accept().await?;
        ensure!(asked.read(&mut [0; 1_024]).await? > 0, "no request");
        asked.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\n\x1b[2Jx").await?;
        anyhow::Ok(asked)
    };
    let (ended, _asked) = tokio::try_join!(behind.ends(3, &["get", NOBODY], ""), answers)?;
    ensure!(ended.1.contains("\\u{1b}[2Jx") && !ended.1.contains('\u{1b}'), "{:?}", ended.1);
    Ok(())
}

/// Neither a reader that has seen enough nor a full disk stops a command half way.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_on_when_its_output_cannot_be_written() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let (terminal, client) = (Terminal::of(sandbox), sandbox.client(0));
        let full_disk = || std::fs::File::options().write(true).open("/dev/full");
        let without_reader = || std::io::pipe().map(|(_, writer)| writer);
        for (output, code) in [(Stdio::from(full_disk()?), 3), (Stdio::from(without_reader()?), 0)] {
            terminal.cancels_all_but(&[], output, Stdio::piped(), &client, code).await?;
        }
        // It is delivered, so its cancel is refused, and the reason cannot be printed.
        terminal.text(&["queue", "set", "busy", "settle=result"]).await?;
        let busy = terminal.submitted(&["busy"]).await?;
        in_state(&client, &busy, "delivered").await?;
        for errors in [Stdio::from(full_disk()?), Stdio::from(without_reader()?)] {
            terminal.cancels_all_but(&[&busy], Stdio::piped(), errors, &client, 1).await?;
        }
        Ok(())
    })
    .await;
}
