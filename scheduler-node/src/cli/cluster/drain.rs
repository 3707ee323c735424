//! `duetime cluster drain` and `undrain`.

use std::time::{Duration, Instant};

use clap::Args;
use common::{
    ids::NodeName,
    wire::{ClusterReport, cluster::NodeReport},
};
use indicatif::ProgressBar;

use crate::cli::{
    client::{Client, Request, path_part},
    error::Error,
    invocation::Invocation,
    output::{Form, say},
    progress,
    wait::answered,
};

/// Shards move within a second or two; this interval lets a person watch them go.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A drain counts as ended once no look has shown it for this long. Another node than the one that wrote it may answer,
/// with an older view: one whose watch of etcd is stuck lists etcd again after 5 s, and waits 2 s for each endpoint.
const UNDRAINED_FOR: Duration = Duration::from_secs(10);

/// One node.
#[derive(Debug, Args)]
pub(super) struct One {
    /// Name of the node, as `duetime cluster` lists it.
    #[arg(value_parser = path_part)]
    node: String,
}

/// The node to drain.
#[derive(Debug, Args)]
pub(super) struct Drain {
    #[command(flatten)]
    one: One,
    /// Return when the node has no shard left, not as soon as the drain is requested.
    #[arg(long)]
    wait: bool,
}

pub(super) async fn drain(invocation: &Invocation<Drain>) -> Result<(), Error> {
    let (client, args) = (invocation.client()?, &invocation.args);
    let node = turned(&client, &args.one.node, "drain").await?;
    if !args.wait {
        return print(invocation.form(), &node);
    }
    let progress = progress::of_shards();
    let emptied = emptied(&client, node, &progress).await;
    progress.finish_and_clear();
    print(invocation.form(), &emptied?)
}

pub(super) async fn undrain(invocation: &Invocation<One>) -> Result<(), Error> {
    let node = turned(&invocation.client()?, &invocation.args.node, "undrain").await?;
    print(invocation.form(), &node)
}

async fn turned(client: &Client, node: &str, verb: &str) -> Result<NodeReport, Error> {
    Ok(client.send(&Request::post(&["v1", "cluster", "nodes", node, verb])).await?.read()?)
}

fn print(form: Form, node: &NodeReport) -> Result<(), Error> {
    match form {
        Form::Text => say(shown(node)),
        Form::Json | Form::Jsonl => say(serde_json::to_string(node).map_err(Error::Unwritable)?),
    }
    Ok(())
}

fn shown(node: &NodeReport) -> String {
    let standing = if node.drained { "drained" } else { "not drained" };
    let shards = if node.shards_owned == 1 { "shard" } else { "shards" };
    format!("{}  {standing}, {} {shards}", node.name, node.shards_owned)
}

/// Waits until the node has no shard left, and returns its last report.
async fn emptied(client: &Client, node: NodeReport, progress: &ProgressBar) -> Result<NodeReport, Error> {
    emptied_unless_undrained_for(UNDRAINED_FOR, client, node, progress).await
}

