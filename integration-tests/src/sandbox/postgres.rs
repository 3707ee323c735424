//! A private PostgreSQL.

mod room;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgSslMode};
use tokio::time::Instant;

pub use room::may_mount;

use super::{
    account::Account,
    authority::CertificateFiles,
    binary,
    clock::{Clock, Threads},
    process::{self, Launch, Process, Signal, Tether},
    programs, secret,
};

/// A liveness limit. After a kill, a server of a hundred databases reads gigabytes of its log, on a disk that others
/// use.
const START_WITHIN: Duration = Duration::from_secs(240);

/// As durable as in production: committed data survives any kill. After one, the server brings its folder to the disk
/// with one call for the file system; the default opens each file, and each database of a run leaves 300.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
fsync = on
synchronous_commit = on
full_page_writes = on
recovery_init_sync_method = syncfs
shared_buffers = 256MB
max_wal_size = 2GB
log_min_messages = warning
log_line_prefix = '%m [%p] %d '
";

/// The variable that says whether the driver in this very process uses TLS. A process cannot hide it from itself.
const MODE: &str = "PGSSLMODE";

/// One server with its own data folder and port. It survives `kill` and comes back on the same port.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    binaries: PathBuf,
    account: Account,
    port: u16,
    password: String,
    tether: Tether,
    /// Options of its command line beside the usual ones.
    options: &'static [&'static str],
    process: Mutex<Option<Process>>,
    /// From its next start on; `None`: the machine's.
    clock: Mutex<Option<Clock>>,
}

impl Postgres {
    /// Sets up a server in `folder`, or starts the one that already exists there.
    pub async fn start(folder: &Path, tether: Tether) -> Result<Self> {
        Self::launched(folder, tether).await?.started().await
    }

    /// Like `start`, but does not wait for its first answer, as [`Self::restart`] does.
    pub async fn launched(folder: &Path, tether: Tether) -> Result<Self> {
        let server = Self::set_up(folder, tether)?;
        if !server.data().join("PG_VERSION").exists() {
            server.make_data().await?;
        }
        server.launch_if_ended()?;
        Ok(server)
    }

    fn set_up(folder: &Path, tether: Tether) -> Result<Self> {
        require_plain(&std::env::var(MODE).unwrap_or_default())?;
        let account = Account::unprivileged(&["postgres", "nobody"])?;
        account.own_folder(folder)?;
        let password = secret::remembered(&folder.join("password"), &account)?;
        Self::in_folder(folder, account, password, tether)
    }

    /// Starts a standby of this server in `folder`. From then on each commit of this server waits for the standby.
    pub async fn add_standby(&self, folder: &Path) -> Result<Self> {
        self.account.own_folder(folder)?;
        let standby = Self::in_folder(folder, self.account.clone(), self.password.clone(), self.tether)?;
        standby.copy(self).await?;
        let standby = standby.started().await?;
        self.wait_for(&standby).await?;
        Ok(standby)
    }

    /// Makes this server, which has ended, a standby of another one, which replaced it. Its own data goes.
    pub async fn follow(&self, primary: &Self) -> Result<()> {
        fs::remove_dir_all(self.data())?;
        self.copy(primary).await?;
        self.restart().await?;
        primary.wait_for(self).await
    }

    /// Lets each commit wait for the standby, and returns when it does.
    pub async fn wait_for(&self, standby: &Self) -> Result<()> {
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        self.execute("SELECT pg_reload_conf()").await?;
        let in_step = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        let deadline = Instant::now() + START_WITHIN;
        while self.number(in_step).await? == 0 {
            if Instant::now() >= deadline {
                bail!("the standby on port {} is not synchronous after {START_WITHIN:?}", standby.port);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn in_folder(folder: &Path, account: Account, password: String, tether: Tether) -> Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            binaries: binaries()?,
            account,
            port: secret::remembered_port(&folder.join("port"))?,
            password,
            tether,
            options: &[],
            process: Mutex::new(None),
            clock: Mutex::new(None),
        })
    }

    async fn started(self) -> Result<Self> {
        if let Err(error) = self.restart().await {
            self.kill();
            return Err(error);
        }
        Ok(self)
    }

    /// The URL of `database`.
    pub fn url(&self, database: &str) -> String {
        self.url_through(self.port, database)
    }

