//! Processes that may outlive the process that started them.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::process::{Signal, send};

/// A process that another process started, or an earlier run of this one. Its id and its start time together are
/// unique.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub name: String,
    pub pid: u32,
    /// In clock ticks since the machine started.
    began: u64,
}

impl Identity {
    /// The identity of a running process.
    pub fn of(name: &str, pid: u32) -> Result<Self> {
        let began = began(pid).with_context(|| format!("{name} (pid {pid}) has already ended"))?;
        Ok(Self { name: name.to_owned(), pid, began })
    }

    pub fn is_running(&self) -> bool {
        began(self.pid) == Some(self.began)
    }

    /// Sends `signal` and waits for the end; SIGKILL when that does not come in time. Does nothing if the process has
    /// ended before.
    pub async fn end(&self, signal: Signal, within: Duration) -> Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        send(self.pid, signal).ok();
        if !self.gone(within).await {
            send(self.pid, Signal::Kill).ok();
            if !self.gone(within).await {
                bail!("{} (pid {}) does not end", self.name, self.pid);
            }
        }
        Ok(())
    }

    async fn gone(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.is_running() {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }
}

/// When a process began; `None` when it has ended, even if it is still a zombie.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may hold anything; the third is the state, the 22nd the start.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
