//! `duetime cluster`: shows the intended state beside the actual one, and drains nodes.

mod drain;

use std::collections::BTreeMap;

use clap::Subcommand;
use common::{
    time::UnixMicros,
    wire::{
        ClusterReport,
        cluster::{NodeReport, ShardReport},
    },
};

use super::{client::Request, error::Error, invocation::Invocation, moment, print};
use crate::clock;

/// The subcommand; without one, the cluster is shown.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    show: Invocation<Show>,
}

/// The subcommands that act on a node.
#[derive(Debug, Subcommand)]
enum Command {
    /// Move a node's shards to the others, and give it no more until it is undrained or starts again.
    #[command(after_help = "Example:\n  duetime cluster drain node-2 --wait")]
    Drain(Invocation<drain::Drain>),
    /// Let a drained node have shards again.
    #[command(after_help = "Example:\n  duetime cluster undrain node-2")]
    Undrain(Invocation<drain::One>),
}

/// How much to show.
#[derive(Debug, clap::Args)]
struct Show {
    /// Show every shard, not only those whose owner differs from their assignment.
    #[arg(long)]
    shards: bool,
}

pub(super) async fn cluster(args: &Args) -> Result<(), Error> {
    match &args.command {
        None => show(&args.show).await,
        Some(Command::Drain(invocation)) => drain::drain(invocation).await,
        Some(Command::Undrain(invocation)) => drain::undrain(invocation).await,
    }
}

async fn show(invocation: &Invocation<Show>) -> Result<(), Error> {
    let answer = invocation.client()?.send(&Request::get(&["v1", "cluster"])).await?;
    invocation.print(&answer, |answer| Ok(picture(&answer.read()?, invocation.args.shards, clock::now())))
}

fn picture(report: &ClusterReport, all_shards: bool, now: UnixMicros) -> String {
    let master = match &report.master {
        Some(master) => format!("master {} since term {}", master.name, master.term.revision()),
        None => "no master".to_owned(),
    };
    let mut parts = vec![format!("{master}, as {} sees it", report.node.name), nodes(report, now), summary(report)];
    if let Some(until) = report.frozen_until {
        parts.push(format!(
            "too many nodes vanished at the same time: no shard moves until {}",
            moment::shown(until, now)
        ));
    }
    let settled = |shard: &&ShardReport| all_shards || shard.owner != shard.assigned || shard.owner.is_none();
    let listed: Vec<&ShardReport> = report.shards.iter().filter(settled).collect();
    if !listed.is_empty() {
        parts.push(shards(&listed));
    }
    parts.extend(report.remarks().iter().map(|remark| print::printable(remark)));
    parts.join("\n\n")
}

fn nodes(report: &ClusterReport, now: UnixMicros) -> String {
    let row = |node: &NodeReport| {
        vec![
            node.name.to_string(),
            node.shards_owned.to_string(),
            standing(node),
            moment::distance(node.started_at, now),
            node.version.clone(),
            node.url.clone().unwrap_or_default(),
        ]
    };
    print::table(&["NODE", "SHARDS", "STATE", "STARTED", "VERSION", "URL"], report.nodes.iter().map(row).collect())
}

/// A node's state in a few words.
pub(super) fn standing(node: &NodeReport) -> String {
    let leaving = node.leaving.then(|| "leaving".to_owned());
    let drained = node.drained.then(|| "drained".to_owned());
    let databases = node.unfit.iter().map(|database| format!("cannot reach database {database}"));
    let broker = node.broker_unfit.then(|| "cannot reach the broker".to_owned());
    let words: Vec<String> = leaving.into_iter().chain(drained).chain(databases).chain(broker).collect();
    if words.is_empty() { "healthy".to_owned() } else { words.join(", ") }
}

fn summary(report: &ClusterReport) -> String {
    let mut owned: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for shard in &report.shards {
        let (all, with_owner) = owned.entry(shard.database.as_str()).or_default();
        *all += 1;
        *with_owner += usize::from(shard.owner.is_some());
    }
    let line = |(database, (all, with_owner)): (&str, (usize, usize))| {
        format!("database {database}: {with_owner} of {all} shards have an owner")
    };
    owned.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

fn shards(shards: &[&ShardReport]) -> String {
    let row = |shard: &&ShardReport| {
        let name =
            |name: &Option<common::ids::NodeName>| name.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        let epoch = shard.epoch.map(|epoch| epoch.number().to_string()).unwrap_or_default();
        vec![
            shard.shard.number().to_string(),
            shard.database.to_string(),
            name(&shard.assigned),
            name(&shard.owner),
            epoch,
        ]
    };
    print::table(&["SHARD", "DATABASE", "ASSIGNED TO", "OWNED BY", "EPOCH"], shards.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> ClusterReport {
        let node = |name: &str, leaving: bool| {
            json!({
                "name": name, "incarnation": "0199f3a0-0000-7000-8000-000000000005", "url": "http://127.0.0.1:1",
                "leaving": leaving, "drained": leaving, "unfit": [], "broker_unfit": false, "version": "0.1.0",
                "started_at": "2030-01-01T00:00:00Z", "shards_owned": 1,
            })
        };
        let shard = |shard: u16, assigned: &str, owner: &str| json!({ "shard": shard, "database": "main", "assigned": assigned, "owner": owner, "epoch": 4 });
        serde_json::from_value(json!({
            "node": { "name": "a", "incarnation": "0199f3a0-0000-7000-8000-000000000005" },
            "nodes": [node("a", false), node("b", true)],
            "master": { "name": "b", "term": 9 },
            "shards": [shard(0, "a", "a"), shard(1, "a", "b")],
            "frozen_until": null, "lag": {}, "notes": ["database `x` cannot be reached"],
            "shards_orphaned": 3,
        }))
        .expect("a report")
    }

    #[test]
    fn a_picture_names_the_master_the_nodes_and_the_shards_on_their_way() {
        let now = UnixMicros::new(1_893_456_000_000_000 + 7_200_000_000);
        let shown = picture(&report(), false, now);
        for part in
            ["master b since term 9", "2 h ago", "leaving, drained", "2 of 2 shards", "database `x`", "3 shards have"]
        {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        let listed = |shown: &str| shown.lines().filter(|line| line.contains("main") && line.ends_with('4')).count();
        assert_eq!((listed(&shown), listed(&picture(&report(), true, now))), (1, 2));
    }
}
