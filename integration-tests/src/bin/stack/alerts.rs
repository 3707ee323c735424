//! `stack alerts`: each alert fires by its cause, and clears when the cause is gone, on a real cluster and a real
//! Prometheus.
//!
//! The rules are those of the chart with their times shortened. An alert that fires while nothing is wrong is a fault
//! too.

mod nodes;
mod replicas;
mod report;
mod rules;
mod scene;
mod stores;
mod tasks;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use clap::Args;
use futures::future;
use integration_tests::sandbox::{Prometheus, Sandbox, free_port, scratch, scratch_below};
use serde_json::json;

use report::Report;
use scene::{Cause, Scene, Stage};

/// Alerts without a cause here: Prometheus scrapes the nodes of a stage without TLS.
const NOT_PLAYED: [&str; 1] = ["DuetimeCertificateExpires"];

const RULES: &str = include_str!("../../../../charts/duetime/files/rules.yaml");

/// Longer than every window and the longest `for` of the short rules.
const QUIET: Duration = Duration::from_secs(30);
/// The limit for the alerts of one step to clear before the next.
const CALM_WITHIN: Duration = Duration::from_secs(60);
/// Long enough for a recent event to be scraped and evaluated twice.
const CALM_FOR: Duration = Duration::from_secs(4);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The interval of the load beside all causes: tasks for one queue whose consumer acks them.
const STEADY_EVERY: Duration = Duration::from_millis(200);
const STEADY_TASKS: usize = 5;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only the causes of these alerts; all when absent.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    let acts = acts(&options.only)?;
    scratch_below(&base.join("alerts"))?;
    // Dropping the cluster stops its nodes; the stores and Prometheus end with this process.
    tokio::select! {
        outcome = play(&acts) => outcome,
        _ = tokio::signal::ctrl_c() => {
            println!("\ninterrupted: all is stopped");
            Ok(ExitCode::from(130))
        }
    }
}

/// The causes that need the same stage, in order; causes of one step run at the same time.
struct Act {
    is_replicated: bool,
    steps: Vec<Vec<&'static Cause>>,
}

fn acts(only: &[String]) -> Result<Vec<Act>> {
    let usual = || [tasks::AT_ONCE].into_iter().chain(tasks::ALONE).chain(nodes::ALONE).chain(stores::ALONE);
    let all = || usual().chain(replicas::ALONE);
    let name_of = |alert: &'static str| alert.split(' ').next().unwrap_or(alert);
    let names: Vec<&str> = all().flatten().flat_map(|cause| cause.alerts.iter().map(|alert| name_of(alert))).collect();
    for name in RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let is_played = names.contains(&name) || NOT_PLAYED.contains(&name);
        ensure!(is_played, "no scene makes {name} fire: add a cause in bin/stack/alerts");
    }
    if let Some(name) = only.iter().find(|name| NOT_PLAYED.contains(&name.as_str())) {
        bail!("no scene makes {name} fire: Prometheus scrapes the nodes without TLS");
    }
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no alert {unknown}; docs/runbooks/README.md lists them");
    }
    let wanted = |cause: &Cause| {
        only.is_empty() || cause.alerts.iter().any(|alert| only.iter().any(|name| name == name_of(alert)))
    };
    let wanted = |steps: &mut dyn Iterator<Item = &'static [Cause]>| -> Vec<Vec<&'static Cause>> {
        let steps = steps.map(|step| step.iter().filter(|cause| wanted(cause)).collect::<Vec<_>>());
        steps.filter(|step| !step.is_empty()).collect()
    };
    let acts = [
        Act { is_replicated: false, steps: wanted(&mut usual()) },
        Act { is_replicated: true, steps: wanted(&mut replicas::ALONE.into_iter()) },
    ];
    Ok(acts.into_iter().filter(|act| !act.steps.is_empty()).collect())
}

