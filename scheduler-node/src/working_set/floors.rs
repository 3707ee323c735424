//! The queues whose looks at ready tasks begin at a floor ([`Floor`]). Only those are kept: none, as long as looks are
//! quick.

use std::{collections::HashMap, time::Instant};

use common::{
    delay::{Floor, LookFrom},
    ids::QueueName,
    time::UnixMicros,
};
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub struct Floors {
    of: Mutex<HashMap<QueueName, Floor>>,
}

impl Floors {
    /// Where a look at the queue begins.
    pub fn begin(&self, queue: &QueueName, now: Instant) -> LookFrom {
        self.of.lock().get_mut(queue).map_or(LookFrom::Everywhere, |floor| floor.begin(now))
    }

    /// Changes a queue's floor. Returns it; `None`: the look under way begins everywhere.
    pub fn change(&self, queue: &QueueName, change: impl FnOnce(&mut Floor)) -> Option<UnixMicros> {
        let mut of = self.of.lock();
        let floor = of.entry(queue.clone()).or_default();
        change(floor);
        let at = floor.get();
        if !floor.is_needed() {
            of.remove(queue);
        }
        at
    }

    /// A task of the queue, due at `due_at`, became ready.
    pub fn lower(&self, queue: &QueueName, due_at: UnixMicros) {
        if let Some(floor) = self.of.lock().get_mut(queue) {
            floor.lower(due_at);
        }
    }

    /// Shards came, with ready tasks of any queue.
    pub fn doubt(&self) {
        self.of.lock().values_mut().for_each(Floor::doubt);
    }
}
