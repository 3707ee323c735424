//! The page of the cluster: its nodes, the assignment and the owner of each shard, and the stores that this node can
//! reach.

use std::collections::BTreeMap;

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Permission,
    ids::NodeName,
    wire::{ClusterReport, Problem, cluster::ShardReport},
};

use super::{
    browser::parameter,
    extract::PostedForm,
    format::{When, span, when},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};

#[derive(Template)]
#[template(path = "cluster.html")]
struct ClusterPage {
    frame: Frame,
    node: String,
    ready: bool,
    reasons: Vec<String>,
    notes: Vec<String>,
    master: Option<(NodeName, String)>,
    frozen_until: Option<When>,
    overdue: String,
    nodes: Vec<NodeRow>,
    shards: Vec<Shard>,
    /// The shards that the table describes in detail.
    listed: Vec<Shard>,
    all: bool,
    unsettled: usize,
    /// Whether the visitor may drain nodes.
    may_act: bool,
}

struct NodeRow {
    mark: String,
    name: NodeName,
    url: String,
    version: String,
    started: When,
    state: Vec<String>,
    drained: bool,
    assigned: usize,
    owned: usize,
    is_master: bool,
}

/// A shard, labelled with its nodes' letters, so that no information is in colour alone.
#[derive(Clone)]
struct Shard {
    number: String,
    database: String,
    assigned: String,
    owner: String,
    epoch: String,
    mark: String,
    state: ShardState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardState {
    Settled,
    /// Assigned to a node other than its owner.
    Moving,
    Unowned,
}

impl ShardState {
    fn of(shard: &ShardReport) -> Self {
        match (&shard.owner, &shard.assigned) {
            (None, _) => Self::Unowned,
            (owner, assigned) if owner == assigned => Self::Settled,
            _ => Self::Moving,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Moving => "moving",
            Self::Unowned => "nobody",
        }
    }
}

/// The table lists every shard with `?shards=all`; otherwise only those that are not settled.
pub(super) async fn cluster(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    let report = visitor.desk.cluster().await.map_err(|problem| PageProblem::at(&visitor, problem))?;
    let readiness = visitor.desk.readiness();
    let now = visitor.desk.now();
    let marks = marks(&report);
    let shards: Vec<Shard> = report.shards.iter().map(|report| shard(report, &marks)).collect();
    let all = parameter(&uri, "shards").as_deref() == Some("all");
    let unsettled = |shard: &&Shard| shard.state != ShardState::Settled;
    let overdue_ms = report.lag.oldest_overdue_ms.and_then(|late_ms| u64::try_from(late_ms).ok()).unwrap_or(0);
    let page = ClusterPage {
        frame: Frame::new("Cluster", &visitor),
        node: report.node.name.to_string(),
        ready: readiness.ready,
        reasons: readiness.reasons,
        notes: report.remarks(),
        master: report.master.as_ref().map(|master| (master.name.clone(), master.term.to_string())),
        frozen_until: report.frozen_until.map(|until| when(until, now)),
        overdue: span(std::time::Duration::from_millis(overdue_ms)),
        nodes: nodes(&report, &marks, now),
        unsettled: shards.iter().filter(unsettled).count(),
        listed: shards.iter().filter(|shard| all || unsettled(shard)).cloned().collect(),
        shards,
        all,
        may_act: visitor.may(Permission::Operate) && visitor.desk.require_all_queues().is_ok(),
    };
    Ok(show(StatusCode::OK, &page))
}

pub(super) async fn act(posted: PostedForm) -> Result<Response, PageProblem> {
    let visitor = &posted.visitor;
    let action = posted.field("action").unwrap_or_default();
    let node = posted.field("node").unwrap_or_default();
    let done = match action {
        "drain" | "undrain" => visitor.desk.node_drain(node, action == "drain", &visitor.caller.name).await.map(drop),
        _ => Err(Problem::invalid_field("action", "choose an action: drain or undrain")),
    };
    posted.record(node, done.as_ref().map(|()| "done"));
    done.map_err(|problem| PageProblem::at(visitor, problem))?;
    Ok(Redirect::to("/console/cluster").into_response())
}

/// A letter for each node that is a member or owns a shard: `A` to `Z`, then `A1` and so on.
fn marks(report: &ClusterReport) -> BTreeMap<NodeName, String> {
    let members = report.nodes.iter().map(|node| &node.name);
    let shards = report.shards.iter().flat_map(|shard| shard.owner.iter().chain(&shard.assigned));
    let mut marks: BTreeMap<NodeName, String> =
        members.chain(shards).map(|name| (name.clone(), String::new())).collect();
    for (nth, mark) in marks.values_mut().enumerate() {
        let letter = char::from(b'A' + u8::try_from(nth % 26).unwrap_or(0));
        *mark = if nth < 26 { letter.to_string() } else { format!("{letter}{}", nth / 26) };
    }
    marks
}

fn nodes(report: &ClusterReport, marks: &BTreeMap<NodeName, String>, now: common::time::UnixMicros) -> Vec<NodeRow> {
    let assigned = |name: &NodeName| report.shards.iter().filter(|shard| shard.assigned.as_ref() == Some(name)).count();
    let row = |node: &common::wire::cluster::NodeReport| {
        let mut state: Vec<String> = node.unfit.iter().map(|name| format!("cannot reach database {name}")).collect();
        state.extend(node.broker_unfit.then(|| "cannot reach the broker".to_owned()));
        state.extend(node.leaving.then(|| "leaving".to_owned()));
        NodeRow {
            mark: marks.get(&node.name).cloned().unwrap_or_default(),
            name: node.name.clone(),
            url: node.url.clone().unwrap_or_default(),
            version: node.version.clone(),
            started: when(node.started_at, now),
            state,
            drained: node.drained,
            assigned: assigned(&node.name),
            owned: node.shards_owned,
            is_master: report.master.as_ref().is_some_and(|master| master.name == node.name),
        }
    };
    report.nodes.iter().map(row).collect()
}

fn shard(report: &ShardReport, marks: &BTreeMap<NodeName, String>) -> Shard {
    let name = |name: &Option<NodeName>| name.as_ref().map_or_else(|| "–".to_owned(), NodeName::to_string);
    let mark = |name: &Option<NodeName>| name.as_ref().and_then(|name| marks.get(name)).map_or("–", String::as_str);
    let state = ShardState::of(report);
    let (owner, assigned) = (mark(&report.owner), mark(&report.assigned));
    Shard {
        number: report.shard.number().to_string(),
        database: report.database.to_string(),
        assigned: name(&report.assigned),
        owner: name(&report.owner),
        epoch: report.epoch.map_or_else(|| "–".to_owned(), |epoch| epoch.to_string()),
        mark: if state == ShardState::Settled { owner.to_owned() } else { format!("{owner}→{assigned}") },
        state,
    }
}

#[cfg(test)]
mod tests {
    use common::ids::{DatabaseName, ShardId};

    use super::*;

    fn report(assigned: Option<&str>, owner: Option<&str>) -> ShardReport {
        let (assigned, owner) = (assigned.map(NodeName::new), owner.map(NodeName::new));
        ShardReport { shard: ShardId::new(7), database: DatabaseName::new("main"), assigned, owner, epoch: None }
    }

    #[test]
    fn where_a_shard_is_and_should_be_is_told_without_colour() {
        let marks = BTreeMap::from([(NodeName::new("a"), "A".to_owned()), (NodeName::new("b"), "B".to_owned())]);
        for (assigned, owner, mark, state) in [
            (Some("a"), Some("a"), "A", ShardState::Settled),
            (Some("b"), Some("a"), "A→B", ShardState::Moving),
            (None, Some("a"), "A→–", ShardState::Moving),
            (Some("b"), None, "–→B", ShardState::Unowned),
            (None, None, "–→–", ShardState::Unowned),
        ] {
            let shard = shard(&report(assigned, owner), &marks);
            assert_eq!((shard.mark.as_str(), shard.state), (mark, state));
        }
    }
}
