//! The metrics of the broker's connections.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Registry};

#[derive(Debug)]
pub struct BrokerMetrics {
    pub up: IntGauge,
    pub blocked: IntGauge,
    pub confirm_seconds: Histogram,
    pub reconnects: IntCounter,
}

impl BrokerMetrics {
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        // The range reaches from a broker on the same machine to the deadline of a confirm.
        let buckets = vec![0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];
        let confirm = HistogramOpts::new(
            "duetime_broker_confirm_seconds",
            "Time from writing a batch to the socket until its last confirm",
        );
        let metrics = Self {
            up: IntGauge::new("duetime_broker_up", "1 while the node is connected to the broker")?,
            blocked: IntGauge::new("duetime_broker_blocked", "1 while the broker blocks the connection")?,
            confirm_seconds: Histogram::with_opts(confirm.buckets(buckets))?,
            reconnects: IntCounter::new("duetime_broker_reconnects_total", "Connections re-established after a loss")?,
        };
        registry.register(Box::new(metrics.up.clone()))?;
        registry.register(Box::new(metrics.blocked.clone()))?;
        registry.register(Box::new(metrics.confirm_seconds.clone()))?;
        registry.register(Box::new(metrics.reconnects.clone()))?;
        Ok(metrics)
    }
}
