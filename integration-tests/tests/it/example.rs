//! The examples in `examples/`, run as a reader would: they submit to a real cluster and work on its tasks.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use integration_tests::{
    client::Task,
    sandbox::{Sandbox, scratch},
};
use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::{language, scenario, until};

/// All languages run at the same time on a small machine, one of them with a virtual machine to start.
const SOON: Duration = Duration::from_secs(120);
/// Shorter than an example works on a task: its reports of `running` extend it.
const REPORTED_WITHIN_MS: i64 = 3_000;
/// Longer than a busy machine delays a rejection. What is not rejected succeeds only after it.
const REJECTED_WITHIN_MS: i64 = 15_000;
/// How often a task is submitted anew because the machine stood still and an attempt ran out of its time.
const TURNS: usize = 5;

/// A language's example, ready to run.
struct Example {
    language: &'static str,
    producer: Vec<String>,
    consumer: Vec<String>,
}

fn folder(language: &str) -> PathBuf {
    language::root().join("examples").join(language)
}

/// The words of a command: `program` with its arguments, in the folder of the example.
fn words(program: impl Into<PathBuf>, more: &[&str]) -> Vec<String> {
    let program = program.into().to_string_lossy().into_owned();
    [program].into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect()
}

impl Example {
    async fn python() -> Result<Self> {
        let bin = language::python(&folder("python").join("requirements.txt"), "python-examples").await?;
        let run = |file| words(bin.join("python"), &[file]);
        Ok(Self { language: "python", producer: run("producer.py"), consumer: run("consumer.py") })
    }

    async fn go() -> Result<Self> {
        let kept = language::kept("go")?;
        // Two programs: Go requires the folder to exist.
        let bin = language::kept("go/bin")?;
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&bin).arg("./...").current_dir(folder("go"));
        // Otherwise module caches are read-only and cannot be removed.
        build.env("GOFLAGS", "-modcacherw").env("GOMODCACHE", kept.join("mod")).env("GOCACHE", kept.join("cache"));
        language::run(&mut build).await?;
        let run = |file| words(bin.join(file), &[]);
        Ok(Self { language: "go", producer: run("producer"), consumer: run("consumer") })
    }

    async fn java() -> Result<Self> {
        let local = format!("-Dmaven.repo.local={}", language::kept("m2")?.display());
        let mut build = Command::new("mvn");
        build.args(["-q", "-B", &local, "compile", "dependency:copy-dependencies"]).current_dir(folder("java"));
        language::run(&mut build).await?;
        let run = |class| words("java", &["-cp", "target/classes:target/dependency/*", class]);
        Ok(Self { language: "java", producer: run("Producer"), consumer: run("Consumer") })
    }

    async fn node() -> Result<Self> {
        let mut fetch = Command::new("npm");
        fetch.args(["ci", "--no-audit", "--no-fund", "--prefer-offline", "--cache"]).arg(language::kept("npm")?);
        language::run(fetch.current_dir(folder("node"))).await?;
        let run = |file| words("node", &[file]);
        Ok(Self { language: "node", producer: run("producer.js"), consumer: run("consumer.js") })
    }

    async fn php() -> Result<Self> {
        let mut fetch = Command::new("composer");
        fetch.args(["install", "--no-interaction", "--quiet"]).env("COMPOSER_CACHE_DIR", language::kept("composer")?);
        language::run(fetch.current_dir(folder("php"))).await?;
        let run = |file| words("php", &[file]);
        Ok(Self { language: "php", producer: run("producer.php"), consumer: run("consumer.php") })
    }

    fn command(&self, sandbox: &Sandbox, words: &[String]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(folder(self.language)).env("AMQP_URL", sandbox.amqp_url());
        command
    }

    fn consume(&self, sandbox: &Sandbox, queue: &str) -> Result<Child> {
        let log = scratch().join(format!("{queue}-{}.log", sandbox.vhost()));
        language::start(self.command(sandbox, &self.consumer).arg(queue), &log)
    }

    /// Submits `n`, and returns the task in its final state. It is one whose attempts all ended in time.
    async fn end_of(&self, sandbox: &Sandbox, queue: &str, n: i64) -> Result<Task> {
        for turn in 0..TURNS {
            let task = self.end_of_one(sandbox, queue, n, &format!("order{n}-{turn}")).await?;
            let mut attempts = task.rest.get("attempts").and_then(Value::as_array).into_iter().flatten();
            if attempts.all(|attempt| attempt["reason"] != "timeout") {
                return Ok(task);
            }
        }
        bail!("{queue}: an attempt at {n} ran out of its time, {TURNS} times")
    }

    async fn end_of_one(&self, sandbox: &Sandbox, queue: &str, n: i64, key: &str) -> Result<Task> {
        let mut producer = self.command(sandbox, &self.producer);
        language::run(producer.args([queue, key, &n.to_string(), "200"])).await?;
        let path = format!("/v1/queues/{queue}/keys/{key}");
        until(&format!("{queue} has done with {key}"), SOON, || async {
            let task: Task = sandbox.client(0).call(Method::GET, &path, None).await.ok()?;
            Some(task).filter(|task| task.state == "succeeded" || task.state == "dead")
        })
        .await
    }

    async fn play(&self, sandbox: &Sandbox) -> Result<()> {
        let (results, plain) = (format!("{}-results", self.language), format!("{}-plain", self.language));
        let _consumers = [self.consume(sandbox, &results)?, self.consume(sandbox, &plain)?];
        tokio::try_join!(attached(sandbox, &results), attached(sandbox, &plain))?;
        // One after the other, because a consumer works on one task at a time.
        let both = async |queue: &str| {
            anyhow::Ok((self.end_of(sandbox, queue, -7).await?, self.end_of(sandbox, queue, 7).await?))
        };
        let ((bad, good), (rejected, taken)) = tokio::try_join!(both(&results), both(&plain))?;
        ensure!(good.state == "succeeded" && good.rest["result"] == json!({ "square": 49 }), "{good:?}");
        let attempts = |task: &Task| task.rest.get("attempts").cloned().unwrap_or_default();
        let negative = attempts(&bad).to_string();
        ensure!(bad.state == "dead" && negative.matches("must not be negative").count() == 2, "{bad:?}");
        ensure!(taken.state == "succeeded" && taken.rest.get("attempts").is_none(), "{taken:?}");
        ensure!(rejected.state == "dead" && rejected.rest["attempts"][1]["reason"] == "rejected", "{rejected:?}");
        Ok(())
    }
}

