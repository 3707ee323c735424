//! The metrics behind the alerts about the cluster's coordination.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus::{
    Gauge, IntCounter, IntGauge, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The coordination's series; every one exists from the start.
#[derive(Debug)]
pub struct CoordinationMetrics {
    renewal_age: Age,
    view_age: Age,
    /// 1 on the master.
    pub master: IntGauge,
    /// 1 on a node that an operator has drained.
    pub drained: IntGauge,
    /// Shards whose fence this node holds.
    pub shards_owned: IntGauge,
    /// Shards of the whole cluster that no node claims to own, and shards that this node claims without holding
    /// the fence.
    pub shards_unowned: IntGauge,
    pub acquisitions: IntCounter,
    pub releases: IntCounter,
    /// Members that both witnesses called ended in one look.
    pub suspicions: IntCounter,
    /// Leases of ended processes that this node revoked.
    pub revocations: IntCounter,
    /// Missing answers of etcd, one for each endpoint tried.
    pub request_failures: IntCounter,
    /// 0 while etcd answers and refuses writes; 1 until it has refused one.
    pub etcd_writable: IntGauge,
}

impl CoordinationMetrics {
    pub fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let metrics = Self {
            renewal_age: Age::new("duetime_lease_renewal_age_seconds", "time since the lease was renewed")?,
            view_age: Age::new(
                "duetime_etcd_view_age_seconds",
                "time since etcd last confirmed this node's view of the cluster",
            )?,
            master: IntGauge::new("duetime_master", "1 while this node is the master")?,
            drained: IntGauge::new("duetime_drained", "1 while this node is drained: it owns no shards")?,
            shards_owned: IntGauge::new("duetime_shards_owned", "shards whose fence this node holds")?,
            shards_unowned: IntGauge::new(
                "duetime_shards_unowned",
                "shards without an owner in this node's view, plus those whose owner key this node holds without \
                 the open fence of their database",
            )?,
            acquisitions: IntCounter::new("duetime_shard_acquisitions_total", "fences taken by this node")?,
            releases: IntCounter::new("duetime_shard_releases_total", "shards handed over by this node")?,
            suspicions: IntCounter::new(
                "duetime_member_suspicions_total",
                "members whose session was gone and whose port was refused, in one look of this node",
            )?,
            revocations: IntCounter::new(
                "duetime_lease_revocations_total",
                "leases of ended processes that this node revoked before they ran out",
            )?,
            request_failures: IntCounter::new(
                "duetime_etcd_request_failures_total",
                "requests that an endpoint of etcd did not answer",
            )?,
            etcd_writable: IntGauge::new("duetime_etcd_writable", "0 while etcd answers and refuses writes")?,
        };
        metrics.etcd_writable.set(1);
        registry.register(Box::new(metrics.renewal_age.clone()))?;
        registry.register(Box::new(metrics.view_age.clone()))?;
        registry.register(Box::new(metrics.master.clone()))?;
        registry.register(Box::new(metrics.drained.clone()))?;
        registry.register(Box::new(metrics.shards_owned.clone()))?;
        registry.register(Box::new(metrics.shards_unowned.clone()))?;
        registry.register(Box::new(metrics.acquisitions.clone()))?;
        registry.register(Box::new(metrics.releases.clone()))?;
        registry.register(Box::new(metrics.suspicions.clone()))?;
        registry.register(Box::new(metrics.revocations.clone()))?;
        registry.register(Box::new(metrics.request_failures.clone()))?;
        registry.register(Box::new(metrics.etcd_writable.clone()))?;
        Ok(Arc::new(metrics))
    }

    /// Notes that the lease was renewed at `at`. Before the first renewal, the age counts from the start of the node.
    pub fn renewed(&self, at: Instant) {
        *self.renewal_age.last.lock() = at;
    }

    /// Notes that the mirror shows etcd's state of `at` or later.
    pub fn confirmed(&self, at: Instant) {
        *self.view_age.last.lock() = at;
    }

    /// The time since etcd last confirmed the mirror's picture; before the first time, since the start of the node.
    pub fn view_age(&self) -> Duration {
        self.view_age.last.lock().elapsed()
    }
}

/// A gauge that grows by itself, so that it shows a loop that hangs as well as one that fails.
#[derive(Clone, Debug)]
struct Age {
    last: Arc<Mutex<Instant>>,
    gauge: Gauge,
}

impl Age {
    fn new(name: &str, help: &str) -> prometheus::Result<Self> {
        Ok(Self { last: Arc::new(Mutex::new(Instant::now())), gauge: Gauge::new(name, help)? })
    }
}

impl Collector for Age {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(self.last.lock().elapsed().as_secs_f64());
        self.gauge.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_exists_from_the_start_and_ages_grow_by_themselves() {
        let registry = Registry::new();
        let metrics = CoordinationMetrics::register(&registry).unwrap();
        let before = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        metrics.renewed(before);
        metrics.confirmed(before);
        assert!(metrics.view_age() >= Duration::from_secs(7));
        let families = registry.gather();
        let age = families.iter().find(|family| family.name() == "duetime_lease_renewal_age_seconds").unwrap();
        assert!(age.get_metric()[0].get_gauge().get_value() >= 7.0);
        assert_eq!(families.len(), 12);
    }
}
