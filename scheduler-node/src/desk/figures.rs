//! This node's own counts since its start, for a person who wants to see how the node does and whether its
//! queues move.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::ids::{NodeId, QueueName};

use super::Desk;
use crate::metrics::Lateness;

/// Counts and states of this node alone.
#[derive(Clone, Debug)]
pub(crate) struct NodeFigures {
    pub(crate) node: NodeId,
    pub(crate) up: Duration,
    pub(crate) lateness: Lateness,
    /// The delay of the oldest due task of the node's shards.
    pub(crate) oldest_overdue: Duration,
    finished: BTreeMap<String, u64>,
}

impl NodeFigures {
    /// The number of tasks that reached a final state on this node, without those of deleted queues.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.values().sum()
    }

    /// The number of tasks of one queue that reached a final state on this node. `None`: none did, or there are
    /// too many queues for this one to have a count of its own.
    pub(crate) fn finished_of(&self, queue: &QueueName) -> Option<u64> {
        self.finished.get(queue.as_str()).copied()
    }

    /// `finished` tasks as an average number a minute since the node's start.
    pub(crate) fn a_minute(&self, finished: u64) -> f64 {
        finished as f64 / (self.up.as_secs_f64() / 60.0).max(1.0)
    }
}

impl Desk {
    pub(crate) fn node_figures(&self) -> NodeFigures {
        let metrics = &self.parts().metrics;
        NodeFigures {
            node: self.parts().me.clone(),
            up: Instant::now().duration_since(self.inner.started),
            lateness: metrics.lateness(),
            oldest_overdue: Duration::try_from_secs_f64(metrics.oldest_overdue_s.get()).unwrap_or_default(),
            finished: metrics.finished_by_queue(),
        }
    }
}