/// Creates the queues of each language before its consumers start: a queue of RabbitMQ comes into being with the
/// first task.
async fn open_queues(sandbox: &Sandbox, examples: &[Example]) -> Result<()> {
    let policy = |settle: &str, timeout_ms: i64| {
        let retry = json!({ "kind": "fixed", "delay_ms": 200 });
        json!({ "settle": settle, "max_attempts": 2, "timeout_ms": timeout_ms, "retry": retry })
    };
    let kinds = [("results", policy("result", REPORTED_WITHIN_MS)), ("plain", policy("reject", REJECTED_WITHIN_MS))];
    let queues: Vec<(String, Value)> = examples
        .iter()
        .flat_map(|example| kinds.iter().map(|(kind, policy)| (format!("{}-{kind}", example.language), policy.clone())))
        .collect();
    let client = sandbox.client(0);
    let set: Vec<(&str, Value)> = queues.iter().map(|(queue, policy)| (queue.as_str(), policy.clone())).collect();
    sandbox.put_queues(&set).await?;
    for (queue, _) in &queues {
        let first = client.submit(&json!({ "queue": queue, "payload": { "n": -1 }, "max_attempts": 1 })).await?;
        let published = || async {
            let task = client.get(&first.id).await.ok()?;
            (!["scheduled", "ready", "dispatching"].contains(&task.state.as_str())).then_some(())
        };
        until(&format!("{queue} is there"), SOON, published).await?;
    }
    Ok(())
}

/// Waits until the queue has a consumer.
async fn attached(sandbox: &Sandbox, queue: &str) -> Result<()> {
    let connection = Connection::connect(&sandbox.amqp_url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let consumed = || async {
        let found = channel.queue_declare(queue.into(), passive, FieldTable::default()).await.ok()?;
        (found.consumer_count() > 0).then_some(())
    };
    until(&format!("a consumer of {queue}"), SOON, consumed).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_submit_and_consume_in_every_language_that_is_here() {
    scenario(Sandbox::builder().nodes(2), async |sandbox| {
        let mut examples = Vec::new();
        for (program, language) in
            [("python3", "python"), ("go", "go"), ("mvn", "java"), ("npm", "node"), ("composer", "php")]
        {
            if !language::is_here(program) {
                continue;
            }
            examples.push(match language {
                "python" => Example::python().await?,
                "go" => Example::go().await?,
                "java" => Example::java().await?,
                "node" => Example::node().await?,
                _ => Example::php().await?,
            });
        }
        ensure!(!examples.is_empty(), "none of the languages of the examples is on this machine");
        open_queues(sandbox, &examples).await?;
        let played = examples.iter().map(|example| async {
            let began = std::time::Instant::now();
            example.play(sandbox).await.with_context(|| example.language)?;
            println!("{}: {:?}", example.language, began.elapsed());
            anyhow::Ok(())
        });
        futures::future::try_join_all(played).await.map(drop)
    })
    .await;
}
