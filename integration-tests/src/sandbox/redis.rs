//! A private Redis, for programs that are compared with Duetime. Duetime itself uses none.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::time::Instant;

use super::{
    account::Account,
    port::free_port,
    process::{Launch, Process, Signal, Tether},
    programs,
};

const START_WITHIN: Duration = Duration::from_secs(60);
const PROGRAM: &str = "redis-server";

/// Appended to disk once a second, as Redis recommends for data that matters. A crash loses the last second.
pub const REDIS_SETTINGS: &str = "appendonly yes, appendfsync everysec, save off, maxmemory-policy noeviction";

/// One empty server on a port of its own; it ends when it is dropped.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    process: Process,
}

impl Redis {
    /// Whether this machine has a Redis.
    pub fn is_installed() -> bool {
        let chosen = programs::chosen_folder(PROGRAM).ok().flatten();
        let path = std::env::var_os("PATH").unwrap_or_default();
        chosen.is_some() || std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).exists())
    }

    /// Starts an empty server with its data in `folder`.
    pub async fn start(folder: &Path) -> Result<Self> {
        if !Self::is_installed() {
            bail!("Redis is not installed: run integration-tests/install redis");
        }
        let account = Account::unprivileged(&["redis", "nobody"])?;
        account.own_folder(folder)?;
        let port = free_port();
        let process = Launch {
            name: "redis".into(),
            program: programs::chosen_folder(PROGRAM)?.map_or_else(|| PROGRAM.into(), |chosen| chosen.join(PROGRAM)),
            args: arguments(port, folder),
            env: Vec::new(),
            account,
            folder: folder.to_owned(),
            log: folder.join("log"),
            tether: Tether::Tethered,
            on_death: Signal::Kill,
        }
        .start()?;
        let server = Self { port, process };
        server.answers().await?;
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The version of the running server.
    pub async fn version(&self) -> Result<String> {
        let mut connection = self.connection().await?;
        let facts: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        let version = facts.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.context("redis tells no version")?.trim().to_owned())
    }

    pub async fn connection(&self) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
        redis::Client::open(self.url())?.get_multiplexed_async_connection().await
    }

    async fn answers(&self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        loop {
            match self.connection().await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).with_context(|| format!("redis does not answer on port {}", self.port));
                }
                Err(_) => {
                    self.process.check()?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

fn arguments(port: u16, folder: &Path) -> Vec<String> {
    let (port, folder) = (port.to_string(), folder.display().to_string());
    ["--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--daemonize", "no", "--save", ""]
        .into_iter()
        .chain(["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"])
        .map(str::to_owned)
        .collect()
}
