//! What load and faults share: the cluster, the seed, and which parts are broken at the moment.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::{Connection, PgConnection};

use crate::{
    ledger::Ledger,
    sandbox::{Sandbox, fresh},
};

/// The limit for a new connection to a database: a frozen server takes it and says nothing.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) sandbox: Sandbox,
    pub(super) seed: u64,
    over: AtomicBool,
    etcd_snapshot: PathBuf,
}

impl Stage {
    pub(super) fn new(sandbox: Sandbox, seed: u64) -> Self {
        Self { sandbox, seed, over: AtomicBool::new(false), etcd_snapshot: fresh("etcd-snapshot").join("db") }
    }

    /// Saves what a fault puts back later.
    pub(super) async fn save(&self) -> Result<()> {
        self.sandbox.etcd().save(&self.etcd_snapshot).await
    }

    /// What etcd held when the load began.
    pub(super) fn etcd_snapshot(&self) -> &Path {
        &self.etcd_snapshot
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.sandbox.ledger
    }

    /// Whether the load is to end.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// The random choices of one part of the run.
    pub(super) fn random(&self, part: &str, turn: u64) -> StdRng {
        let salt = part.bytes().fold(turn, |salt, byte| salt.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
        StdRng::seed_from_u64(self.seed ^ salt)
    }

    /// A connection to the server that takes the writes of a database.
    pub(super) async fn primary(&self, database: usize) -> Result<PgConnection> {
        for url in self.sandbox.server_urls(database) {
            let connecting = async {
                let mut connection = PgConnection::connect(&url).await?;
                let is_standby: bool =
                    sqlx::query_scalar("SELECT pg_is_in_recovery()").fetch_one(&mut connection).await?;
                Ok::<_, sqlx::Error>((connection, is_standby))
            };
            if let Ok(Ok((connection, false))) = tokio::time::timeout(CONNECTED_WITHIN, connecting).await {
                return Ok(connection);
            }
        }
        None.with_context(|| format!("no server of database {database} takes writes"))
    }
}

/// A random time in this range.
pub(super) fn between(random: &mut StdRng, least_ms: u64, most_ms: u64) -> Duration {
    Duration::from_millis(random.random_range(least_ms..=most_ms))
}
