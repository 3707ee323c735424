//! Who takes part.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::{
    delayed_plugin, duetime, limit_postgres, limit_rabbit,
    program::Program,
    sorted_set, ttl_queue,
    work::{Order, Outcome, Work},
};

pub(super) const DUETIME: &str = "duetime";

#[derive(Clone, Debug)]
pub(super) enum Peer {
    Duetime,
    Program(Program),
    TtlQueue,
    DelayedPlugin,
    SortedSet,
    RawRabbit,
    RawPublish,
    RawInsert,
    RawUpdate,
}

/// The peers that `only` names, or all of them, without the limits of other works.
pub(super) fn chosen(only: &[String], works: &[Work], base: &Path) -> Result<Vec<Peer>> {
    let programs = Program::all(base).into_iter().map(Peer::Program);
    let own = [Peer::TtlQueue, Peer::DelayedPlugin, Peer::SortedSet];
    let limits = [Peer::RawRabbit, Peer::RawPublish, Peer::RawInsert, Peer::RawUpdate];
    let mut all: Vec<Peer> = [Peer::Duetime].into_iter().chain(programs).chain(own).chain(limits).collect();
    for name in only {
        let names: Vec<&str> = all.iter().map(Peer::name).collect();
        ensure!(names.contains(&name.as_str()), "there is no peer {name}; there are {}", names.join(", "));
    }
    all.retain(|peer| only.is_empty() || only.iter().any(|name| name == peer.name()));
    all.retain(|peer| works.iter().any(|work| peer.limits(*work)));
    ensure!(!all.is_empty(), "none of these peers does any of these works");
    Ok(all)
}

impl Peer {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Duetime => DUETIME,
            Self::Program(program) => &program.name,
            Self::TtlQueue => "ttl-queue",
            Self::DelayedPlugin => "delayed-plugin",
            Self::SortedSet => "sorted-set",
            Self::RawRabbit => "raw-rabbitmq",
            Self::RawPublish => "raw-rabbitmq-publish",
            Self::RawInsert => "raw-postgresql-insert",
            Self::RawUpdate => "raw-postgresql-update",
        }
    }

    /// What one store does alone.
    pub(super) fn is_limit(&self) -> bool {
        matches!(self, Self::RawRabbit | Self::RawPublish | Self::RawInsert | Self::RawUpdate)
    }

    /// Whether the work says something about this store. A scheduler gets each work, and answers for itself.
    pub(super) fn limits(&self, work: Work) -> bool {
        match self {
            Self::RawPublish | Self::RawUpdate => work == Work::Throughput,
            Self::RawInsert => matches!(work, Work::Throughput | Work::Submit),
            _ => true,
        }
    }

    /// Fetches what it needs.
    pub(super) async fn install(&self) -> Result<()> {
        match self {
            Self::Program(program) => program.install().await,
            Self::DelayedPlugin => match delayed_plugin::file() {
                Ok(_) => Ok(()),
                Err(why) => bail!(why),
            },
            _ => Ok(()),
        }
    }

    pub(super) async fn run(&self, order: &Order) -> Result<Outcome> {
        match self {
            Self::Duetime => duetime::run(order).await,
            Self::Program(program) => program.run(order).await,
            Self::TtlQueue => ttl_queue::run(order).await,
            Self::DelayedPlugin => delayed_plugin::run(order).await,
            Self::SortedSet => sorted_set::run(order).await,
            Self::RawRabbit => limit_rabbit::run(order).await,
            Self::RawPublish => limit_rabbit::run_publish(order).await,
            Self::RawInsert => limit_postgres::run_insert(order).await,
            Self::RawUpdate => limit_postgres::run_update(order).await,
        }
    }
}
