//! Reads the gauges that no event moves: how much is held, how full the pools are, which alert limits queues have
//! set, and which loops are stalled.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{ids::QueueName, queue::QueueBook};
use tokio_util::sync::CancellationToken;

use self::servers::Servers;
use super::queue_reader::Books;
use crate::{
    metrics::Metrics,
    store::{Connections, PoolKind},
    supervise::{LoopKind, Pulse, at_work},
    working_set::{database::NodeDatabases, lanes::Lanes},
};

mod servers;

const READ_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Gauges {
    pub databases: NodeDatabases,
    pub lanes: Arc<Lanes>,
    pub books: Books,
    pub metrics: Arc<Metrics>,
    pub pulse: Pulse,
}

impl Gauges {
    pub async fn run(self, stop: CancellationToken) {
        let mut with_limit = BTreeSet::new();
        let mut known = None;
        let mut servers = Servers::default();
        loop {
            {
                let _work = at_work();
                self.read();
                servers.read(&self.databases, &self.metrics);
                let book = self.books.load_full();
                if known != Some(book.revision()) {
                    known = Some(book.revision());
                    self.tell_queues(&book, &mut with_limit);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(READ_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn read(&self) {
        let mut oldest_s: f64 = 0.0;
        for database in self.databases.all().iter() {
            let name = database.name().as_str();
            self.metrics.heap_entries.with_label_values(&[name]).set(gauge(database.owned_shards.heap_len()));
            self.metrics.in_flight.with_label_values(&[name]).set(gauge(database.owned_shards.in_flight()));
            for kind in PoolKind::ALL {
                let Connections { open, idle, most } = database.sql.connections(kind);
                let pool = kind.text();
                self.metrics.pool_connections.with_label_values(&[name, pool, "open"]).set(i64::from(open));
                self.metrics.pool_connections.with_label_values(&[name, pool, "idle"]).set(gauge(idle));
                self.metrics.pool_connections_max.with_label_values(&[name, pool]).set(i64::from(most));
            }
            oldest_s = oldest_s.max(self.metrics.overdue_s.with_label_values(&[name]).get());
        }
        self.metrics.oldest_overdue_s.set(oldest_s);
        let stalled = self.pulse.stalled(Instant::now());
        for kind in LoopKind::ALL {
            self.metrics.loop_stalled.with_label_values(&[kind.text()]).set(i64::from(stalled.contains(&kind)));
        }
        self.metrics.lanes_closed.set(gauge(self.lanes.closed(Instant::now()).len()));
    }

    /// Sets each queue's own alert limit of dead tasks, and begins the queue's series, from which alerts count.
    fn tell_queues(&self, book: &QueueBook, with_limit: &mut BTreeSet<QueueName>) {
        let limits = &self.metrics.failure_alert_threshold;
        let mut gone = std::mem::take(with_limit);
        // Queues with a limit get labels first. Beyond the number of labels, a queue's tasks are not counted by its
        // name.
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
            // The label exists; a second removal would do no harm.
            let _ = limits.remove_label_values(&[queue.as_str()]);
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::desk::tests::fresh;

    #[tokio::test]
    async fn a_reading_is_a_unit_of_work_and_tells_the_size_of_each_pool() {
        let (counter, _test) = fresh().await;
        let (pulse, metrics) = (Pulse::default(), Metrics::register(&Registry::new()).unwrap());
        let metrics = Arc::new(metrics);
        let gauges = Gauges {
            databases: counter.databases.clone(),
            lanes: Arc::default(),
            books: Arc::clone(&counter.books),
            metrics: Arc::clone(&metrics),
            pulse: pulse.clone(),
        };
        let stop = CancellationToken::new();
        stop.cancel();
        pulse.run(LoopKind::Gauges, gauges.run(stop)).await;
        assert_eq!(pulse.begun(), 1);
        assert_eq!(pulse.stalled(Instant::now() + Duration::from_secs(1_000)), BTreeSet::new());
        let most = |pool: PoolKind| metrics.pool_connections_max.with_label_values(&["main", pool.text()]).get();
        assert_eq!(PoolKind::ALL.map(most), [6, 3, 3]);
    }
}
