//! Metrics of requests and connections.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

use super::{ROUTES, Route};

/// The route label of a request that matched no route.
const NO_ROUTE: &str = "none";

/// The class of a request that ended without an answer, as when its client hangs up.
const UNANSWERED: &str = "499";

/// Counts requests by route pattern, so that the number of series does not depend on tasks and queues.
#[derive(Clone, Debug)]
pub(crate) struct HttpMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
}

impl HttpMetrics {
    /// `pages`: the routes beside those of the API.
    pub(crate) fn register(registry: &Registry, pages: &[Route]) -> prometheus::Result<Self> {
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new("duetime_http_requests_total", "requests, by route, method and status class"),
                &["route", "method", "status"],
            )?,
            seconds: HistogramVec::new(
                HistogramOpts::new(
                    "duetime_http_request_duration_seconds",
                    "time from the head of a request to the head of its answer",
                )
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0]),
                &["route", "method"],
            )?,
        };
        crate::internal::register(registry)?;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        for Route { method, path, .. } in ROUTES.iter().chain(pages) {
            let _ = metrics.seconds.with_label_values(&[path, method.as_str()]);
            for class in ["2xx", "4xx", UNANSWERED, "5xx"] {
                let _ = metrics.requests.with_label_values(&[path, method.as_str(), class]);
            }
        }
        Ok(metrics)
    }

    pub(super) fn answered(&self, route: Option<&str>, method: &Method, status: StatusCode, took: Duration) {
        let route = route.unwrap_or(NO_ROUTE);
        let method = bounded(method);
        self.requests.with_label_values(&[route, method, class(status)]).inc();
        self.seconds.with_label_values(&[route, method]).observe(took.as_secs_f64());
    }

    pub(super) fn unanswered(&self, route: Option<&str>, method: &Method) {
        self.requests.with_label_values(&[route.unwrap_or(NO_ROUTE), bounded(method), UNANSWERED]).inc();
    }
}

/// The label of a method. A client may invent methods; each must not become a label.
fn bounded(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        ..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

/// Which limit of connections is reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReachedLimit {
    All,
    Address,
}

impl ReachedLimit {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Address => "address",
        }
    }
}

/// The missed deadline that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissedDeadline {
    /// The head of a request.
    Head,
    /// The next request.
    Idle,
    /// The client's reading of an answer.
    Write,
}

impl MissedDeadline {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Idle => "idle",
            Self::Write => "write",
        }
    }
}

/// Counts open connections, refused and replaced ones, and those ended because they made no progress.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionMetrics {
    open: IntGauge,
    refused: IntCounterVec,
    replaced: IntCounterVec,
    ended: IntCounterVec,
}

impl ConnectionMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            open: IntGauge::new("duetime_http_connections", "open client connections")?,
            refused: IntCounterVec::new(
                Opts::new(
                    "duetime_http_connections_refused_total",
                    "client connections refused, by the limit that is reached",
                ),
                &["reason"],
            )?,
            replaced: IntCounterVec::new(
                Opts::new(
                    "duetime_http_connections_replaced_total",
                    "idle client connections closed for a new one, by the limit that is reached",
                ),
                &["reason"],
            )?,
            ended: IntCounterVec::new(
                Opts::new(
                    "duetime_http_connections_ended_total",
                    "client connections closed because they stalled, by phase",
                ),
                &["reason"],
            )?,
        };
        registry.register(Box::new(metrics.open.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.replaced.clone()))?;
        registry.register(Box::new(metrics.ended.clone()))?;
        for reached in [ReachedLimit::All, ReachedLimit::Address] {
            let _ = metrics.refused.with_label_values(&[reached.text()]);
            let _ = metrics.replaced.with_label_values(&[reached.text()]);
        }
        for ended in [MissedDeadline::Head, MissedDeadline::Idle, MissedDeadline::Write] {
            let _ = metrics.ended.with_label_values(&[ended.text()]);
        }
        Ok(metrics)
    }

    pub(super) fn open(&self, count: usize) {
        self.open.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn refused(&self, reached: ReachedLimit) {
        self.refused.with_label_values(&[reached.text()]).inc();
    }

    pub(super) fn replaced(&self, reached: ReachedLimit) {
        self.replaced.with_label_values(&[reached.text()]).inc();
    }

    pub(super) fn ended(&self, ended: MissedDeadline) {
        self.ended.with_label_values(&[ended.text()]).inc();
    }
}
