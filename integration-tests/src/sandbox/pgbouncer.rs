//! A private PgBouncer before a PostgreSQL.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, bail};
use tokio::{net::TcpStream, time::Instant};

use super::{
    Postgres,
    account::Account,
    port::free_port,
    process::{self, Launch, Process, Signal, Tether},
    programs,
};

const START_WITHIN: Duration = Duration::from_secs(30);
const PACKAGED: &str = "/usr/sbin";

/// A pooler with its own port, which passes every database of one server on.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    password: String,
    _process: Process,
}

impl PgBouncer {
    /// Starts a pooler with this `pool_mode` and these further lines of configuration.
    pub async fn start(folder: &Path, server: &Postgres, pool_mode: &str, more: &str) -> Result<Self> {
        let programs = programs::chosen_folder("pgbouncer")?.unwrap_or_else(|| PACKAGED.into());
        if !programs.join("pgbouncer").exists() {
            bail!("PgBouncer is not installed: run integration-tests/install tests");
        }
        let account = Account::unprivileged(&["postgres", "nobody"])?;
        account.own_folder(folder)?;
        let (port, password) = (free_port(), server.password().to_owned());
        let (users, settings) = (folder.join("users"), folder.join("pgbouncer.ini"));
        process::write_secret(&users, &format!("\"postgres\" \"{password}\"\n"), &account)?;
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {pool_mode}\n{more}\n",
            server.port(),
            users.display()
        );
        fs::write(&settings, text)?;
        account.own(&settings)?;
        let process = Launch {
            name: "pgbouncer".into(),
            program: programs.join("pgbouncer"),
            args: vec![settings.display().to_string()],
            env: Vec::new(),
            account,
            folder: folder.to_owned(),
            log: folder.join("log"),
            tether: Tether::Tethered,
            on_death: Signal::Kill,
        }
        .start()?;
        let deadline = Instant::now() + START_WITHIN;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            process.check()?;
            if Instant::now() >= deadline {
                bail!("pgbouncer does not answer on port {port}: {}", process.tail(10));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { port, password, _process: process })
    }

    /// The URL of `database` through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }
}
