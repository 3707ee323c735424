//! What takes in requests over HTTP: the API and the pages.

use std::sync::Arc;

use anyhow::Context;
use common::limit::Limit;
use rustix::process::{Resource, getrlimit};
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

/// The open files that clients leave to the node: its connections to RabbitMQ and etcd, listeners, timers, its log and
/// what it reads again. A node uses some 30.
const OWN_FILES: u64 = 64;

/// The fewest client connections, so that probes and operators have some under any limit.
const CONNECTIONS_LEAST: usize = 8;

/// The open files of a database beside its pools: one connection to hear nudges, one to look at each of its servers.
const FILES_OF_A_DATABASE: u64 = 8;

/// The most client connections that the limit of open files allows beside what the node needs itself. Without files a
/// node could not open its own connections again.
fn connections_allowed(files: u64, pools: impl Iterator<Item = u32>) -> usize {
    let own = OWN_FILES + pools.map(|pool| u64::from(pool) + FILES_OF_A_DATABASE).sum::<u64>();
    usize::try_from(files.saturating_sub(own)).unwrap_or(usize::MAX).max(CONNECTIONS_LEAST)
}

impl Shared {
    fn connection_limits(&self) -> http::ConnectionLimits {
        let (all, per_address) = (self.config.http.max_connections, self.config.http.max_connections_per_address);
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let allowed = connections_allowed(files, self.config.databases.iter().map(|of| of.max_connections));
        if allowed < all {
            tracing::warn!(
                files,
                "the limit of open files allows {allowed} client connections at most, not the {all} of \
                 http.max_connections"
            );
        }
        http::ConnectionLimits::new(all.min(allowed), per_address.min(allowed))
    }

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
            certificate.register(&self.registry)?;
            crew.spawn(LoopKind::Http, Arc::clone(certificate).watch(self.stop.intake.clone()));
        }
        let server = http::Server {
            listener,
            certificate,
            limits: self.connection_limits(),
            metrics: http::ConnectionMetrics::register(&self.registry)?,
        };
        crew.spawn(LoopKind::Http, server.serve(router, self.stop.intake.clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_the_node_the_files_that_it_needs() {
        assert_eq!(connections_allowed(1_024, [20, 20].into_iter()), 1_024 - 64 - 2 * 28);
        assert_eq!(connections_allowed(64, [20].into_iter()), CONNECTIONS_LEAST);
        assert_eq!(connections_allowed(u64::MAX, [].into_iter()), usize::try_from(u64::MAX - 64).unwrap_or(usize::MAX));
    }
}
