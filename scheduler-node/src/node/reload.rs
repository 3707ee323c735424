//! Takes over a configuration that was read again while the node runs.

use std::sync::Arc;

use common::ids::DatabaseName;

use super::{Node, Shared};
use crate::{
    access::Access,
    broker::Broker,
    clock,
    config::{self, Config, DelayExchange, Difference},
    loops::upkeep::config_reader::Reading,
    metrics::Metrics,
    settings,
    telemetry::LogFilter,
    working_set::{
        delay_rules::{DelayRule, DelayRules},
        lanes::Lanes,
    },
};

/// The parts of a node that follow its configuration.
#[derive(Debug)]
pub(super) struct Reloader {
    in_force: Config,
    /// The file as it was read last without a mistake. A database that joins has its section here.
    last_read: Config,
    access: Arc<Access>,
    broker: Broker,
    delay_rules: DelayRules,
    lanes: Arc<Lanes>,
    log: LogFilter,
    metrics: Arc<Metrics>,
}

impl Reloader {
    pub(super) fn new(shared: &Shared, broker: &Broker, log: LogFilter) -> Self {
        shared.metrics.config_reloaded(true, clock::now());
        Self {
            in_force: shared.config.clone(),
            last_read: shared.config.clone(),
            access: Arc::clone(&shared.access),
            broker: broker.clone(),
            delay_rules: shared.delay_rules.clone(),
            lanes: Arc::clone(&shared.lanes),
            log,
            metrics: Arc::clone(&shared.metrics),
        }
    }

    /// Puts in force what needs no restart, and names the rest. Returns the databases that have not joined yet. `None`:
    /// the file has a mistake, and nothing changes.
    fn take_over(&mut self, reading: Reading) -> Option<Vec<config::Database>> {
        let read = match reading {
            Ok(read) => read,
            Err(mistakes) => {
                tracing::error!("the configuration that was read again changes nothing: {mistakes}");
                self.metrics.config_reloaded(false, clock::now());
                return None;
            }
        };
        let difference = Difference::between(&self.in_force, &read);
        if difference.log
            && let Err(error) = self.log.set(&read.telemetry.log)
        {
            tracing::error!(error = &error as &dyn std::error::Error, "the log keeps its filter");
        }
        self.put_in_force(&difference, &read);
        if !difference.restart.is_empty() {
            let keys = difference.restart.join(", ");
            tracing::warn!(keys, "changed keys take effect after a restart: {keys}");
        }
        if difference.is_empty() {
            tracing::info!("the configuration was read again and has not changed");
        }
        self.in_force.take_over(&read, &difference);
        self.last_read = read;
        self.metrics.config_reloaded(true, clock::now());
        Some(difference.added_databases)
    }

    /// Notes that a database of the last reading has joined this node.
    pub(super) fn joined(&mut self, name: &DatabaseName) {
        self.in_force.add_database(&self.last_read, name);
    }

    fn put_in_force(&self, difference: &Difference, read: &Config) {
        if difference.log {
            tracing::info!("log filter: {}", read.telemetry.log);
        }
        if difference.tokens {
            self.access.configure(&read.auth.token);
            tracing::info!("tokens: {} in force", read.auth.token.len());
        }
        if difference.delay_exchanges {
            // The rules go first: a message of a new exchange then has one.
            for queue in self.delay_rules.replace(rules(&read.delay_exchanges)) {
                self.lanes.open(&queue);
            }
            self.broker.set_delay_exchanges(settings::delay_exchanges(&read.delay_exchanges));
            tracing::info!("delay exchanges: {} in force", read.delay_exchanges.len());
        }
    }
}

impl Node {
    pub(super) fn reload(&mut self, reading: Reading) {
        if let Some(added) = self.reloader.take_over(reading) {
            self.add_databases(added);
        }
    }
}

/// The rules of these delay exchanges.
pub(super) fn rules(exchanges: &[DelayExchange]) -> impl Iterator<Item = DelayRule> {
    exchanges.iter().map(|of| DelayRule { exchange: of.name.clone(), route: of.way(), unroutable: of.unroutable })
}
