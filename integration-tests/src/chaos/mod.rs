//! A chaos run: a real cluster under a load that uses every feature, faults by a seeded plan, and a verdict.
//!
//! The run writes its history as it goes: each request, answer, arrival and fault is a line of a file. The verdict and
//! the report are made from that file alone, so both can be repeated without the cluster.

mod faults;
mod load;
mod nemesis;
mod queues;
mod report;
mod stage;
mod tables;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::{
    ledger::{Ledger, Verdict},
    sandbox::Sandbox,
};
use stage::Stage;

const HISTORY: &str = "history.ndjson";
const REPORT: &str = "report.html";

/// The lease of the nodes: short, so that a run meets many takeovers.
const LEASE_TTL: Duration = Duration::from_secs(3);

/// The nodes under load. One more waits to join and leave.
const NODES: usize = 3;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides the faults, their order, victims and lengths, and the load's due times.
    pub seed: u64,
    /// How long load and faults last. What is due by then is waited for.
    pub time: Duration,
    /// Submissions a second, of all kinds together.
    pub rate: u32,
    /// One server of each store.
    pub small: bool,
    /// The names of the faults; all that the cluster allows when empty.
    pub faults: Vec<String>,
    /// For the history and the report.
    pub folder: PathBuf,
}

/// A kind of fault, for a person.
#[derive(Clone, Copy, Debug)]
pub struct KnownFault {
    pub name: &'static str,
    /// Its row of the fault matrix.
    pub row: &'static str,
    pub says: &'static str,
    /// Why this machine cannot play it.
    pub lack: Option<&'static str>,
}

pub fn known_faults() -> Vec<KnownFault> {
    let known =
        |kind: &faults::Kind| KnownFault { name: kind.name, row: kind.row, says: kind.says, lack: kind.needs.lack() };
    faults::all().map(known).collect()
}

/// Runs the plan. `say` gets a line about each step.
pub async fn run(plan: &Plan, say: fn(&str)) -> Result<Verdict> {
    check(plan)?;
    std::fs::create_dir_all(&plan.folder).with_context(|| format!("making {}", plan.folder.display()))?;
    if plan.faults.is_empty() {
        known_faults()
            .iter()
            .filter_map(|fault| fault.lack.map(|lack| (fault.name, lack)))
            .for_each(|(name, lack)| say(&format!("left out: {name}, because {lack}")));
    }
    say("starting the stores and three nodes ...");
    let mut sandbox = builder(plan.small).start().await?;
    sandbox.add_node().await?;
    let ledger = Arc::clone(&sandbox.ledger);
    ledger.keep_journal(&plan.folder.join(HISTORY))?;
    ledger.run(facts(plan, &sandbox));
    let stage = Arc::new(Stage::new(sandbox, plan.seed));
    queues::make(&stage).await?;
    stage.save().await?;
    say("the load begins");
    let load = load::Load::start(&stage, plan.rate);
    nemesis::rage(&stage, plan, say).await?;
    say("the load ends; waiting for what is due");
    load.end().await;
    tables::settle(&stage).await?;
    note_panics(&stage);
    drop(stage);
    conclude(&ledger, &plan.folder)
}

/// Judges the history of a former run again, and writes its report anew beside it.
pub fn judge(history: &Path) -> Result<Verdict> {
    let folder = history.parent().unwrap_or_else(|| Path::new("."));
    conclude(&Ledger::replay(history)?, folder)
}

fn conclude(ledger: &Ledger, folder: &Path) -> Result<Verdict> {
    let verdict = ledger.judge();
    let file = folder.join(REPORT);
    std::fs::write(&file, report::page(ledger, &verdict)).with_context(|| format!("writing {}", file.display()))?;
    Ok(verdict)
}

fn check(plan: &Plan) -> Result<()> {
    ensure!(plan.rate > 0, "a load has at least one task a second");
    for name in &plan.faults {
        let Some(kind) = faults::all().find(|kind| kind.name == name) else {
            let names: Vec<_> = faults::all().map(|kind| kind.name).collect();
            bail!("there is no fault {name}; there are {}", names.join(", "));
        };
        if let Some(lack) = kind.needs.lack() {
            bail!("{name} cannot be played: {lack}");
        }
        ensure!(!(plan.small && kind.needs.is_large()), "{name} needs more than one server of its store");
    }
    Ok(())
}

fn builder(small: bool) -> crate::sandbox::Builder {
    let delay_exchange = format!(
        "[[delay_exchange]]\nname = \"{}\"\ntype = \"topic\"\ndeliver_to = \"{}\"\n",
        queues::DELAYS,
        queues::DELAYED
    );
    let common = Sandbox::builder().nodes(NODES).lease_ttl(LEASE_TTL).proxied().config(&delay_exchange);
    if small { common } else { common.databases(2).last_in_room().standby().etcd_members(3).brokers(3) }
}

/// What the report says about the run.
fn facts(plan: &Plan, sandbox: &Sandbox) -> serde_json::Value {
    let faults = if plan.faults.is_empty() { String::new() } else { format!(" --faults {}", plan.faults.join(",")) };
    let small = if plan.small { " --small" } else { "" };
    let minutes = plan.time.as_secs_f64() / 60.0;
    json!({
        "seed": plan.seed,
        "minutes": minutes,
        "rate": plan.rate,
        "version": env!("CARGO_PKG_VERSION"),
        "cluster": format!(
            "{NODES} nodes; {} PostgreSQL{}; {} RabbitMQ; {} etcd; leases of {} s",
            sandbox.database_count(),
            if sandbox.has_standby() { ", the first with a synchronous standby" } else { "" },
            sandbox.brokers().len(),
            sandbox.etcd().count(),
            LEASE_TTL.as_secs(),
        ),
        "queues": queues::PROMPT,
        "command": format!("stack chaos --seed {} --minutes {minutes:.1} --rate {}{small}{faults}", plan.seed, plan.rate),
    })
}

fn note_panics(stage: &Stage) {
    for node in stage.sandbox.nodes() {
        let log = std::fs::read_to_string(node.log()).unwrap_or_default();
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            stage.ledger().wrong(&format!("{} panicked: {line}", node.name()));
        }
    }
}
