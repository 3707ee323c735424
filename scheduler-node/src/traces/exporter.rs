//! Sends recorded spans to the collector: OTLP over HTTP, in protobuf, a batch at a time.
//!
//! While the collector is unreachable, spans are dropped and counted, and everything else goes on. If this loop
//! stops, spans are dropped as well.

use std::{collections::HashMap, time::Duration};

use common::ids::NodeId;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::TraceMetrics;
use crate::{config::Telemetry, supervise::at_work};

/// The most spans of one request.
const BATCH: usize = 512;

/// The time for which spans are gathered: long enough for a batch under load, short enough for a person who
/// waits for one.
const GATHER: Duration = Duration::from_secs(1);

/// The longest wait for the collector to take a batch. After that the batch is dropped.
const EXPORT_WITHIN: Duration = Duration::from_secs(5);

/// The time limit at a stop, once for a request that is under way and once for the remaining spans. Both end
/// before the node does.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// The reason why no span can be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot create an HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("`telemetry.otlp_endpoint` cannot be used")]
    Endpoint(#[source] ExporterBuildError),
    #[error("its metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

#[derive(Debug)]
pub struct Exporter {
    collector: SpanExporter,
    spans: mpsc::Receiver<SpanData>,
    metrics: TraceMetrics,
    /// Whether the collector takes no spans and this was logged.
    is_away: bool,
}

impl Exporter {
    pub(super) fn new(
        telemetry: &Telemetry,
        me: &NodeId,
        spans: mpsc::Receiver<SpanData>,
        metrics: TraceMetrics,
    ) -> Result<Self, Error> {
        let url = telemetry.traces_url().unwrap_or_default();
        let mut http = reqwest::Client::builder().timeout(EXPORT_WITHIN);
        if url.starts_with("http:") {
            // A machine without certificates can use plain HTTP all the same.
            http = http.tls_certs_only([]);
        }
        let headers: HashMap<String, String> = telemetry.headers().collect();
        let mut collector = SpanExporter::builder()
            .with_http()
            .with_http_client(http.build().map_err(Error::Client)?)
            .with_endpoint(url)
            .with_protocol(Protocol::HttpBinary)
            .with_headers(headers)
            .with_timeout(EXPORT_WITHIN)
            .build()
            .map_err(Error::Endpoint)?;
        collector.set_resource(&resource(&telemetry.service_name, me));
        Ok(Self { collector, spans, metrics, is_away: false })
    }

    /// Runs until told to stop; then sends the remaining spans.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while stop.run_until_cancelled(self.gather(&mut batch)).await.is_some() {
            self.export(std::mem::take(&mut batch), &stop).await;
        }
        self.spans.close();
        while let Ok(span) = self.spans.try_recv() {
            batch.push(span);
        }
        if self.is_away {
            self.metrics.dropped.inc_by(batch.len() as u64);
        } else if !batch.is_empty() {
            self.export(batch, &stop).await;
        }
    }

    /// Gathers spans until there is a batch, or for a while. When cancelled, it leaves the spans gathered so
    /// far in `batch`.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) {
        if self.spans.recv_many(batch, BATCH).await == 0 {
            // Every recorder is gone.
            return std::future::pending().await;
        }
        let more = async { while batch.len() < BATCH && self.spans.recv_many(batch, BATCH - batch.len()).await > 0 {} };
        // With or without the timeout, there is something to export.
        let _ = tokio::time::timeout(GATHER, more).await;
    }

    async fn export(&mut self, batch: Vec<SpanData>, stop: &CancellationToken) {
        let _work = at_work();
        let spans = batch.len() as u64;
        let stopping = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_WITHIN).await;
        };
        let sent = tokio::select! {
            sent = tokio::time::timeout(EXPORT_WITHIN, self.collector.export(batch)) => sent.ok(),
            () = stopping => None,
        };
        let error = match sent {
            Some(Ok(())) => {
                self.metrics.exported.inc_by(spans);
                if std::mem::take(&mut self.is_away) {
                    tracing::info!("the collector accepts spans again");
                }
                return;
            }
            Some(Err(error)) => error.to_string(),
            None => "it does not answer".to_owned(),
        };
        self.metrics.dropped.inc_by(spans);
        if !std::mem::replace(&mut self.is_away, true) {
            tracing::warn!(error, "the collector does not accept spans; dropping them until it does");
        }
    }
}

/// The resource that records: this node, with the attributes from `OTEL_RESOURCE_ATTRIBUTES`.
fn resource(service_name: &str, me: &NodeId) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", me.to_string()),
            KeyValue::new("duetime.node", me.name.as_str().to_owned()),
        ])
        .build()
}
