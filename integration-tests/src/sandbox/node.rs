//! One node: its configuration file, its process and its faults.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    account::Account,
    binary,
    clock::{Clock, Threads},
    process::{self, Launch, Process, Signal, Tether},
};
use crate::client::Client;

/// The extension of a node's history.
pub const HISTORY: &str = "history";

/// One `[[database]]` of a node's configuration.
#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    pub name: String,
    pub url: String,
    /// The shards that it has at first; empty: the key is left out.
    pub shards: String,
}

/// The content of a node's configuration file.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub name: String,
    pub etcd_endpoints: Vec<String>,
    pub etcd_prefix: String,
    pub lease_ttl: Duration,
    pub databases: Vec<DatabaseConfig>,
    pub amqp_url: String,
    pub port: u16,
    /// The operator's token; the file keeps only its hash.
    pub token: String,
    /// TOML to append unchanged.
    pub more: String,
}

impl NodeConfig {
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The file's text.
    pub fn toml(&self) -> String {
        let mut text = format!(
            "[node]\nname = {:?}\n\n[etcd]\nendpoints = {:?}\nprefix = {:?}\nlease_ttl_ms = {}\n\n[amqp]\nurl = {:?}\n\n\
             [http]\nlisten = \"127.0.0.1:{}\"\n\n[[auth.token]]\nname = \"operator\"\nrole = \"operator\"\nsha256 = \"{}\"\n",
            self.name,
            self.etcd_endpoints,
            self.etcd_prefix,
            self.lease_ttl.as_millis(),
            self.amqp_url,
            self.port,
            hex_sha256(&self.token),
        );
        for database in &self.databases {
            text.push_str(&format!("\n[[database]]\nname = {:?}\nurl = {:?}\n", database.name, database.url));
            if !database.shards.is_empty() {
                text.push_str(&format!("shards = {:?}\n", database.shards));
            }
        }
        text.push('\n');
        text.push_str(&self.more);
        text
    }
}

/// A node that can be started, broken and started again; its name, port and configuration stay.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    file: PathBuf,
    folder: PathBuf,
    tether: Tether,
    process: Mutex<Option<Process>>,
    /// Variables of its environment, from its next start on.
    variables: Mutex<Vec<(String, String)>>,
    /// The histories of its starts, each a file of its own.
    histories: Mutex<usize>,
    keeps_history: bool,
    /// It ran without a history at least once.
    is_untold: Mutex<bool>,
    /// Its `duetime`, from its next start on. `None`: the one built beside this test.
    program: Mutex<Option<PathBuf>>,
    /// From its next start on; `None`: the machine's.
    clock: Mutex<Option<Clock>>,
}

