//! How much of each queue this node has brought to its end: for a person who wants to see whether it moves.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{
    ids::{NodeId, QueueName},
    time::UnixMicros,
};

use super::Desk;

/// What this node alone has counted since it started.
#[derive(Clone, Debug)]
pub struct Throughput {
    pub node: NodeId,
    pub at: UnixMicros,
    pub up: Duration,
    finished: BTreeMap<String, u64>,
}

impl Throughput {
    /// Tasks of the queue that reached a final state here. `None`: none did, or the queue is one of too many to have a count of its own.
    pub fn finished(&self, queue: &QueueName) -> Option<u64> {
        self.finished.get(queue.as_str()).copied()
    }
}

impl Desk {
    pub fn throughput(&self) -> Throughput {
        Throughput {
            node: self.parts().me.clone(),
            at: self.now(),
            up: Instant::now().duration_since(self.inner.started),
            finished: self.parts().metrics.finished_by_queue(),
        }
    }
}
