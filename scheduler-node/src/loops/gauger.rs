//! Reads the gauges that no event moves: how much is held, how full the pools are, what limits queues have set for alerts,
//! which loops are stalled.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{ids::QueueName, queue::QueueBook};
use tokio_util::sync::CancellationToken;

use super::{lanes::Lanes, queue_reader::Books, site::Sites};
use crate::{
    metrics::Metrics,
    supervise::{LoopKind, Pulse},
};

const READ_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Gauger {
    pub sites: Sites,
    pub lanes: Arc<Lanes>,
    pub books: Books,
    pub metrics: Arc<Metrics>,
    pub pulse: Pulse,
}

impl Gauger {
    pub async fn run(self, stop: CancellationToken) {
        let mut with_limit = BTreeSet::new();
        let mut known = None;
        loop {
            self.read();
            let book = self.books.load_full();
            if known != Some(book.revision()) {
                known = Some(book.revision());
                self.tell_queues(&book, &mut with_limit);
            }
            tokio::select! {
                () = tokio::time::sleep(READ_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn read(&self) {
        let mut oldest_s: f64 = 0.0;
        for site in self.sites.all() {
            let name = site.name().as_str();
            self.metrics.heap_entries.with_label_values(&[name]).set(gauge(site.held.heap_len()));
            self.metrics.in_flight.with_label_values(&[name]).set(gauge(site.held.in_flight()));
            let (size, idle) = site.database.connections();
            self.metrics.pool_connections.with_label_values(&[name, "open"]).set(i64::from(size));
            self.metrics.pool_connections.with_label_values(&[name, "idle"]).set(gauge(idle));
            oldest_s = oldest_s.max(self.metrics.overdue_s.with_label_values(&[name]).get());
        }
        self.metrics.oldest_overdue_s.set(oldest_s);
        let stalled = self.pulse.stalled(Instant::now());
        for kind in LoopKind::ALL {
            self.metrics.loop_stalled.with_label_values(&[kind.text()]).set(i64::from(stalled.contains(kind)));
        }
        self.metrics.lanes_closed.set(gauge(self.lanes.closed(Instant::now()).len()));
    }

    /// Alerts count from the series of a queue that begin here, and take its own limit of dead tasks.
    fn tell_queues(&self, book: &QueueBook, with_limit: &mut BTreeSet<QueueName>) {
        let limits = &self.metrics.failure_alert_threshold;
        let mut gone = std::mem::take(with_limit);
        // Queues with a limit get the first labels: beyond those there are, a queue's tasks are not counted by its name.
        for queue in book.iter().filter(|queue| queue.policy.failure_alert_threshold.is_some()) {
            let Some(threshold) = queue.policy.failure_alert_threshold.filter(|_| self.metrics.begin(&queue.name))
            else {
                continue;
            };
            limits.with_label_values(&[queue.name.as_str()]).set(threshold);
            gone.remove(&queue.name);
            with_limit.insert(queue.name.clone());
        }
        for queue in book.iter() {
            self.metrics.begin(&queue.name);
        }
        for queue in gone {
            // It was there; a second removal would not matter.
            let _ = limits.remove_label_values(&[queue.as_str()]);
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