impl Node {
    /// Writes the node's configuration into `folder`. The node does not run yet.
    pub fn new(folder: &Path, config: NodeConfig, tether: Tether) -> Result<Self> {
        let file = folder.join(format!("{}.toml", config.name));
        process::write_secret(&file, &config.toml(), &Account::Own)?;
        Ok(Self {
            config,
            file,
            folder: folder.to_owned(),
            tether,
            process: Mutex::new(None),
            variables: Mutex::default(),
            histories: Mutex::default(),
            keeps_history: true,
            is_untold: Mutex::default(),
            program: Mutex::default(),
            clock: Mutex::default(),
        })
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub fn url(&self) -> String {
        self.config.url()
    }

    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Its configuration file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn client(&self) -> Client {
        Client::new(&self.url(), Some(&self.config.token))
    }

    /// Sets a variable of the node's environment from its next start on: `DUETIME_SECTION__NAME` overrides its file.
    pub fn set(&self, name: &str, value: &str) {
        self.variables.lock().push((name.to_owned(), value.to_owned()));
    }

    /// Sets the node's `duetime` from its next start on. `None`: the one built beside this test.
    pub fn set_program(&self, program: Option<&Path>) {
        *self.program.lock() = program.map(Path::to_owned);
    }

    /// It writes no history, as in production.
    pub const fn without_history(mut self) -> Self {
        self.keeps_history = false;
        self
    }

    /// Sets the clock that the node goes by from its next start on. `None`: the machine's.
    pub fn set_clock(&self, clock: Option<&Clock>) {
        *self.clock.lock() = clock.cloned();
    }

    fn program(&self) -> Result<PathBuf> {
        let program = self.program.lock().clone();
        program.map_or_else(|| binary::binary().map(Path::to_owned), Ok)
    }

    /// Starts the node; [`Self::wait_ready`] waits until it is ready.
    pub fn start(&self) -> Result<()> {
        self.start_with_failpoints("")
    }

    /// Like `start`, with fail points set, for instance `after_claim=20*off->return`.
    pub fn start_with_failpoints(&self, failpoints: &str) -> Result<()> {
        let mut env = vec![("RUST_BACKTRACE".to_owned(), "1".to_owned())];
        env.extend(self.variables.lock().iter().cloned());
        // A program of an earlier release may not know the key.
        if !self.keeps_history || self.program.lock().is_some() {
            *self.is_untold.lock() = true;
        } else {
            let mut histories = self.histories.lock();
            *histories += 1;
            let file = self.folder.join(self.history_name(*histories)).with_extension(HISTORY);
            env.push(("DUETIME_TELEMETRY__HISTORY_FILE".to_owned(), file.display().to_string()));
        }
        if !failpoints.is_empty() {
            env.push(("FAILPOINTS".into(), failpoints.into()));
        }
        let mut process = self.process.lock();
        if process.as_ref().is_some_and(Process::is_running) {
            bail!("{} runs already", self.config.name);
        }
        let args = vec!["node".into(), "--config".into(), self.file.display().to_string()];
        let (program, args) = match &*self.clock.lock() {
            Some(clock) => clock.start(Threads::Many, &self.program()?, args),
            None => (self.program()?, args),
        };
        *process = Some(
            Launch {
                name: self.config.name.clone(),
                program,
                args,
                env,
                account: Account::Own,
                folder: self.folder.clone(),
                log: self.log(),
                tether: self.tether,
                on_death: Signal::Kill,
            }
            .start()?,
        );
        Ok(())
    }

    fn history_name(&self, number: usize) -> String {
        format!("{}-{number}", self.config.name)
    }

    /// Whether each of its starts wrote a history.
    pub fn is_told(&self) -> bool {
        !*self.is_untold.lock()
    }

    /// The file name, without its extension, of the history that the node writes now. `None`: it does not run.
    pub fn running_history(&self) -> Option<String> {
        self.is_running().then(|| self.history_name(*self.histories.lock()))
    }

    /// Waits until the node reports that it is ready.
    pub async fn wait_ready(&self, within: Duration) -> Result<()> {
        let client = self.client();
        let deadline = Instant::now() + within;
        loop {
            let heard = client.readiness().await;
            if matches!(heard, Ok((true, _))) {
                return Ok(());
            }
            self.process.lock().as_ref().with_context(|| format!("{} was stopped", self.config.name))?.check()?;
            if Instant::now() >= deadline {
                bail!("{} is not ready after {within:?}: {heard:?}\n{}", self.config.name, self.tail(30));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Kills the node with SIGKILL.
    pub fn kill(&self) {
        if let Some(process) = self.process.lock().as_ref() {
            process.kill();
        }
    }

    /// Stops the node with SIGSTOP: its connections stay open and silent.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::Stop)
    }

    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::Cont)
    }

    /// Writes another configuration file. A running node reads it within seconds.
    pub fn rewrite(&self, toml: &str) -> Result<()> {
        process::write_secret(&self.file, toml, &Account::Own)
    }

    /// Writes another configuration file and sends SIGHUP: the node reads it at once.
    pub fn reload(&self, toml: &str) -> Result<()> {
        self.rewrite(toml)?;
        self.signal(Signal::Hup)
    }

    /// Sends SIGTERM and waits until the node has left in order.
    pub async fn stop(&self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::Term)?;
        self.wait_ended(within).await
    }

    /// Waits for the node to end, by itself or after a signal.
    pub async fn wait_ended(&self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            let ended = self
                .process
                .lock()
                .as_ref()
                .with_context(|| format!("{} was never started", self.config.name))?
                .ended();
            if let Some(status) = ended {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} has not exited within {within:?}\n{}", self.config.name, self.tail(30));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn is_running(&self) -> bool {
        self.process.lock().as_ref().is_some_and(Process::is_running)
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.lock().as_ref().filter(|process| process.is_running()).map(Process::pid)
    }

    /// The log of everything it printed, over all its starts.
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.config.name))
    }

    pub fn tail(&self, lines: usize) -> String {
        process::tail(&self.log(), lines)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.process.lock().as_ref().with_context(|| format!("{} does not run", self.config.name))?.signal(signal)
    }
}

/// The hash that a configuration keeps of a token.
pub fn hex_sha256(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Prepares the databases of this configuration: `duetime migrate` of the program that the node's next start takes.
pub async fn migrate(node: &Node) -> Result<()> {
    let file = node.file().to_str().context("paths are UTF-8")?;
    let output = binary::run_program(&node.program()?, &["migrate", "--config", file], &[], "").await?;
    fs::write(node.file().with_extension("migrate.log"), &output.stderr)?;
    if !output.status.success() {
        bail!(
            "duetime migrate: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