    /// The URL of `database` through another port of 127.0.0.1, which leads here.
    pub fn url_through(&self, port: u16, database: &str) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{port}/{database}", self.password)
    }

    /// The URL of `database` on this server or on `other`, whichever takes writes.
    pub fn url_with(&self, other: &Self, database: &str) -> String {
        self.url_through_both(self.port, other.port, database)
    }

    /// The same, through two other ports of 127.0.0.1.
    pub fn url_through_both(&self, here: u16, there: u16, database: &str) -> String {
        let password = &self.password;
        format!(
            "postgres://postgres:{password}@127.0.0.1:{here},127.0.0.1:{there}/{database}\
             ?target_session_attrs=read-write"
        )
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }

    /// Copies the data of the stopped server, as a backup would, and returns the copy's folder.
    pub async fn save(&self) -> Result<PathBuf> {
        let copy = self.folder.join("backup");
        self.copy_folder(&self.data(), &copy).await?;
        Ok(copy)
    }

    /// Puts a copy in the place of the data of the stopped server.
    pub async fn put_back(&self, copy: &Path) -> Result<()> {
        fs::remove_dir_all(self.data())?;
        self.copy_folder(copy, &self.data()).await
    }

    async fn copy_folder(&self, from: &Path, to: &Path) -> Result<()> {
        let mut copy = tokio::process::Command::new("cp");
        copy.arg("-a").arg(from).arg(to);
        process::run("cp -a", copy).await.map(drop)
    }

    /// Creates an empty database and returns its URL.
    pub async fn create_database(&self, name: &str) -> Result<String> {
        self.execute(&format!("CREATE DATABASE \"{name}\"")).await?;
        Ok(self.url(name))
    }

    /// Creates the database unless it exists.
    pub async fn ensure_database(&self, name: &str) -> Result<String> {
        let mut connection = PgConnection::connect(&self.url("postgres")).await?;
        let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)")
            .bind(name)
            .fetch_one(&mut connection)
            .await?;
        if there { Ok(self.url(name)) } else { self.create_database(name).await }
    }

    /// Drops a database and the connections to it.
    pub async fn drop_database(&self, name: &str) -> Result<()> {
        self.execute(&format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)")).await
    }

    /// Runs one statement as the superuser, outside the nodes' databases.
    pub async fn execute(&self, statement: &str) -> Result<()> {
        let mut connection = PgConnection::connect(&self.url("postgres")).await?;
        sqlx::query(AssertSqlSafe(statement.to_owned()))
            .execute(&mut connection)
            .await
            .with_context(|| statement.to_owned())?;
        connection.close().await?;
        Ok(())
    }

    /// Runs a query for one number as the superuser, outside the nodes' databases.
    pub async fn number(&self, query: &str) -> Result<i64> {
        let mut connection = PgConnection::connect(&self.url("postgres")).await?;
        let number = sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut connection).await;
        let number = number.with_context(|| query.to_owned())?;
        connection.close().await?;
        Ok(number)
    }

    /// Makes this standby a primary, and returns when it takes writes.
    pub async fn promote(&self) -> Result<()> {
        self.execute("SELECT pg_promote()").await
    }

    /// Offers TLS from the next connection on.
    pub async fn encrypt(&self, files: &CertificateFiles) -> Result<()> {
        for (name, file) in [("server.crt", &files.cert), ("server.key", &files.key)] {
            let own = self.data().join(name);
            fs::copy(file, &own)?;
            fs::set_permissions(&own, fs::Permissions::from_mode(0o600))?;
            self.account.own(&own)?;
        }
        self.execute("ALTER SYSTEM SET ssl = on").await?;
        self.execute("SELECT pg_reload_conf()").await
    }

    /// Sends SIGKILL to the server and each of its processes at the same time, as if the machine crashed.
    pub fn kill(&self) {
        if let Some(process) = self.process.lock().take() {
            let workers = process::children(process.pid());
            process.kill();
            for worker in &workers {
                process::send(*worker, Signal::Kill).ok();
            }
            // A server refuses to start while one of them still holds the shared memory.
            workers.into_iter().for_each(process::wait_gone);
        }
    }

    /// Stops at once without a checkpoint; clients are notified.
    pub async fn stop_immediately(&self) -> Result<()> {
        self.end(Signal::Quit).await
    }

    /// Stops in order: clients are disconnected, all data is written.
    pub async fn stop(&self) -> Result<()> {
        self.end(Signal::Int).await
    }

    /// Sets the clock that it goes by from its next start on. `None`: the machine's.
    pub fn set_clock(&self, clock: Option<&Clock>) {
        *self.clock.lock() = clock.cloned();
    }

    /// Stops the processes with SIGSTOP: clients stay connected and hear nothing.
    pub fn pause(&self) -> Result<()> {
        self.signal_all(Signal::Stop)
    }

    pub fn resume(&self) -> Result<()> {
        self.signal_all(Signal::Cont)
    }

    pub fn is_running(&self) -> bool {
        self.process.lock().as_ref().is_some_and(Process::is_running)
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.lock().as_ref().map(Process::pid)
    }

    /// Starts it unless it runs, and waits until it answers.
    pub async fn restart(&self) -> Result<()> {
        self.launch_if_ended()?;
        let deadline = Instant::now() + START_WITHIN;
        loop {
            match PgConnection::connect(&self.url("postgres")).await {
                Ok(connection) => return Ok(connection.close().await?),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).with_context(|| format!("postgresql does not answer on port {}", self.port));
                }
                Err(_) => {
                    self.process.lock().as_ref().context("postgresql was stopped while it started")?.check()?;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn launch_if_ended(&self) -> Result<()> {
        if !self.is_running() {
            *self.process.lock() = Some(self.launch()?);
        }
        Ok(())
    }

    /// A program of PostgreSQL, run as the server's user.
    fn program(&self, name: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("setpriv");
        binary::hide_variables(command.as_std_mut());
        command.args(self.account.setpriv()).arg("--pdeathsig=KILL").arg("--").arg(self.binaries.join(name));
        command.current_dir(&self.folder);
        command
    }

    /// Copies the data of `primary` and follows it.
    async fn copy(&self, primary: &Self) -> Result<()> {
        let mut backup = self.program("pg_basebackup");
        backup
            .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"])
            .arg(format!("--dbname={}", primary.url("postgres")))
            .arg(format!("--pgdata={}", self.data().display()));
        process::run("pg_basebackup", backup).await.map(drop)
    }

    /// Makes the data folder. It appears whole: a run that is killed meanwhile leaves another folder, which the next
    /// one removes.
    async fn make_data(&self) -> Result<()> {
        let fresh = self.folder.join("data.new");
        if fresh.exists() {
            fs::remove_dir_all(&fresh).with_context(|| format!("removing {}", fresh.display()))?;
        }
        self.initialise(&fresh).await?;
        fs::rename(&fresh, self.data()).with_context(|| format!("renaming {}", fresh.display()))
    }

    /// Makes a server's data in `data`, which is empty or does not exist.
    async fn initialise(&self, data: &Path) -> Result<()> {
        let passwords = self.folder.join("password-for-initdb");
        process::write_secret(&passwords, &self.password, &self.account)?;
        let mut initdb = self.program("initdb");
        initdb
            .args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .arg(format!("--pwfile={}", passwords.display()))
            .arg(format!("--pgdata={}", data.display()));
        process::run("initdb", initdb).await?;
        fs::remove_file(&passwords)?;
        let settings = data.join("postgresql.conf");
        let shipped = fs::read_to_string(&settings)?;
        fs::write(&settings, format!("{shipped}{SETTINGS}"))?;
        Ok(())
    }

    fn launch(&self) -> Result<Process> {
        let words = ["-D", &self.data().display().to_string(), "-p", &self.port.to_string()];
        let args: Vec<String> = words.iter().chain(self.options).map(|word| (*word).to_owned()).collect();
        let program = self.binaries.join("postgres");
        let (program, args) = match &*self.clock.lock() {
            Some(clock) => clock.start(Threads::One, &program, args),
            None => (program, args),
        };
        Launch {
            name: "postgresql".into(),
            program,
            args,
            env: Vec::new(),
            account: self.account.clone(),
            folder: self.folder.clone(),
            log: self.folder.join("log"),
            tether: self.tether,
            on_death: Signal::Quit,
        }
        .start()
    }

    async fn end(&self, signal: Signal) -> Result<()> {
        let Some(process) = self.process.lock().take() else { return Ok(()) };
        process.signal(signal)?;
        process.wait(START_WITHIN).await?;
        Ok(())
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        let guard = self.process.lock();
        let process = guard.as_ref().context("postgresql does not run")?;
        process.signal(signal)?;
        for worker in process::children(process.pid()) {
            process::send(worker, signal).ok();
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }
}

/// Refuses a mode with which no connection comes about: a server has no TLS when it starts.
fn require_plain(mode: &str) -> Result<()> {
    match mode.parse::<PgSslMode>() {
        Ok(PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull) => {
            bail!("{MODE}={mode} is set, and the servers of this machine's own clusters have no TLS; unset it")
        }
        _ => Ok(()),
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // On QUIT the server ends its workers and releases its shared memory; the handle's own drop would not do
        // that.
        if self.tether == Tether::Tethered
            && let Some(process) = self.process.lock().take()
            && process.signal(Signal::Quit).is_ok()
        {
            for _ in 0..1_000 {
                if process.ended().is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The folder of the chosen PostgreSQL, or of the newest on this machine.
fn binaries() -> Result<PathBuf> {
    if let Some(folder) = programs::chosen_folder("initdb")? {
        return Ok(folder);
    }
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, folder)| folder.join("initdb").exists())
        .collect();
    versions.sort();
    match versions.pop() {
        Some((_, folder)) => Ok(folder),
        None => bail!("PostgreSQL is not installed: run integration-tests/install"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_that_demands_tls_is_named_at_once() {
        assert!(["", "disable", "prefer", "nonsense"].into_iter().all(|mode| require_plain(mode).is_ok()));
        for mode in ["require", "verify-ca", "Verify-Full"] {
            assert!(require_plain(mode).unwrap_err().to_string().contains(&format!("PGSSLMODE={mode}")));
        }
    }
}
