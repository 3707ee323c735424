//! The cluster as it is shown: what is intended, from etcd, beside what is, from the databases.

use std::collections::{BTreeMap, HashMap};

use common::{
    cluster::Pace,
    ids::{DatabaseName, NodeName, ShardId},
    shard::ShardRange,
    wire::{ClusterReport, Problem},
};

use super::Desk;
use crate::store::fence::ShardRow;

impl Desk {
    /// Who owns a shard is told by its own database, whose fence decides it. Where a database cannot be asked, nobody knows: its
    /// shards have no owner in the report, and a note says why.
    pub async fn cluster(&self) -> Result<ClusterReport, Problem> {
        let databases = self.parts().store.databases();
        let ranges: Vec<(DatabaseName, ShardRange)> =
            databases.iter().map(|database| (database.name().clone(), database.shards())).collect();
        let view = self.parts().views.borrow().clone();
        let mut report = ClusterReport::of(&self.parts().me, Some(&view), &ranges, &Pace::Proceed);
        let mut fences: HashMap<ShardId, ShardRow> = HashMap::new();
        let parts = databases.iter().map(|database| database.shards_read());
        for (database, part) in databases.iter().zip(futures::future::join_all(parts).await) {
            match part {
                Ok(rows) => {
                    let own = rows.into_iter().filter(|row| database.shards().contains(row.id));
                    fences.extend(own.map(|row| (row.id, row)));
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the owners of shards cannot be read");
                    let note =
                        format!("database `{}` cannot be reached: who owns its shards is not known", database.name());
                    report.notes.push(note);
                }
            }
        }
        show_owners(&mut report, &fences);
        let overdue_s = self.parts().metrics.oldest_overdue_s.get();
        report.lag.oldest_overdue_ms = Some((overdue_s * 1_000.0) as i64);
        Ok(report)
    }
}

fn show_owners(report: &mut ClusterReport, fences: &HashMap<ShardId, ShardRow>) {
    let mut owned: BTreeMap<(NodeName, uuid::Uuid), usize> = BTreeMap::new();
    for shard in &mut report.shards {
        let fence = fences.get(&shard.shard);
        shard.owner = fence.and_then(|fence| fence.owner.as_ref()).map(NodeName::new);
        // The epoch stays when the owner has given the shard up: the next one counts on from there.
        shard.epoch = fence.map(|fence| fence.epoch);
        if let (Some(owner), Some(incarnation)) = (&shard.owner, fence.and_then(|fence| fence.incarnation)) {
            *owned.entry((owner.clone(), incarnation)).or_default() += 1;
        }
    }
    for node in &mut report.nodes {
        node.shards_owned = owned.get(&(node.name.clone(), node.incarnation.uuid())).copied().unwrap_or(0);
    }
}
