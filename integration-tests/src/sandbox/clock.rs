//! A clock of a server's own, which can be set while it runs: libfaketime between the server and the machine's clock.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::scratch;

/// Where Debian keeps its libraries, one folder for each architecture.
const LIBRARIES: &str = "/usr/lib";

/// The clock of one server. Its time is the machine's until it is set.
#[derive(Clone, Debug)]
pub struct Clock {
    folder: PathBuf,
    file: PathBuf,
}

/// Whether a server has several threads: the library for those costs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    One,
    Many,
}

impl Clock {
    /// A clock that shows the machine's time.
    pub fn new() -> Result<Self> {
        let folder = scratch::fresh("clock");
        let clock = Self { file: folder.join("offset"), folder };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it so many seconds ahead of the machine's clock, or behind. Each later reading sees the new time.
    pub fn set(&self, ahead_s: i64) -> Result<()> {
        let next = self.folder.join("next");
        fs::write(&next, format!("{ahead_s:+}\n")).with_context(|| format!("writing {}", next.display()))?;
        fs::rename(&next, &self.file).with_context(|| format!("writing {}", self.file.display()))
    }

    /// The program and the words that start a program by this clock. `env` starts it, after `setpriv` has become the
    /// store's user: the library keeps what it shares with child processes under the user of its first process.
    pub(super) fn start(&self, threads: Threads, program: &Path, words: Vec<String>) -> (PathBuf, Vec<String>) {
        let library = library(threads).unwrap_or_default();
        let variables = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            // A step counts for the next reading, not ten seconds later.
            ("FAKETIME_NO_CACHE", "1".into()),
            // A step leaves the time since the start alone, as it does in an operating system.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ]
        .map(|(name, value)| format!("{name}={value}"));
        let program = program.display().to_string();
        ("env".into(), variables.into_iter().chain([program]).chain(words).collect())
    }
}

/// Whether this machine has libfaketime.
pub fn may_set_clocks() -> bool {
    library(Threads::One).is_some() && library(Threads::Many).is_some()
}

fn library(threads: Threads) -> Option<PathBuf> {
    let name = match threads {
        Threads::One => "faketime/libfaketime.so.1",
        Threads::Many => "faketime/libfaketimeMT.so.1",
    };
    let folders = fs::read_dir(Path::new(LIBRARIES)).ok()?;
    folders.flatten().map(|folder| folder.path().join(name)).find(|file| file.exists())
}
