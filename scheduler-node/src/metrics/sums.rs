//! Sums of this node's metrics, for a reader without Prometheus.

use std::collections::BTreeMap;

use prometheus::core::Collector;

use super::families::Metrics;

/// The lateness of this node's publishes over all queues since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    pub published: u64,
    /// Half of all publishes were no later. `None`: nothing was published.
    pub p50_s: Option<f64>,
    pub p99_s: Option<f64>,
}

impl Metrics {
    pub fn lateness(&self) -> Lateness {
        let families = self.lateness.collect();
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        let mut published = 0;
        for metric in families.iter().flat_map(|family| family.get_metric()) {
            let histogram = metric.get_histogram();
            published += histogram.get_sample_count();
            for (index, bucket) in histogram.get_bucket().iter().enumerate() {
                let (bound, count) = (bucket.upper_bound(), bucket.cumulative_count());
                match buckets.get_mut(index) {
                    Some((_, so_far)) => *so_far += count,
                    None => buckets.push((bound, count)),
                }
            }
        }
        let of = |share| quantile(&buckets, published, share);
        Lateness { published, p50_s: of(0.5), p99_s: of(0.99) }
    }

    /// Tasks that this node brought to a final state since it started, by queue. Queues without a label of their
    /// own are counted together as `other`.
    pub fn finished_by_queue(&self) -> BTreeMap<String, u64> {
        let mut finished = BTreeMap::new();
        for metric in self.finished.collect().iter().flat_map(|family| family.get_metric()) {
            let queue = metric.get_label().iter().find(|label| label.name() == "queue").map(|label| label.value());
            *finished.entry(queue.unwrap_or_default().to_owned()).or_default() +=
                metric.get_counter().get_value() as u64;
        }
        finished
    }
}

/// The upper bound of the bucket that reaches this share of all, so never better than the real value. Beyond the
/// last bucket, its bound.
fn quantile(buckets: &[(f64, u64)], count: u64, share: f64) -> Option<f64> {
    let last = buckets.last().filter(|_| count > 0)?;
    let rank = (count as f64 * share).ceil() as u64;
    let bucket = buckets.iter().find(|(_, cumulative)| *cumulative >= rank).unwrap_or(last);
    Some(bucket.0)
}

#[cfg(test)]
mod tests {
    use common::ids::QueueName;
    use prometheus::Registry;

    use super::*;

    #[test]
    fn lateness_is_read_over_all_queues() {
        let metrics = Metrics::register(&Registry::new()).expect("a fresh registry takes them");
        assert_eq!(metrics.lateness(), Lateness::default());
        for _ in 0..98 {
            metrics.late_by(&QueueName::new("a"), [0.000_9]);
        }
        for _ in 0..2 {
            metrics.late_by(&QueueName::new("b"), [0.04]);
        }
        let lateness = metrics.lateness();
        assert_eq!((lateness.published, lateness.p50_s, lateness.p99_s), (100, Some(0.001), Some(0.05)));
        metrics.late_by(&QueueName::new("b"), [1e9]);
        assert_eq!(quantile(&[(1.0, 1), (2.0, 1)], 2, 1.0), Some(2.0), "beyond the last bucket");
    }

    #[test]
    fn what_finished_is_summed() {
        let metrics = Metrics::register(&Registry::new()).expect("a fresh registry takes them");
        metrics.finished(&QueueName::new("a"), "succeeded", 2);
        metrics.finished(&QueueName::new("b"), "dead", 3);
        let by_queue = metrics.finished_by_queue();
        assert_eq!(by_queue.values().sum::<u64>(), 5);
        assert_eq!((by_queue.get("a"), by_queue.get("b"), by_queue.get("c")), (Some(&2), Some(&3), None));
    }
}
