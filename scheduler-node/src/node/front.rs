//! What takes in requests: HTTP with its pages, messages, and rows that applications insert.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;

use super::Shared;
use crate::{
    audit::Audit,
    broker::Broker,
    config::DelayExchange,
    console,
    desk::Desk,
    http,
    intake::{amqp::AmqpIntake, sql::SqlIntake},
    loops::{nudger::Nudger, outcome::releaser::Releaser},
    oidc,
    receipt::Receipts,
    settings,
    supervise::{Crew, LoopKind},
};

impl Shared {
    /// Starts the intake of messages, and that of SQL for every database.
    pub(super) fn take_in_beside_http(
        &self,
        crew: &mut Crew,
        desk: &Desk,
        broker: &Broker,
        nudger: &Nudger,
        audit: Audit,
    ) {
        let amqp_intake = AmqpIntake {
            desk: desk.clone(),
            broker: broker.clone(),
            store: self.store.clone(),
            ways: self.config.delay_exchanges.iter().map(DelayExchange::way).collect(),
            default_exchange: self.config.amqp.default_exchange,
            audit,
            metrics: Arc::clone(&self.metrics),
            set_aside: self.set_aside.clone(),
        };
        crew.spawn(LoopKind::AmqpIntake, amqp_intake.run(broker.received(), self.stop.intake.clone()));
        for (index, _) in self.databases.indexed() {
            let sql_intake = SqlIntake {
                index,
                databases: self.databases.clone(),
                desk: desk.clone(),
                books: Arc::clone(&self.books),
                fitness: self.fitness.subscribe(),
                releaser: Releaser { nudger: nudger.clone() },
                metrics: Arc::clone(&self.metrics),
            };
            crew.spawn(LoopKind::SqlIntake, sql_intake.run(self.stop.intake.clone()));
        }
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
        let http_metrics = http::HttpMetrics::register(&self.registry, console::ROUTES)?;
        let authenticator = Arc::new(http::Authenticator::new(Arc::clone(&self.access)));
        let oidc = self.config.auth.oidc.clone().map(oidc::Provider::new).transpose()?;
        let pages = console::router(desk.clone(), Arc::clone(&authenticator), oidc, keys, &self.config.console);
        let router = http::router(desk, authenticator, limits, self.registry.clone(), http_metrics, pages);
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
