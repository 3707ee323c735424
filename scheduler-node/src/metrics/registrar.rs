//! Makes a metric and registers it in one step.

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Makes and registers a metric in one step.
pub(super) struct Registrar<'a> {
    pub(super) registry: &'a Registry,
}

impl Registrar<'_> {
    fn keep<T: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<T>,
    ) -> prometheus::Result<T> {
        let made = made?;
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.keep(IntCounter::new(name, help))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.keep(IntGauge::new(name, help))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn float_gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.keep(Gauge::new(name, help))
    }

    pub(super) fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.keep(GaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<HistogramVec> {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), &["queue"]))
    }
}
