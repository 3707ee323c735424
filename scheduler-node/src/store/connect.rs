//! How to connect to the servers of one database.

use std::{str::FromStr, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    Executor, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::{PoolKind, entrance::Entrance};
use crate::address::{self, SESSION_ATTRS, is_loopback};

/// The longest wait for a free connection. After it, the caller gets the error that the database is not available.
pub(super) const ACQUIRE_DEADLINE: Duration = Duration::from_secs(2);

/// The longest life of a connection, so that one whose peer died silently does not keep its place for long. The pool
/// looks at a connection that comes back, and at resting ones as often as this. So one may get twice as old.
const MAX_LIFETIME: Duration = Duration::from_secs(600);

/// Limits that the server enforces, so that no client-side timeout has to abandon a statement half way.
const SERVER_BOUNDS: [(&str, &str); 6] = [
    ("statement_timeout", "5s"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("tcp_user_timeout", "10s"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "5"),
];

/// Settings on which the statements of a node and of a migration rely, whatever is set for the server, the database or
/// the role. Where a session must not write (`default_transaction_read_only`), that stays as it is set.
const SESSION: [(&str, &str); 3] = [
    // A statement that has waited for a lock reads anew what was committed meanwhile.
    ("default_transaction_isolation", "read committed"),
    // A statement that is given a connection that the server has ended fails.
    ("idle_session_timeout", "0"),
    // Statements name the schema of all that is not PostgreSQL's own. A function elsewhere that fits better would be
    // called in the place of PostgreSQL's, with the rights of this role. `pg_temp` would come first unless it is named.
    ("search_path", "pg_catalog,pg_temp"),
];

/// Planner settings of a node's connections. Every statement is driven from a list of ids or shards into an index.
/// While a table is young, its statistics say that it is empty. A connection keeps a plan made then (a scan of the
/// whole table, hashed) after the table has grown: claims of 500 tasks took 120 ms instead of 15. So nodes allow
/// only the plans for which the statements were written, and plan each statement once.
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
    /// The limit of all pools together.
    pub max_connections: u32,
    /// The node and its incarnation. The server shows this name beside each session.
    pub application_name: String,
}

impl Options {
    /// Returns an error if the URL cannot be used.
    pub fn check(&self) -> Result<(), sqlx::Error> {
        each(self.url.expose_secret()).map(|_| ())
    }

    /// Whether tasks and the login may cross a network that others can read.
    pub fn is_clear(&self) -> bool {
        each(self.url.expose_secret()).is_ok_and(|servers| servers.iter().any(is_clear))
    }

    /// The servers that the URL names, in its order. At most one of them takes writes.
    pub(super) fn servers(&self) -> Vec<PgConnectOptions> {
        each(self.url.expose_secret()).expect("the url was checked when the configuration was read")
    }

    /// How a node connects to `server`.
    pub(super) fn connection(&self, server: &PgConnectOptions) -> PgConnectOptions {
        server.clone().application_name(&self.application_name).options(SESSION).options(SERVER_BOUNDS).options(PLANS)
    }

    /// A pool of one connection, with enough time for a migration. A statement that waits for a lock holds up all that
    /// come after it, so it gives up soon and is tried again. The build of an index may be silent for an hour, after
    /// which a network may have forgotten the connection. `role`: it acts as this role in the place of its login.
    pub(super) fn migration_pool(server: &PgConnectOptions, role: Option<String>) -> PgPool {
        let bounds = [("lock_timeout", "200ms"), ("statement_timeout", "0"), ("tcp_keepalives_idle", "60")];
        let connection = server.clone().application_name("duetime migrate").options(SESSION).options(bounds);
        PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(10))
            // PostgreSQL has the setting since version 17, and refuses an option of the start that it does not know.
            .after_connect(move |connection, _| {
                let role = role.clone();
                Box::pin(async move {
                    let _ = connection.execute("SET transaction_timeout = 0").await;
                    if let Some(role) = role {
                        let act = sqlx::query("SELECT set_config('role', $1, false)").bind(role);
                        act.execute(connection).await?;
                    }
                    Ok(())
                })
            })
            .connect_lazy_with(connection)
    }

    pub(super) fn pool(&self, kind: PoolKind, server: &PgConnectOptions, entrance: &Entrance) -> PgPool {
        let pool = PgPoolOptions::new()
            .max_connections(kind.share(self.max_connections))
            .acquire_timeout(ACQUIRE_DEADLINE)
            .max_lifetime(MAX_LIFETIME)
            // A round trip before each statement would add to the lateness. A dead connection
            // is noticed at its next use.
            .test_before_acquire(false);
        entrance.guard(pool).connect_lazy_with(self.connection(server))
    }
}

/// Parses the URL of each server that `url` names. The node finds the writer itself, so the driver need not know
/// that it is wanted.
fn each(url: &str) -> Result<Vec<PgConnectOptions>, sqlx::Error> {
    let urls = address::each_host(url).map_err(|error| sqlx::Error::Configuration(error.into()))?;
    urls.iter()
        .map(|url| {
            if names(url, &[SESSION_ATTRS]) {
                parse(&address::with_parameters(url, |name, value| (name != SESSION_ATTRS).then(|| value.to_owned())))
            } else {
                parse(url)
            }
        })
        .collect()
}