async fn play(acts: &[Act]) -> Result<ExitCode> {
    let began = Instant::now();
    println!("Windows and waits of the rules are a sixtieth; besides:");
    for (_, _, what) in rules::CHANGES.into_iter().chain([rules::NEW_NODE]) {
        println!("  {what}");
    }
    let mut report = Report::default();
    for act in acts {
        let with = if act.is_replicated { " with a standby" } else { "" };
        println!("starting PostgreSQL{with}, etcd, RabbitMQ, nodes and Prometheus ...");
        let stage = if act.is_replicated { replicas::stage().await? } else { usual_stage().await? };
        println!("ready after {:.0} s", began.elapsed().as_secs_f32());
        tokio::select! {
            played = play_steps(&stage, &act.steps, &mut report) => played?,
            () = steady(&stage) => {}
        }
    }
    Ok(report.end(began.elapsed()))
}

async fn play_steps(stage: &Stage, steps: &[Vec<&'static Cause>], report: &mut Report) -> Result<()> {
    // Alerts on absent series may fire until Prometheus has scraped for the first time.
    calm(stage).await;
    quiet(stage, report).await?;
    for step in steps {
        let scenes: Vec<Scene<'_>> = step.iter().map(|cause| Scene::new(stage, cause)).collect();
        let played = scenes.iter().map(|scene| async move {
            let outcome = (scene.cause.play)(scene).await;
            scene.resolved().await;
            outcome
        });
        let outcomes = future::join_all(played).await;
        report.step(&scenes);
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            report.wrong(error);
        }
        calm(stage).await;
    }
    Ok(())
}

/// The first database has all shards, and the second one is there for moves.
async fn usual_stage() -> Result<Stage> {
    let heap = format!("[scheduler]\nheap_entries = {}\n", rules::HEAP_ENTRIES);
    let cluster = Sandbox::builder().databases(2).first_has_all().proxied().unwatched().config(&heap);
    stage(cluster.start().await?, "prometheus").await
}

async fn stage(cluster: Sandbox, folder: &str) -> Result<Stage> {
    cluster.consume_and_ack("steady", &json!({})).await?;
    let (stranger_port, impostor_port) = (free_port(), free_port());
    let nodes = cluster.nodes().iter().map(|node| node.config().port);
    let ports = nodes.chain([stranger_port, impostor_port]);
    let targets: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    let rules = rules::shorten(RULES)?;
    let folder = scratch().join(folder);
    std::fs::create_dir_all(&folder)?;
    let prometheus = Prometheus::start(&folder, &targets, &cluster.node(0).config().token, &rules).await?;
    Ok(Stage { cluster, prometheus, targets, stranger_port, impostor_port })
}

/// Submits tasks until it is dropped. A task that no node accepts does not matter.
async fn steady(stage: &Stage) {
    loop {
        if let Ok(client) = stage.cluster.live() {
            let batch = tasks::tasks("steady", STEADY_TASKS, 500);
            tokio::time::timeout(STEADY_EVERY * 5, client.batch(&batch)).await.ok();
        }
        tokio::time::sleep(STEADY_EVERY).await;
    }
}

/// Watches for alerts while nothing is wrong; none may fire.
async fn quiet(stage: &Stage, report: &mut Report) -> Result<()> {
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        report.quiet(&stage.prometheus.firing().await?);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let faults = stage.prometheus.faults().await?;
    ensure!(faults.is_empty(), "Prometheus cannot evaluate the rules: {}", faults.join("; "));
    Ok(())
}

/// Waits until no alert is firing or pending, or the limit has passed. Otherwise the next cause would get the blame
/// for the last one's alerts.
async fn calm(stage: &Stage) {
    let until = Instant::now() + CALM_WITHIN;
    let mut since = Instant::now();
    while Instant::now() < until && since.elapsed() < CALM_FOR {
        if !stage.prometheus.is_calm().await.unwrap_or(false) {
            since = Instant::now();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
