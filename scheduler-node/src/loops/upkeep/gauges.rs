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
        let mut known = Arc::<QueueBook>::default();
        let mut servers = Servers::default();
        loop {
            {
                let _work = at_work();
                self.read();
                servers.read(&self.databases, &self.metrics);
                let book = self.books.load_full();
                if known.revision() != book.revision() {
                    self.tell_queues(&book, &known, &mut with_limit);
                    known = book;
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

    /// Begins the series of each queue, from which alerts count, with its own alert limit of dead tasks. Ends those
    /// of queues that only the book before has.
    fn tell_queues(&self, book: &QueueBook, before: &QueueBook, with_limit: &mut BTreeSet<QueueName>) {
        for queue in book.since(before).1 {
            self.metrics.end_queue(&queue);
        }
        let mut gone = std::mem::take(with_limit);
        // Queues with a limit get labels first. Beyond the number of labels, a queue's tasks are not counted by its
        // name.
        for queue in book.iter() {
            let Some(threshold) = queue.policy.failure_alert_threshold else { continue };
            self.metrics.begin_alerting_queue(&queue.name, threshold);
            gone.remove(&queue.name);
            with_limit.insert(queue.name.clone());
        }
        for queue in book.iter() {
            self.metrics.begin_queue(&queue.name);
        }
        for queue in gone {
            // A deleted queue has no such series any more.
            let _ = self.metrics.failure_alert_threshold.remove_label_values(&[queue.as_str()]);
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use common::queue::Queue;
    use prometheus::{Registry, core::Collector};

    use super::*;
    use crate::{desk::tests::fresh, store::Places};

    #[test]
    fn the_series_of_a_queue_end_with_it_and_those_of_its_limit_with_the_limit() {
        let metrics = Arc::new(Metrics::register(&Registry::new()).unwrap());
        let gauges = Gauges {
            databases: NodeDatabases::new(Vec::new(), Places::new(std::iter::empty().collect())),
            lanes: Arc::default(),
            books: Books::default(),
            metrics: Arc::clone(&metrics),
            pulse: Pulse::default(),
        };
        let mut queue = Queue::with_defaults(QueueName::new("mails"));
        let without = QueueBook::new(2, [queue.clone()]);
        queue.policy.failure_alert_threshold = Some(5);
        let with = QueueBook::new(1, [queue]);
        let deleted = QueueBook::new(3, []);
        let limits = || metrics.failure_alert_threshold.collect()[0].get_metric().len();
        let is_counted = || metrics.finished_by_queue().contains_key("mails");
        let mut with_limit = BTreeSet::new();
        gauges.tell_queues(&with, &QueueBook::default(), &mut with_limit);
        assert_eq!((limits(), is_counted()), (1, true));
        gauges.tell_queues(&without, &with, &mut with_limit);
        assert_eq!((limits(), is_counted()), (0, true));
        gauges.tell_queues(&with, &without, &mut with_limit);
        gauges.tell_queues(&deleted, &with, &mut with_limit);
        assert_eq!((limits(), is_counted()), (0, false));
    }

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
