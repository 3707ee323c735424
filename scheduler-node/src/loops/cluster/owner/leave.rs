//! The departure of a node: it gives up its shards first, its registration last.

use std::{sync::Arc, time::Duration};

use common::{cluster::ClusterView, ids::NodeId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    coordination::{Coordination, Views},
    working_set::owned_shards::OwnedShards,
};

/// The longest departure: the drain of a shard, and a little for the requests around it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(12);

/// An etcd that is away for this long is not merely electing a leader.
const AWAY_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval between two checks of the held shards, which send no notification.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Marks the node as leaving and waits until it owns nothing and nothing is assigned to it. The loops do the work,
/// so they must still run. Afterwards the session keeper removes the registration when it stops.
///
/// Returns whether everything was handed over. Without etcd the wait is short, because no node could take anything.
pub async fn leave(
    me: &NodeId,
    leaving: &CancellationToken,
    coordination: &Coordination,
    mut views: Views,
    owned: &[Arc<OwnedShards>],
) -> bool {
    tracing::info!(me = %me, "leaving: handing over what this node owns");
    leaving.cancel();
    let handed_over = async {
        let mut back = Instant::now();
        loop {
            let view = views.borrow_and_update().clone();
            if owned.iter().all(|shards| shards.owned().is_empty()) && is_free(&view, me) {
                return true;
            }
            if !coordination.is_away() {
                back = Instant::now();
            } else if back.elapsed() > AWAY_TIMEOUT {
                return false;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    let done = tokio::time::timeout(LEAVE_TIMEOUT, handed_over).await.unwrap_or(false);
    if !done {
        tracing::warn!(me = %me, "leaving before all shards are handed over; other nodes take the rest when the lease \
                                  expires");
    }
    done
}

/// Whether `me` has no owner key, and no assigned shard while another node stays to take it.
fn is_free(view: &ClusterView, me: &NodeId) -> bool {
    let owns = view.owners.values().any(|owner| owner.node == *me);
    let anyone_stays = view.members.values().any(|member| member.node != *me && !member.leaving);
    let is_meant = || view.assignment.as_ref().is_some_and(|record| record.assignment.of(me).next().is_some());
    !(owns || anyone_stays && is_meant())
}
