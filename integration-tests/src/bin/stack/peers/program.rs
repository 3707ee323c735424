//! Peers in other languages: a folder with the executables `install` and `run`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use integration_tests::page::root;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use super::{
    collector,
    work::{Answer, Order, Outcome},
};

const INSTALL_WITHIN: Duration = Duration::from_secs(900);

/// One peer's folder, and the folder for what it needs.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub name: String,
    folder: PathBuf,
    home: PathBuf,
    logs: PathBuf,
}

impl Program {
    /// Those of the repository, by name.
    pub(super) fn all(base: &Path) -> Vec<Self> {
        Self::below(&root().join("integration-tests/peers"), base)
    }

    fn below(folder: &Path, base: &Path) -> Vec<Self> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut programs: Vec<Self> = entries
            .filter(|entry| entry.path().join("run").is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| Self { folder: folder.join(&name), home: base.join(&name), logs: base.join("logs"), name })
            .collect();
        programs.sort_by(|one, other| one.name.cmp(&other.name));
        programs
    }

    /// Fetches and builds what it needs; the error is its own last line.
    pub(super) async fn install(&self) -> Result<()> {
        fs::create_dir_all(&self.home)?;
        let mut install = self.command("install");
        install.stdin(Stdio::null());
        self.ended(install, "install", INSTALL_WITHIN, "").await.map(drop)
    }

    pub(super) async fn run(&self, order: &Order) -> Result<Outcome> {
        let mut run = self.command("run");
        run.stdin(Stdio::piped());
        let line = format!("{}\n", serde_json::to_string(order)?);
        let said = self.ended(run, order.work.text(), order.deadline(), &line).await?;
        let last = said.trim_end().lines().next_back().unwrap_or_default();
        match serde_json::from_str(last).with_context(|| format!("its last line is `{last}`"))? {
            Answer::Not { not } => Ok(Outcome::Not(not)),
            Answer::Told(told) if order.work == super::work::Work::Submit => Ok(Outcome::Counted(told)),
            Answer::Told(told) => Ok(Outcome::Arrived(told, collector::read(&order.arrivals)?)),
        }
    }

    /// The file of what it says on standard error, anew at each start.
    fn log(&self, what: &str) -> PathBuf {
        self.logs.join(format!("{}-{what}.log", self.name))
    }

    fn command(&self, executable: &str) -> Command {
        let mut command = Command::new(self.folder.join(executable));
        command.current_dir(&self.folder).env("PEER_HOME", &self.home).stdout(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command
    }

    /// Runs it to its end, and returns its standard output. At the deadline it is killed, with all it has started.
    async fn ended(&self, mut command: Command, what: &str, within: Duration, input: &str) -> Result<String> {
        let log = self.log(what);
        fs::create_dir_all(&self.logs)?;
        command.stderr(File::create(&log).with_context(|| format!("writing {}", log.display()))?);
        let mut child = command.spawn().with_context(|| format!("starting {what} of {}", self.name))?;
        let group = Group(child.id().context("it has just been started")?);
        if let Some(mut stdin) = child.stdin.take() {
            // A program that has ended does not read; its exit code says more than the broken pipe.
            stdin.write_all(input.as_bytes()).await.ok();
        }
        let Ok(output) = timeout(within, child.wait_with_output()).await else {
            bail!("{what} does not end within {} s{}", within.as_secs(), last_line(&log));
        };
        drop(group);
        let output = output?;
        if !output.status.success() {
            bail!("{what}: {}{}", output.status, last_line(&log));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A process group, which ends with this value: whatever a program has left behind, or started before it was stopped.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        // `kill` may find none.
        let group = format!("-{}", self.0);
        std::process::Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().ok();
    }
}

fn last_line(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    text.lines().rfind(|line| !line.trim().is_empty()).map_or_else(String::new, |line| format!(": {}", line.trim()))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, time::Instant};

    use super::*;
    use crate::peers::work::made_up;

    /// A peer whose executables are these scripts.
    fn peer(folder: &Path, install: &str, run: &str) -> Program {
        let scripts = folder.join("peers/made-up");
        fs::create_dir_all(&scripts).unwrap();
        for (name, script) in [("install", install), ("run", run)] {
            let file = scripts.join(name);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Program::below(&folder.join("peers"), &folder.join("local")).pop().unwrap()
    }

    #[tokio::test]
    async fn a_program_reads_its_work_and_what_it_wrote_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let run = r#"read -r line; printf '%s' "$line" | grep -q '"work":"burst"' || exit 3
            echo "7 1000 1500" >"$PEER_HOME/../arrivals.1"; echo progress >&2
            echo '{"settings": "one worker", "version": "1", "submitted": 1, "submit_seconds": 0.5}'"#;
        let peer = peer(folder.path(), "true", run);
        peer.install().await.unwrap();
        let order = Order { arrivals: folder.path().join("local/arrivals"), ..made_up() };
        let Outcome::Arrived(told, arrivals) = peer.run(&order).await.unwrap() else { panic!("it has run") };
        assert_eq!((told.submitted, arrivals[0].number), (1, 7));
    }

    #[tokio::test]
    async fn what_fails_says_its_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let peer = peer(folder.path(), "echo no npm here >&2; exit 1", "echo nonsense");
        assert!(peer.install().await.unwrap_err().to_string().ends_with(": no npm here"));
        let error = peer.run(&made_up()).await.unwrap_err();
        assert!(format!("{error:#}").contains("its last line is `nonsense`"), "{error:#}");
    }

    #[tokio::test]
    async fn what_hangs_is_killed_at_its_deadline_with_all_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let peer = peer(folder.path(), "sleep 600 & echo $! >$PEER_HOME/pid; wait", "true");
        fs::create_dir_all(&peer.home).unwrap();
        let file = peer.home.join("pid");
        // Long enough for a shell to start on a busy machine: a deadline before that would show nothing.
        let mut within = Duration::from_millis(200);
        while fs::read_to_string(&file).unwrap_or_default().trim().is_empty() {
            assert!(within < Duration::from_secs(60), "the program has not begun");
            let error = peer.ended(peer.command("install"), "install", within, "").await.unwrap_err();
            assert!(error.to_string().contains("does not end within"), "{error:#}");
            within *= 2;
        }
        let pid = fs::read_to_string(&file).unwrap();
        let runs = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while runs() {
            assert!(Instant::now() < deadline, "process {pid} still runs");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
