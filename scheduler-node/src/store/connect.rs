//! How a pool of connections to one database is made.

use std::{str::FromStr, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    ConnectOptions, Connection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

/// A caller that waits longer for a free connection is told that the database is not available.
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(2);

/// Connections are renewed this often, so that one whose peer died silently does not keep its place for long.
const MAX_LIFETIME: Duration = Duration::from_secs(600);

/// Bounds on the server's side, so that no client-side timeout has to abandon a statement half way.
const SERVER_BOUNDS: [(&str, &str); 6] = [
    ("statement_timeout", "5s"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("tcp_user_timeout", "10s"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "5"),
];

/// Every statement is driven from a list of ids or shards into an index. While a table is young its statistics say that it
/// is empty, and a plan made then (a scan of the whole table, hashed) is kept by the connection after it has grown: claims of 500 tasks
/// took 120 ms instead of 15. So nodes allow only the plans the statements were written for, and plan each once.
pub(super) const PLANS: [(&str, &str); 5] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

#[derive(Clone, Debug)]
pub struct Options {
    pub url: SecretString,
    pub max_connections: u32,
    /// Shown by the server beside each session: the node and its incarnation.
    pub application_name: String,
}

impl Options {
    /// What is wrong with the url, if anything.
    pub fn check(&self) -> Result<(), sqlx::Error> {
        PgConnectOptions::from_str(self.url.expose_secret()).map(|_| ())
    }

    pub(super) fn connection(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(self.url.expose_secret())
            .expect("the url was checked when the configuration was read")
            .application_name(&self.application_name)
            .options(SERVER_BOUNDS)
            .options(PLANS)
    }

    /// One connection, with all the time a migration needs.
    pub(super) fn migration_pool(&self) -> PgPool {
        let connection = PgConnectOptions::from_str(self.url.expose_secret())
            .expect("the url was checked when the configuration was read")
            .application_name("duetime migrate")
            .options([("lock_timeout", "10s")]);
        PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(10)).connect_lazy_with(connection)
    }

    /// One plain connection, closed again: a pool would only say that time ran out, not why.
    pub(super) async fn reach(&self) -> Result<(), sqlx::Error> {
        let options = self.connection();
        let connection = tokio::time::timeout(ACQUIRE_DEADLINE, options.connect())
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        connection.close().await
    }

    pub(super) fn pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(self.max_connections)
            .acquire_timeout(ACQUIRE_DEADLINE)
            .max_lifetime(MAX_LIFETIME)
            // A round trip before each statement would show in the lateness; a dead connection shows at its next use.
            .test_before_acquire(false)
            .connect_lazy_with(self.connection())
    }
}
