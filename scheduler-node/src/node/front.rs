//! What takes in requests over HTTP: the API and the pages.

use std::sync::Arc;

use anyhow::Context;
use common::limit::Limit;
use tokio::net::TcpListener;

use super::Shared;
use crate::{
    console,
    desk::Desk,
    http, oidc,
    receipt::Receipts,
    settings,
    supervise::{Crew, LoopKind},
};

impl Shared {
    /// Serves the API and the console on `listener`.
    pub(super) fn serve(
        &self,
        crew: &mut Crew,
        desk: Desk,
        keys: Receipts,
        listener: TcpListener,
    ) -> anyhow::Result<()> {
        let limits =
            http::Limits::of_payload(self.config.queues.max_payload_bytes, self.config.http.max_requests_per_second);
        let shares = http::Shares::new(limits, desk.limited(Limit::TokenRequests));
        let http_metrics = http::HttpMetrics::register(&self.registry, console::ROUTES)?;
        let authenticator = Arc::new(http::Authenticator::new(Arc::clone(&self.access)));
        let oidc = self.config.auth.oidc.clone().map(oidc::Provider::new).transpose()?;
        let config = &self.config.console;
        let pages = console::router(desk.clone(), Arc::clone(&authenticator), oidc, keys, shares.clone(), config);
        let router = http::router(desk, authenticator, shares, self.registry.clone(), http_metrics, pages);
        let certificate = settings::certificate(&self.config.http).context("cannot use http.cert_file")?;
        if let Some(certificate) = &certificate {
            crew.spawn(LoopKind::Http, Arc::clone(certificate).watch(self.stop.intake.clone()));
        }
        let server = http::Server {
            listener,
            certificate,
            limits: http::ConnectionLimits::new(
                self.config.http.max_connections,
                self.config.http.max_connections_per_address,
            ),
            metrics: http::ConnectionMetrics::register(&self.registry)?,
        };
        crew.spawn(LoopKind::Http, server.serve(router, self.stop.intake.clone()));
        Ok(())
    }
}