async fn emptied_unless_undrained_for(
    longest: Duration,
    client: &Client,
    node: NodeReport,
    progress: &ProgressBar,
) -> Result<NodeReport, Error> {
    let mut undrained_since: Option<Instant> = None;
    loop {
        let report: ClusterReport = answered(client, &Request::get(&["v1", "cluster"]), LOOK_INTERVAL).await?;
        let left = remaining(&report, &node);
        if left != Remaining::Undrained {
            undrained_since = None;
        }
        let has_ended = match left {
            Remaining::Nothing => return Ok(NodeReport { shards_owned: 0, ..node }),
            Remaining::Shards(count) => {
                progress.set_position(count);
                false
            }
            Remaining::Unknown => false,
            Remaining::Undrained => undrained_since.get_or_insert_with(Instant::now).elapsed() >= longest,
        };
        if has_ended {
            let detail = format!("{} is no longer drained: it has restarted, or an operator undrained it", node.name);
            return Err(Error::Refused(detail));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// What a draining node still holds.
#[derive(Debug, PartialEq, Eq)]
enum Remaining {
    Nothing,
    /// This many shards are owned by the node or assigned to it.
    Shards(u64),
    /// A database or etcd could not be read, so some shards may be the node's.
    Unknown,
    /// The node has been undrained or has started again, or the view is from before the drain.
    Undrained,
}

fn remaining(report: &ClusterReport, node: &NodeReport) -> Remaining {
    let is_it = |name: &Option<NodeName>| name.as_ref() == Some(&node.name);
    let found = report.nodes.iter().find(|other| other.name == node.name);
    if found.is_some_and(|found| found.incarnation != node.incarnation || !found.drained) {
        return Remaining::Undrained;
    }
    match report.shards.iter().filter(|shard| is_it(&shard.owner) || is_it(&shard.assigned)).count() {
        // A node that has just started has not read the cluster yet.
        0 if report.notes.is_empty() && !report.nodes.is_empty() => Remaining::Nothing,
        0 => Remaining::Unknown,
        count => Remaining::Shards(u64::try_from(count).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::wait::tests::client_of;

    fn node(incarnation: u8, drained: bool) -> Value {
        json!({
            "name": "a", "incarnation": format!("0199f3a0-0000-7000-8000-00000000000{incarnation}"), "url": null,
            "leaving": false, "drained": drained, "unfit": [], "broker_unfit": false, "version": "0.1.0",
            "started_at": "2030-01-01T00:00:00Z", "shards_owned": 1,
        })
    }

    fn report(nodes: &[Value], shard: (&str, &str), notes: &[&str]) -> Value {
        json!({
            "node": { "name": "b", "incarnation": "0199f3a0-0000-7000-8000-000000000009" }, "nodes": nodes, "master": null,
            "shards": [{ "shard": 0, "database": "main", "assigned": shard.0, "owner": shard.1, "epoch": 4 }],
            "frozen_until": null, "lag": {}, "notes": notes,
        })
    }

    fn drained() -> NodeReport {
        serde_json::from_value(node(1, true)).expect("a node")
    }

    fn remaining_in(nodes: &[Value], shard: (&str, &str), notes: &[&str]) -> Remaining {
        remaining(&serde_json::from_value(report(nodes, shard, notes)).expect("a report"), &drained())
    }

    #[tokio::test]
    async fn a_wait_for_a_drain_outlasts_a_node_that_restarts() {
        let report = report(&[node(1, true)], ("b", "b"), &[]);
        let client = client_of(vec![None, Some((200, report))]).await;
        let emptied = emptied(&client, drained(), &ProgressBar::hidden()).await;
        assert_eq!(emptied.expect("it is empty").shards_owned, 0);
    }

    #[tokio::test]
    async fn a_wait_for_a_drain_outlasts_a_look_at_an_older_view() {
        let look = |shows_drain: bool, owner: &str| Some((200, report(&[node(1, shows_drain)], ("b", owner), &[])));
        // Also one of them after a look that has shown the drain, and one without a shard.
        let client = client_of(vec![look(false, "a"), look(true, "a"), look(false, "b"), look(true, "b")]).await;
        let emptied = emptied(&client, drained(), &ProgressBar::hidden()).await;
        assert_eq!(emptied.expect("it is empty").shards_owned, 0);
    }

    #[tokio::test]
    async fn a_wait_ends_when_the_drain_is_gone_for_long_or_the_node_has_started_again() {
        for incarnation in [1, 2] {
            let client = client_of(vec![Some((200, report(&[node(incarnation, false)], ("b", "b"), &[])))]).await;
            let hidden = ProgressBar::hidden();
            let emptied = emptied_unless_undrained_for(Duration::ZERO, &client, drained(), &hidden).await;
            assert!(matches!(emptied, Err(Error::Refused(_))), "{emptied:?}");
        }
    }

    #[test]
    fn a_node_is_empty_when_nothing_is_with_it_or_meant_for_it_and_everybody_tells() {
        let there = [node(1, true)];
        assert_eq!(remaining_in(&there, ("a", "a"), &[]), Remaining::Shards(1));
        assert_eq!(remaining_in(&there, ("b", "a"), &[]), Remaining::Shards(1));
        assert_eq!(remaining_in(&there, ("a", "b"), &[]), Remaining::Shards(1));
        assert_eq!(remaining_in(&there, ("b", "b"), &["database `x` cannot be reached"]), Remaining::Unknown);
        assert_eq!(remaining_in(&there, ("b", "b"), &[]), Remaining::Nothing);
        let mut orphaned = report(&there, ("b", "c"), &[]);
        orphaned["shards_orphaned"] = json!(2);
        let orphaned = serde_json::from_value(orphaned).expect("a report");
        assert_eq!(remaining(&orphaned, &drained()), Remaining::Nothing, "this node was none of their owners");
        let mut other = node(3, false);
        other["name"] = json!("b");
        assert_eq!(remaining_in(&[other], ("b", "b"), &[]), Remaining::Nothing, "it has left, and owns no shard");
        assert_eq!(remaining_in(&[], ("b", "b"), &[]), Remaining::Unknown, "the node that answers has just started");
    }

    #[test]
    fn a_node_that_was_put_back_or_has_started_again_is_not_waited_for() {
        assert_eq!(remaining_in(&[node(1, false)], ("b", "a"), &[]), Remaining::Undrained);
        assert_eq!(remaining_in(&[node(2, false)], ("b", "b"), &[]), Remaining::Undrained);
        assert_eq!(remaining_in(&[node(2, true)], ("b", "b"), &[]), Remaining::Undrained);
    }
}
