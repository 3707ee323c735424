//! What is asked of the lateness of a stream, by its rate.

/// The most milliseconds, and the most times as late as RabbitMQ alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub published_p50_ms: Option<f64>,
    pub published_p99_ms: Option<f64>,
    pub published_max_ms: Option<f64>,
    pub consumed_p99_ms: Option<f64>,
    pub times_raw_p99: Option<f64>,
}

/// A usual rate: a consumer hardly notices that the tasks waited in Duetime.
const AT_2_000: Limits = Limits {
    published_p50_ms: Some(1.0),
    published_p99_ms: Some(2.0),
    consumed_p99_ms: Some(12.0),
    times_raw_p99: Some(1.2),
    ..NONE
};

/// A rate at which both cores of a small machine are almost busy, and wait for the disk together.
const AT_6_000: Limits = Limits { published_p99_ms: Some(8.0), published_max_ms: Some(100.0), ..NONE };

const NONE: Limits = Limits {
    published_p50_ms: None,
    published_p99_ms: None,
    published_max_ms: None,
    consumed_p99_ms: None,
    times_raw_p99: None,
};

impl Limits {
    pub(super) const fn of(per_second: u32) -> Self {
        match per_second {
            2_000 => AT_2_000,
            6_000 => AT_6_000,
            _ => NONE,
        }
    }
}
