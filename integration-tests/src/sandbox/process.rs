//! One child process: started, watched, signalled, and gone when its owner is.

use std::{
    fmt,
    fs::{self, File},
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt, time::Instant};

use super::{account::Account, binary, spawner};

/// The longest wait for the end of a killed process.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Whether a child ends with this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tether {
    /// Killed when its handle is dropped, and by the kernel when this process dies.
    Tethered,
    /// In a session of its own; outlives this process and the shell that started it.
    Detached,
}

/// The signals to send, by the names that `kill` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Kill,
    Quit,
    Int,
    Term,
    Stop,
    Cont,
    Hup,
}

impl Signal {
    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Quit => "QUIT",
            Self::Int => "INT",
            Self::Term => "TERM",
            Self::Stop => "STOP",
            Self::Cont => "CONT",
            Self::Hup => "HUP",
        }
    }
}

/// A process yet to be started.
#[derive(Debug)]
pub(super) struct Launch {
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub account: Account,
    pub folder: PathBuf,
    /// The file for all its output, appended over restarts.
    pub log: PathBuf,
    pub tether: Tether,
    /// The signal that the kernel sends it when this process dies; on QUIT PostgreSQL cleans up behind itself.
    pub on_death: Signal,
}

impl Launch {
    pub(super) fn start(self) -> Result<Process> {
        let mut command = self.command()?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("opening {}", self.log.display()))?;
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if self.tether == Tether::Tethered {
            // A process group of its own: the terminal's Ctrl-C reaches this process alone, which then stops its
            // children in order.
            command.process_group(0);
        }
        let child = spawner::spawn(command).with_context(|| format!("starting {}", self.program.display()))?;
        let pid = child.id();
        Ok(Process { name: self.name, pid, log: self.log, tether: self.tether, child: Mutex::new(child) })
    }

    /// `setpriv` becomes the user and ties the process to its parent, then executes the program: the process id
    /// stays.
    pub(super) fn command(&self) -> Result<Command> {
        let mut words: Vec<String> = Vec::new();
        if self.tether == Tether::Detached {
            words.push("setsid".into());
        }
        words.push("setpriv".into());
        words.extend(self.account.setpriv());
        words.push(match self.tether {
            Tether::Tethered => format!("--pdeathsig={}", self.on_death.name()),
            Tether::Detached => "--pdeathsig=clear".into(),
        });
        words.push("--".into());
        words.push(self.program.to_str().context("program paths are UTF-8")?.into());
        let mut command = Command::new(&words[0]);
        binary::hide_variables(&mut command);
        command.args(&words[1..]).args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

/// A running child.
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    tether: Tether,
    child: Mutex<Child>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The exit status, if it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    pub fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        // Checked under the lock: once the child is reaped, another process may have its id.
        let mut child = self.child.lock();
        if child.try_wait()?.is_some() {
            bail!("{} has already exited", self.name);
        }
        send(self.pid, signal)
    }

    /// Sends SIGKILL and waits for the end. Does nothing when the child has already ended.
    pub fn kill(&self) {
        let mut child = self.child.lock();
        child.kill().ok();
        child.wait().ok();
    }

    /// Waits for it to end by itself.
    pub async fn wait(&self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} has not exited within {within:?}; its last lines:\n{}", self.name, self.tail(20));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The last lines of its output.
    pub fn tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }

    /// Fails with its last lines when it has ended.
    pub fn check(&self) -> Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => bail!("{} exited with {status}; its last lines:\n{}", self.name, self.tail(30)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.tether == Tether::Tethered {
            self.kill();
        }
    }
}

/// Sends `signal` by process id. The crate forbids `unsafe`, so the shell's own `kill` does it.
pub(super) fn send(pid: u32, signal: Signal) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$0\" \"$1\"", signal.name(), &pid.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("running kill")?;
    if !status.success() {
        bail!("no process {pid} to send {} to", signal.name());
    }
    Ok(())
}

/// Waits until a killed process that is no child of this one has ended. One that only waits for its parent to notice
/// holds nothing any more.
#[expect(clippy::print_stderr, reason = "a failing test reports on standard error")]
pub(super) fn wait_gone(pid: u32) {
    let deadline = std::time::Instant::now() + GONE_WITHIN;
    let is_there = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    };
    while is_there() {
        if std::time::Instant::now() >= deadline {
            eprintln!("process {pid} is still there {GONE_WITHIN:?} after it was killed");
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The running processes that `pid` started.
pub(super) fn children(pid: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

pub(super) fn tail(log: &Path, lines: usize) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs a command to its end and returns its output; an error carries the output too.
pub(super) async fn run(what: &str, command: tokio::process::Command) -> Result<String> {
    run_with(what, command, "").await
}

/// Like `run`, with this standard input: a few lines at most.
pub(super) async fn run_with(what: &str, mut command: tokio::process::Command, input: &str) -> Result<String> {
    let cannot_run = || format!("{what}: cannot run it");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(cannot_run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // The program may end before it has read anything.
        stdin.write_all(input.as_bytes()).await.ok();
    }
    let output = child.wait_with_output().await.with_context(cannot_run)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{what}: {}\n{stdout}{stderr}", output.status);
    }
    Ok(stdout.into_owned())
}

/// Writes a file that only its owner can read. It is whole, and its owner's, whenever this process is killed.
pub(super) fn write_secret(path: &Path, text: &str, account: &Account) -> Result<()> {
    write_whole(path, text, 0o400, |fresh| account.own(fresh))
}

/// Writes a file with this mode. It is whole, and `give` has given it away, whenever this process is killed.
pub fn write_whole(path: &Path, text: &str, mode: u32, give: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let fresh = path.with_extension("new");
    fs::remove_file(&fresh).ok();
    let mut file = File::options()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&fresh)
        .with_context(|| format!("writing {}", fresh.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", fresh.display()))?;
    give(&fresh)?;
    fs::rename(&fresh, path).with_context(|| format!("writing {}", path.display()))
}
