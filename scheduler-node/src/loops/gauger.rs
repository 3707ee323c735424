//! Reads the gauges that no event moves: how much is held, how full the pools are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{lanes::Lanes, site::Sites};
use crate::metrics::Metrics;

const READ_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Gauger {
    pub sites: Sites,
    pub lanes: Arc<Lanes>,
    pub metrics: Arc<Metrics>,
}

impl Gauger {
    pub async fn run(self, stop: CancellationToken) {
        loop {
            self.read();
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
        self.metrics.lanes_closed.set(gauge(self.lanes.closed(Instant::now()).len()));
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
