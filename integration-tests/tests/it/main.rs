//! The scenarios: real stores, real nodes, one fault or feature each, and the ledger's verdict.
//!
//! They run one after another, because they share their stores. `make test` runs two halves at the same time.
#![allow(clippy::disallowed_methods, reason = "threads end with their scenario")]

mod bench;
mod broker_cluster;
mod bulk;
mod certificates;
mod chaos;
mod command;
mod console;
mod console_pages;
mod crash;
mod cut;
mod delay_exchange;
mod dependency;
mod docs;
mod example;
mod failover;
mod formats;
mod growth;
mod guard;
mod idle;
mod journey;
mod keys;
mod lanes;
mod language;
mod large;
mod limits;
mod lost_commits;
mod membership;
mod migration;
mod mixed;
mod move_faults;
mod move_large;
mod moves;
mod oidc;
mod openapi;
mod outage;
mod peers;
mod poison;
mod rebalance;
mod recipes;
mod refusal;
mod relay;
mod reload;
mod requeue;
mod roles;
mod route;
mod schedule;
mod schemathesis;
mod servers;
mod settlement;
mod shards;
mod sql;
mod stack;
mod standby_required;
mod stop;
mod stream;
mod submission;
mod takeover;
mod tenants;
mod tokens;
mod traces;
mod traffic;
mod unready;
mod unroutable;
mod up;

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    client::{Client, Task},
    clock::now_ms,
    ledger::{Ledger, Number},
    load::Load,
    sandbox::{Builder, Sandbox},
    traces as traces_of,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The limit for all accepted tasks to arrive, counted from the end of the story.
const DRAINED_WITHIN: Duration = Duration::from_secs(90);

/// Plays a story on a fresh cluster and ends with the judge. A failure prints the last lines of the nodes' logs.
async fn scenario(builder: Builder, story: impl AsyncFnOnce(&mut Sandbox) -> Result<()>) {
    let mut sandbox = builder.start().await.expect("the sandbox starts");
    held_up_ms();
    HELD_UP_MS.store(0, Ordering::Relaxed);
    if let Err(error) = story(&mut sandbox).await {
        panic!("{error:?}\n{}", sandbox.ledger.judge());
    }
    sandbox.ledger.wait_all(DRAINED_WITHIN).await;
    let verdict = sandbox.ledger.judge();
    println!("{verdict}");
    verdict.assert_holds();
    if sandbox.is_compared() {
        let checked = traces_of::check_sandbox(&sandbox).await.unwrap_or_else(|error| panic!("{error:?}"));
        println!("{checked}");
    }
    for node in sandbox.nodes() {
        let log = std::fs::read_to_string(node.log()).unwrap_or_default();
        assert!(!log.contains("panicked at"), "{} panicked:\n{}", node.name(), node.tail(40));
    }
}

/// Settled by the confirm: the policy that most scenarios need.
fn confirm() -> Value {
    json!({ "settle": "confirm" })
}

/// Submits one task for `queue`, due at `due_ms`, with the fields of `more`; returns its number.
async fn submit(client: &Client, ledger: &Ledger, queue: &str, due_ms: i64, more: &Value) -> Result<Number> {
    let number = ledger.submitting(queue, due_ms);
    let mut task = json!({ "queue": queue, "due_at": due_ms, "payload": { "n": number } });
    for (name, value) in more.as_object().into_iter().flatten() {
        task[name] = value.clone();
    }
    ledger.accepted(number, &client.submit(&task).await?.id);
    Ok(number)
}

/// Submits one task that is due now.
async fn submit_now(client: &Client, ledger: &Ledger, queue: &str, more: &Value) -> Result<Number> {
    submit(client, ledger, queue, now_ms(), more).await
}

/// The id of an accepted submission.
fn id_of(ledger: &Ledger, number: Number) -> Result<String> {
    ledger.task(number).with_context(|| format!("task {number} was not accepted"))
}

/// Sends `load` to these nodes for `time`, in a task beside the scenario.
fn load(sandbox: &Sandbox, nodes: &[usize], load: Load, time: Duration) -> JoinHandle<Vec<Number>> {
    let clients: Vec<Client> = nodes.iter().map(|number| sandbox.client(*number)).collect();
    let ledger = Arc::clone(&sandbox.ledger);
    tokio::spawn(async move { load.run(&clients, &ledger, time).await })
}

static HELD_UP_MS: AtomicU64 = AtomicU64::new(0);

/// How long the machine has held this process up since the scenario began, in all. Scenarios add it to their bounds of
/// lateness: it held the nodes up as well. Stalls of 150 ms and less do not count. The first call starts the watch.
/// Scenarios of one process must run one at a time, since each sets the sum back.
fn held_up_ms() -> u64 {
    const NAP: Duration = Duration::from_millis(50);
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let began = std::time::Instant::now();
                std::thread::sleep(NAP);
                let late = began.elapsed().saturating_sub(NAP * 4);
                HELD_UP_MS.fetch_add(late.as_millis() as u64, Ordering::Relaxed);
            }
        });
    });
    HELD_UP_MS.load(Ordering::Relaxed)
}

/// Waits until `check` returns a value.
async fn until<T>(what: &str, within: Duration, mut check: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let deadline = tokio::time::Instant::now() + within;
    loop {
        if let Some(found) = check().await {
            return Ok(found);
        }
        ensure!(tokio::time::Instant::now() < deadline, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lets a fault last, or gives time to what must not happen. What must happen is waited for: [`until`], [`flows`].
async fn lasts(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until `count` more tasks than now have arrived.
async fn flows(sandbox: &Sandbox, count: usize) -> Result<()> {
    let wanted = sandbox.ledger.progress().delivered + count;
    until("tasks flow", Duration::from_secs(60), || async {
        (sandbox.ledger.progress().delivered >= wanted).then_some(())
    })
    .await
}

/// Waits until the task is in this state, and returns it.
async fn in_state(client: &Client, id: &str, state: &str) -> Result<Task> {
    until(&format!("task {id} is {state}"), Duration::from_secs(90), || async {
        client.get(id).await.ok().filter(|task| task.state == state)
    })
    .await
}