/// The servers of a database and its name, without login and parameters.
pub(super) fn place(servers: &[PgConnectOptions]) -> String {
    let host = |server: &PgConnectOptions| {
        let host = server.get_host();
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
        let port = || format!("{host}:{}", server.get_port());
        server.get_socket().map_or_else(port, |path| path.display().to_string())
    };
    let hosts: Vec<String> = servers.iter().map(host).collect();
    let database = servers.first().and_then(PgConnectOptions::get_database).unwrap_or_default();
    format!("postgres://{}/{database}", hosts.join(","))
}

fn is_clear(options: &PgConnectOptions) -> bool {
    let sealed = matches!(options.get_ssl_mode(), PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull);
    !sealed && !stays_here(options)
}

/// Parses the URL. A connection that leaves this machine is encrypted unless the URL, or `PGSSLMODE`, says
/// otherwise. A root certificate is there to verify the server: by itself it stands for `verify-full`, and beside
/// `require` for `verify-ca`, as in libpq.
fn parse(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    let options = PgConnectOptions::from_str(url)?;
    let has_root =
        names(url, &["sslrootcert", "ssl-root-cert", "ssl-ca"]) || std::env::var_os("PGSSLROOTCERT").is_some();
    let is_default = !says_mode(url) && !stays_here(&options);
    let mode = match options.get_ssl_mode() {
        PgSslMode::Require if has_root => PgSslMode::VerifyCa,
        _ if is_default && has_root => PgSslMode::VerifyFull,
        _ if is_default => PgSslMode::Require,
        mode => mode,
    };
    Ok(options.ssl_mode(mode))
}

fn says_mode(url: &str) -> bool {
    let variable = std::env::var("PGSSLMODE").ok().and_then(|mode| PgSslMode::from_str(&mode).ok());
    names(url, &["sslmode", "ssl-mode"]) || variable.is_some()
}

/// Whether the query of the URL has one of these parameters.
fn names(url: &str, parameters: &[&str]) -> bool {
    address::parameters(url).any(|(name, _)| parameters.contains(&name.as_ref()))
}

/// Whether the connection uses a Unix socket or the loopback interface.
fn stays_here(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some() || host.starts_with('/') || is_loopback(host)
}

/// Whether the server answered that it has no TLS.
pub(super) fn offers_no_tls(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Tls(reason) if reason.to_string().contains("does not support TLS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> String {
        let modes = each(url).expect("a URL").into_iter().map(|options| format!("{:?}", options.get_ssl_mode()));
        modes.collect::<Vec<_>>().join(" ")
    }

    fn is_clear(url: &str) -> bool {
        Options { url: url.to_owned().into(), max_connections: 4, application_name: "test".into() }.is_clear()
    }

    #[test]
    fn a_connection_beyond_this_machine_is_encrypted_unless_the_url_says_otherwise() {
        for (url, expected) in [
            ("postgres://u:p@db/x", "Require"),
            ("postgresql://u:p@10.0.0.1:5433/x", "Require"),
            ("postgres://u:p@[2001:db8::1]/x?application_name=a", "Require"),
            ("postgres://u:p@localhost/x?host=db", "Require"),
            ("postgres://u:p@127.0.0.1/x?hostaddr=10.0.0.1", "Require"),
            ("postgres://u:p@a,127.0.0.1/x?target_session_attrs=read-write", "Require Prefer"),
            ("postgres://u:p@db/x?sslmode=disable", "Disable"),
            ("postgres://u:p@db/x?ssl-mode=prefer", "Prefer"),
            ("postgres://u:p@db/x?sslmode=verify-full", "VerifyFull"),
            ("postgres://u:p@db/x?sslrootcert=/ca.pem", "VerifyFull"),
            ("postgres://u:p@db/x?sslmode=require&sslrootcert=/ca.pem", "VerifyCa"),
            ("postgres://u:p@db/x?sslmode=disable&sslrootcert=/ca.pem", "Disable"),
            ("postgres://u:p@127.0.0.1:5432/x", "Prefer"),
            ("postgres://u:p@127.0.0.1:5432/x?sslrootcert=/ca.pem", "Prefer"),
            ("postgres://u:p@[::1]/x", "Prefer"),
            ("postgres://u:p@LocalHost/x", "Prefer"),
            ("postgres://u:p@%2Frun%2Fpostgresql/x", "Prefer"),
            ("postgres:///x?host=/run/postgresql", "Prefer"),
        ] {
            assert_eq!(mode(url), expected, "{url}");
        }
    }

    #[test]
    fn a_place_names_the_servers_and_no_login() {
        for (url, shown) in [
            ("postgres://u:p@db/x?sslmode=disable", "postgres://db:5432/x"),
            (
                "postgres://u:p@a:1,[2001:db8::1]:2/x?target_session_attrs=read-write",
                "postgres://a:1,[2001:db8::1]:2/x",
            ),
            ("postgres:///x?host=/run/postgresql&user=u&password=secret", "postgres:///run/postgresql/x"),
        ] {
            assert_eq!(place(&each(url).expect("a URL")), shown, "{url}");
        }
    }

    #[test]
    fn only_what_may_cross_a_network_in_the_clear_is_clear() {
        for url in [
            "postgres://u:p@db/x?sslmode=disable",
            "postgres://db/x?sslmode=allow",
            "postgres://db/x?sslmode=prefer",
            "postgres://127.0.0.1,db/x?sslmode=disable",
        ] {
            assert!(is_clear(url), "{url}");
        }
        for url in ["postgres://u:p@db/x", "postgres://u:p@127.0.0.1/x?sslmode=disable", "postgres://u@%2Frun/x"] {
            assert!(!is_clear(url), "{url}");
        }
    }
}
