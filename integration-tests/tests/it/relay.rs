//! A relay between a queue and an HTTP server, or a command: the outcomes of its calls.

use std::{path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{Router, body::Bytes, extract::State, http::HeaderMap, response::IntoResponse, routing::post};
use integration_tests::{
    client::Task,
    sandbox::{Sandbox, binary, free_port, hide_variables, run_with, scratch},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    task::JoinHandle,
};

use crate::{in_state, language, scenario, until};

const SOON: Duration = Duration::from_secs(60);
const LOOPBACK: [&str; 2] = ["--allow-network", "127.0.0.0/8"];

/// An application's server: it answers as the payload says, and records the requests.
#[derive(Clone, Default)]
struct Hooks {
    calls: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
}

impl Hooks {
    async fn serve(&self, port: u16) -> Result<JoinHandle<()>> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let app = Router::new().route("/hook", post(hook)).with_state(self.clone());
        Ok(tokio::spawn(async move { drop(axum::serve(listener, app).await) }))
    }

    /// One header's values in the calls with this payload.
    fn said(&self, payload: &Value, header: &str) -> Vec<String> {
        let calls = self.calls.lock();
        let of = calls.iter().filter(|(_, body)| body == payload);
        of.map(|(headers, _)| text(headers, header)).collect()
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// `{"answers": [503, 200]}`: the first attempt gets the first.
async fn hook(State(hooks): State<Hooks>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let payload: Value = serde_json::from_slice(&body).unwrap_or_default();
    let attempt: usize = text(&headers, "duetime-attempt").parse().unwrap_or(1);
    let status = payload["answers"][attempt - 1].as_u64().unwrap_or(200);
    hooks.calls.lock().push((headers, payload));
    let status = axum::http::StatusCode::from_u16(status as u16).expect("a status");
    let more = [("retry-after", "1"), ("location", "http://127.0.0.1:1/elsewhere")];
    (status, more, json!({ "attempt": attempt }).to_string())
}

/// `duetime relay` for one queue; ends with its handle.
struct Relay {
    child: Child,
    log: PathBuf,
}

impl Relay {
    fn start(sandbox: &Sandbox, queue: &str, words: &[&str]) -> Result<Self> {
        Self::start_as(sandbox, Command::new(binary()?), queue, words)
    }

    /// Starts the relay by `command`, which runs the program with the arguments it is given.
    fn start_as(sandbox: &Sandbox, mut command: Command, queue: &str, words: &[&str]) -> Result<Self> {
        let log = scratch().join(format!("relay-{}-{queue}-{}", sandbox.vhost(), free_port()));
        hide_variables(command.as_std_mut());
        command.args(["relay", "--queue", queue]).args(words).env("DUETIME_AMQP__URL", sandbox.amqp_url());
        command.env("DUETIME_TELEMETRY__LOG", "debug");
        Ok(Self { child: language::start(&mut command, &log)?, log })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends SIGTERM.
    async fn terminate(&self) -> Result<()> {
        let id = self.child.id().context("it runs")?.to_string();
        Command::new("kill").args(["-s", "TERM", &id]).stdin(Stdio::null()).status().await?;
        Ok(())
    }

    /// Waits for its end and returns the exit code.
    async fn ended(&mut self) -> Result<Option<i32>> {
        Ok(tokio::time::timeout(SOON, self.child.wait()).await.context("it does not stop")??.code())
    }
}

/// A script that waits for the file, for two minutes: if the scenario fails, the file never appears.
fn wait_for(file: &str) -> String {
    format!("n=0; until [ -e {file} ] || [ $n -ge 2400 ]; do sleep 0.05; n=$((n + 1)); done")
}

/// Retries at once, and asks for reports.
fn policy(settle: &str) -> Value {
    json!({ "settle": settle, "retry": { "kind": "fixed", "delay_ms": 100 }, "timeout_ms": 120_000 })
}

async fn submitted(sandbox: &Sandbox, queue: &str, payload: &Value) -> Result<String> {
    Ok(sandbox.client(0).submit(&json!({ "queue": queue, "payload": payload })).await?.id)
}

fn reasons(task: &Task) -> Vec<&str> {
    let attempts = task.rest.get("attempts").and_then(Value::as_array).into_iter().flatten();
    attempts.filter_map(|attempt| attempt["reason"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_comes_to_what_its_target_answers() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.put_queues(&[("hooks", policy("result"))]).await?;
        let (hooks, port) = (Hooks::default(), free_port());
        let _server = hooks.serve(port).await?;
        let secret = scratch().join(format!("secret-{port}"));
        std::fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\nwhsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\n")?;
        let to = format!("http://localhost:{port}/hook");
        let secret = secret.to_str().context("a path")?;
        let relay = Relay::start(sandbox, "hooks", &[&["--to", &to, "--secret-file", secret][..], &LOOPBACK].concat())?;

        let good = submitted(sandbox, "hooks", &json!({ "answers": [200] })).await?;
        let task = in_state(&sandbox.client(0), &good, "succeeded").await.with_context(|| relay.log())?;
        ensure!(task.rest["result"] == json!({ "attempt": 1 }) && task.rest["status_code"] == 200, "{task:?}");

        let late = json!({ "answers": [503, 302, 204] });
        let id = submitted(sandbox, "hooks", &late).await?;
        let task = in_state(&sandbox.client(0), &id, "succeeded").await?;
        ensure!(reasons(&task) == ["failed", "failed"], "{task:?}");
        ensure!(task.rest["attempts"][0]["error"].to_string().contains("HTTP 503"), "{task:?}");
        ensure!(hooks.said(&late, "duetime-attempt") == ["1", "2", "3"], "each attempt once, no redirect followed");
        ensure!(hooks.said(&late, "webhook-id") == [id.as_str(); 3], "one event, however often it is attempted");
        let stamps: Vec<i64> = hooks.said(&late, "webhook-timestamp").iter().flat_map(|text| text.parse()).collect();
        ensure!(stamps.len() == 3 && stamps[1] > stamps[0], "Retry-After was not kept: {stamps:?}");
        for signatures in hooks.said(&late, "webhook-signature") {
            ensure!(signatures.split(' ').filter(|one| one.starts_with("v1,")).count() == 2, "{signatures}");
        }
        ensure!(hooks.said(&late, "content-type") == ["application/json"; 3]);

        let gone = submitted(sandbox, "hooks", &json!({ "answers": [410] })).await?;
        let task = in_state(&sandbox.client(0), &gone, "dead").await?;
        ensure!(reasons(&task) == ["discarded"], "{task:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_reports_an_ack_is_a_success_and_a_rejection_a_failure() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.put_queues(&[("hooks", policy("reject"))]).await?;
        let (hooks, port) = (Hooks::default(), free_port());
        let _server = hooks.serve(port).await?;
        let to = format!("http://127.0.0.1:{port}/hook");
        let relay = Relay::start(sandbox, "hooks", &[&["--to", &to][..], &LOOPBACK].concat())?;
        let payload = json!({ "answers": [500, 200] });
        let id = submitted(sandbox, "hooks", &payload).await?;
        let called = || async { (hooks.said(&payload, "duetime-attempt").len() == 2).then_some(()) };
        until("the failed call is made again", SOON, called).await.with_context(|| relay.log())?;
        let task = in_state(&sandbox.client(0), &id, "delivered").await?;
        ensure!(reasons(&task) == ["rejected"], "{task:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_down_is_left_alone_until_it_is_back() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.put_queues(&[("hooks", policy("result"))]).await?;
        let (hooks, port) = (Hooks::default(), free_port());
        let to = format!("http://127.0.0.1:{port}/hook");
        let words = ["--to", &to, "--concurrency", "4", "--break-after", "3"];
        let relay = Relay::start(sandbox, "hooks", &[&words[..], &LOOPBACK].concat())?;
        let mut ids = Vec::new();
        for number in 0..40 {
            ids.push(submitted(sandbox, "hooks", &json!({ "number": number })).await?);
        }
        let down = || async { relay.log().contains("the target is down").then_some(()) };
        until("the breaker has opened", SOON, down).await?;
        // After the second probe; no other call was made meanwhile.
        let probed = || async { (relay.log().matches("probing the target").count() >= 2).then_some(()) };
        until("it is probed", SOON, probed).await?;
        let mut failed = 0;
        for id in &ids {
            failed += reasons(&sandbox.client(0).get(id).await?).len();
        }
        // Three failures opened the breaker, as many calls were in flight beside them, and a few probes came during
        // the check.
        ensure!((3..=3 + 3 + 4).contains(&failed), "{failed} attempts were spent on a target that is down");

        let _server = hooks.serve(port).await?;
        for id in &ids {
            in_state(&sandbox.client(0), id, "succeeded").await.with_context(|| relay.log())?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_public_is_not_called() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.put_queues(&[("hooks", policy("result"))]).await?;
        let (hooks, port) = (Hooks::default(), free_port());
        let _server = hooks.serve(port).await?;
        let url = sandbox.amqp_url();
        for literal in ["127.0.0.1", "0x7f000001", "[::ffff:127.0.0.1]", "169.254.169.254"] {
            let words = ["relay", "--queue", "hooks", "--to", &format!("http://{literal}:{port}/hook")];
            let output = run_with(&words, &[("DUETIME_AMQP__URL", &url)], "").await?;
            ensure!(output.status.code() == Some(2), "{literal}: {output:?}");
        }
        // A name is resolved for each connection.
        let _relay = Relay::start(sandbox, "hooks", &["--to", &format!("http://localhost:{port}/hook")])?;
        let id = submitted(sandbox, "hooks", &json!({})).await?;
        let failed = || async { sandbox.client(0).get(&id).await.ok().filter(|task| !reasons(task).is_empty()) };
        let task = until("the call was refused", SOON, failed).await?;
        ensure!(task.rest["attempts"].to_string().contains("not public"), "{task:?}");
        ensure!(hooks.calls.lock().is_empty(), "it was called");
        Ok(())
    })
    .await;
}

/// The shell's script; the first line of the payload is `"<word>"`.
const SCRIPT: &str = r#"
read -r word
case "$word" in
    '"good"') echo "{\"task\": \"$DUETIME_TASK_ID\", \"queue\": \"$DUETIME_QUEUE\", \"secret\": \"$DUETIME_AMQP__URL\"}" ;;
    '"late"') [ "$DUETIME_ATTEMPT" -ge 2 ] || { echo "not yet" >&2; exit 75; }; printf 'plain\n%s' "$1" ;;
    '"wrong"') exit 65 ;;
    '"long"') sleep 11; echo 1 ;;
    '"stuck"') sleep 600 & sleep 600 ;;
esac
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_command_gets_the_payload_and_its_end_is_the_outcome() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let mut policy = policy("result");
        // Shorter than the longest run: heartbeats extend it.
        policy["timeout_ms"] = 9_000.into();
        policy["max_attempts"] = 2.into();
        sandbox.put_queues(&[("runs", policy)]).await?;
        let words = [
            "--timeout-ms",
            "20000",
            "--heartbeat-ms",
            "300",
            "--command",
            "/bin/sh",
            "--",
            "-c",
            SCRIPT,
            "sh",
            "$(id)",
        ];
        let relay = Relay::start(sandbox, "runs", &words)?;
        let mut ids = Vec::new();
        for word in ["good", "late", "wrong", "long"] {
            ids.push(submitted(sandbox, "runs", &word.into()).await?);
        }
        let client = sandbox.client(0);
        // Once is enough: each attempt takes as long as the relay allows.
        let stuck = json!({ "queue": "runs", "payload": "stuck", "max_attempts": 1 });
        ids.push(client.submit(&stuck).await?.id);
        let good = in_state(&client, &ids[0], "succeeded").await.with_context(|| relay.log())?;
        ensure!(good.rest["result"] == json!({ "task": ids[0], "queue": "runs", "secret": "" }), "{good:?}");
        let late = in_state(&client, &ids[1], "succeeded").await?;
        ensure!(late.rest["result"] == "plain\n$(id)", "no shell has read the words: {late:?}");
        ensure!(late.rest["attempts"][0]["error"].to_string().contains("not yet"), "{late:?}");
        let wrong = in_state(&client, &ids[2], "dead").await?;
        ensure!(reasons(&wrong) == ["discarded"], "{wrong:?}");
        let long = in_state(&client, &ids[3], "succeeded").await?;
        ensure!(reasons(&long).is_empty() && long.rest["result"] == 1, "{long:?}");
        let stuck = in_state(&client, &ids[4], "dead").await?;
        ensure!(stuck.rest["attempts"][0]["error"].to_string().contains("longer than 20000 ms"), "{stuck:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_told_to_stop_ends_what_it_began_and_leaves_the_rest() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.put_queues(&[("runs", policy("result"))]).await?;
        let end = scratch().join(format!("end-{}", sandbox.vhost()));
        let script = format!("{}; echo $DUETIME_ATTEMPT", wait_for(end.to_str().context("a path")?));
        let words = ["--concurrency", "1", "--command", "/bin/sh", "--", "-c", &script];
        let mut relay = Relay::start(sandbox, "runs", &[&["--heartbeat-ms", "100"], &words[..]].concat())?;
        let client = sandbox.client(0);
        let (first, second) =
            (submitted(sandbox, "runs", &1.into()).await?, submitted(sandbox, "runs", &2.into()).await?);
        let begun = || async {
            for (id, other) in [(&first, &second), (&second, &first)] {
                let task = client.get(id).await.ok()?;
                if task.state == "running" {
                    return Some((id.clone(), other.clone()));
                }
            }
            None
        };
        let (begun, waiting) = until("a task was begun", SOON, begun).await.with_context(|| relay.log())?;
        relay.terminate().await?;
        // A count of consumers would include one that has left and has a message in hand.
        let left = || async {
            let words = ["-p", sandbox.vhost(), "list_consumers", "queue_name"];
            let consumed = sandbox.rabbit().ctl(&words).await.ok()?;
            (!consumed.lines().any(|line| line.trim() == "runs")).then_some(())
        };
        until("it takes no more tasks", SOON, left).await?;
        std::fs::write(&end, "")?;
        ensure!(relay.ended().await? == Some(0), "{}", relay.log());
        in_state(&client, &begun, "succeeded").await?;
        in_state(&client, &waiting, "delivered").await?;
        let _next = Relay::start(sandbox, "runs", &words)?;
        let task = in_state(&client, &waiting, "succeeded").await?;
        ensure!(task.rest["result"] == 1, "the same attempt: {task:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_whose_connection_was_lost_is_reported_over_the_next_and_not_done_again() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        sandbox.put_queues(&[("runs", policy("result")), ("acks", policy("reject"))]).await?;
        for (queue, settles_as) in [("runs", "succeeded"), ("acks", "delivered")] {
            let done = scratch().join(format!("done-{}-{queue}", sandbox.vhost()));
            let done = done.to_str().context("a path")?;
            // Every run writes a line at its beginning, and ends when the file appears.
            let script = format!("echo run >> {done}; {}", wait_for(&format!("{done}.end")));
            let relay = Relay::start(sandbox, queue, &["--command", "/bin/sh", "--", "-c", &script])?;
            let runs = || std::fs::read_to_string(done).unwrap_or_default().lines().count();
            let id = submitted(sandbox, queue, &1.into()).await?;
            until("it runs", SOON, || async { (runs() == 1).then_some(()) }).await.with_context(|| relay.log())?;

            let words = ["close_all_connections", "--vhost", sandbox.vhost(), "test"];
            sandbox.rabbit().ctl(&words).await?;
            let lost = || async { relay.log().contains("no tasks can be received").then_some(()) };
            until("the relay has lost its connection", SOON, lost).await?;
            let again = || async { relay.log().contains("received before").then_some(()) };
            until("the message comes again", SOON, again).await.with_context(|| relay.log())?;
            std::fs::write(format!("{done}.end"), "")?;
            in_state(&sandbox.client(0), &id, settles_as).await.with_context(|| relay.log())?;
            let empty = || async {
                let depth =
                    sandbox.rabbit().ctl(&["-p", sandbox.vhost(), "list_queues", "name", "messages"]).await.ok()?;
                depth.lines().any(|line| line.split_whitespace().eq([queue, "0"])).then_some(())
            };
            until("the message is settled", SOON, empty).await?;
            ensure!(runs() == 1, "it was done {} times:\n{}", runs(), relay.log());
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_wants_its_report_elsewhere_is_not_worked_on() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        sandbox.put_queues(&[("runs", policy("result"))]).await?;
        let relay = Relay::start(sandbox, "runs", &["--command", "/bin/sh", "--", "-c", "echo done"])?;
        let good = submitted(sandbox, "runs", &1.into()).await?;
        in_state(&sandbox.client(0), &good, "succeeded").await.with_context(|| relay.log())?;
        let connection = lapin::Connection::connect(&sandbox.amqp_url(), Default::default()).await?;
        let channel = connection.create_channel().await?;
        let forged =
            lapin::BasicProperties::default().with_correlation_id("x".into()).with_reply_to("elsewhere".into());
        channel.basic_publish("".into(), "runs".into(), Default::default(), b"1", forged).await?;
        let refused = || async { relay.log().contains("not of this cluster").then_some(()) };
        until("it is refused", SOON, refused).await.with_context(|| relay.log())?;
        ensure!(relay.log().matches("called").count() == 1, "{}", relay.log());
        Ok(())
    })
    .await;
}

/// A script that tries to read everything of the relay that runs it.
const SPY: &str = r#"
echo "uid $(id -u) home $HOME asked $ASKED secret $DUETIME_AMQP__URL other $OTHER"
echo "files $(ls /proc/self/fd | tr '\n' ' ')"
tr '\0' '\n' < /proc/$PPID/environ && echo environment
cat /proc/$PPID/fd/* > /dev/null && echo open
exit 0
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_command_finds_nothing_of_its_relay_neither_as_the_same_user_nor_as_another() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        sandbox.put_queues(&[("same", policy("result")), ("other", policy("result"))]).await?;
        let program = binary()?.to_str().context("a path")?;
        let words = ["--env", "ASKED", "--command", "/bin/sh", "--", "-c", SPY];
        // The parent of the relay leaves file descriptor 7 open.
        let start = |queue: &str, user: &str, words: &[&str]| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &format!("exec 7< /etc/passwd; exec {user} {program} \"$@\""), "sh"]);
            shell.env("ASKED", "yes").env("OTHER", "secret");
            Relay::start_as(sandbox, shell, queue, words)
        };
        let user = "setpriv --reuid=65534 --regid=65534 --clear-groups";
        let relays = [
            start("same", user, &words)?,
            start("other", "", &[&["--user", "65534", "--group", "65534"], &words[..]].concat())?,
        ];
        for (queue, relay) in ["same", "other"].into_iter().zip(&relays) {
            let id = submitted(sandbox, queue, &1.into()).await?;
            let task = in_state(&sandbox.client(0), &id, "succeeded").await.with_context(|| relay.log())?;
            let said = task.rest["result"].as_str().context("text")?;
            ensure!(said.contains("uid 65534") && said.contains("asked yes secret  other \n"), "{queue}: {said}");
            ensure!(!said.contains("environment") && !said.contains("open"), "{queue}: {said}");
            let files = said.lines().find(|line| line.starts_with("files")).context("a line")?;
            ensure!(!files.contains(" 7"), "{queue}: {said}");
        }
        Ok(())
    })
    .await;
}
