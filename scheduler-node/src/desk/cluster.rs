//! The cluster as it is shown: the intended state, from etcd, beside the actual state, from the databases.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use common::{
    cluster::drain::Refused,
    ids::{DatabaseName, NodeName, ShardId},
    wire::{ClusterReport, Problem, cluster::NodeReport},
};
use tokio::time::timeout;

use super::{Desk, run_to_end};
use crate::{
    clock,
    coordination::{Error, EtcdOp},
    store::{Database, fence::ShardRow},
};

/// The most tries of a drain that conflicts with other drains. Each conflict means that another operator's
/// drain was written.
const ROUNDS: usize = 8;

/// The longest wait for this node's own view of the cluster to contain the write. Usually it does within
/// milliseconds.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);

/// A database that takes longer than this to tell its owners does not delay the report. `duetime top` gives up after
/// two seconds, and shows the least where an outage makes it most useful.
const READ_WITHIN: Duration = Duration::from_secs(1);

impl Desk {
    /// Reports the cluster. The owner of a shard comes from the shard's own database, whose fence decides it. While a
    /// database does not answer, the owners of its shards are unknown: the report shows none and a note says why.
    pub(crate) async fn cluster(&self) -> Result<ClusterReport, Problem> {
        let databases = self.parts().store.databases();
        let names: Vec<DatabaseName> = databases.iter().map(|database| database.name().clone()).collect();
        let parts = futures::future::join_all(databases.iter().map(|database| fence_rows(database))).await;
        // A node that has just started waits above for its databases, and has the map after that.
        let map = self.parts().store.places().load();
        let view = self.parts().views.borrow().clone();
        let frozen_until = self.parts().frozen_until.borrow().filter(|until| *until > clock::now());
        let mut report = ClusterReport::of(&self.parts().me, Some(&view), &map.divided(&names), frozen_until);
        let (fences, notes) = self.own_fences(&map, parts);
        report.notes.extend(notes);
        if report.notes.is_empty() && !map.is_whole() {
            report.notes.push("this node has not read the places of all shards yet".to_owned());
        }
        show_owners(&mut report, &fences);
        let view_age_ms = self.parts().coordination.metrics().view_age().as_millis();
        report.lag.view_age_ms = i64::try_from(view_age_ms).ok();
        let overdue_s = self.parts().metrics.oldest_overdue_s.get();
        report.lag.oldest_overdue_ms = Some((overdue_s * 1_000.0) as i64);
        Ok(report)
    }

    /// Drains a node in the name of `by`, or ends a drain. The master moves the shards after the answer; the
    /// node's report shows how many are left. A repeated request changes nothing and gets the same answer.
    pub(crate) async fn node_drain(&self, name: &str, drained: bool, by: &str) -> Result<NodeReport, Problem> {
        self.require_all_queues()?;
        let (desk, name, by) = (self.clone(), NodeName::new(name), by.to_owned());
        run_to_end(async move {
            if let Some(revision) = desk.drain_write(&name, drained).await? {
                tracing::info!(member = %name, drained, by, "node {}", if drained { "drained" } else { "undrained" });
                let mut views = desk.parts().views.clone();
                let shown = views.wait_for(|view| view.revision >= revision);
                // The drain is written. This node's view is late, and the answer below is right all the same.
                let _ = timeout(SHOWN_WITHIN, shown).await;
            }
            let node = desk.cluster().await?.nodes.into_iter().find(|node| node.name == name);
            let left = || Problem::not_found(format!("node `{name}` has just left the cluster"));
            Ok(NodeReport { drained, ..node.ok_or_else(left)? })
        })
        .await
    }

    /// Writes the drain and returns the revision of etcd that contains it. `None`: the node was in that state
    /// already.
    async fn drain_write(&self, name: &NodeName, drained: bool) -> Result<Option<i64>, Problem> {
        let coordination = &self.parts().coordination;
        for _ in 0..ROUNDS {
            let read = coordination.drained_read().await?;
            let next = read.roll.set(name, drained).map_err(|refused| refusal(&refused))?;
            if next == read.roll.drained {
                return Ok(None);
            }
            let written = coordination.drained_write(&read, &next).await?;
            if written.is_some() {
                return Ok(written);
            }
        }
        Err(Error::Contended { op: EtcdOp::DrainWrite }.into())
    }
}

/// The fence rows of a database. `None`: they cannot be read now.
async fn fence_rows(database: &Database) -> Option<Vec<ShardRow>> {
    match timeout(READ_WITHIN, database.shards_read()).await {
        Ok(Ok(rows)) => return Some(rows),
        Ok(Err(error)) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "the owners of shards cannot be read");
        }
        Err(_) => tracing::debug!(database = %database.name(), "reading the owners of shards took too long"),
    }
    None
}

fn refusal(refused: &Refused) -> Problem {
    match refused {
        Refused::Unknown { .. } => Problem::not_found(refused.to_string()),
        Refused::Last { .. } => Problem::conflict(refused.to_string()),
    }
}

fn show_owners(report: &mut ClusterReport, fences: &HashMap<ShardId, ShardRow>) {
    let mut owned: BTreeMap<(NodeName, uuid::Uuid), usize> = BTreeMap::new();
    for shard in &mut report.shards {
        let fence = fences.get(&shard.shard);
        shard.owner = fence.and_then(|fence| fence.owner.as_ref()).map(NodeName::new);
        // The epoch stays when the owner has given the shard up: the next owner counts on from it.
        shard.epoch = fence.map(|fence| fence.epoch);
        if let (Some(owner), Some(incarnation)) = (&shard.owner, fence.and_then(|fence| fence.incarnation)) {
            *owned.entry((owner.clone(), incarnation)).or_default() += 1;
        }
    }
    for node in &mut report.nodes {
        node.shards_owned = owned.remove(&(node.name.clone(), node.incarnation.uuid())).unwrap_or(0);
    }
    // A fence names its last owner until another node takes it. That owner may have ended.
    report.shards_orphaned = owned.into_values().sum();
}
