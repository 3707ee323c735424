//! A PostgreSQL whose disk can be full: its data have a file system of their own, whose size changes while it runs.

use std::{path::Path, sync::OnceLock};

use anyhow::{Context, Result};

use super::Postgres;
use crate::sandbox::{
    process::{self, Tether},
    scratch,
};

/// Enough for hours of load. Only what is used takes memory.
const ROOM: &str = "size=4g";
/// More often than a server under load grows between two looks.
const TRIES: usize = 50;
/// The WAL leaves room for the data.
const SETTINGS: &[&str] = &["-c", "max_wal_size=256MB"];

impl Postgres {
    /// Like [`Postgres::start`], on a file system of its own. The data go with it when this process ends.
    pub async fn start_in_room(folder: &Path, tether: Tether) -> Result<Self> {
        let mut server = Self::set_up(folder, tether)?;
        server.options = SETTINGS;
        let data = server.data();
        server.account.own_folder(&data)?;
        mount(ROOM, &data).await?;
        server.account.own_folder(&data)?;
        // In its place: no folder can be renamed to that of a file system.
        server.initialise(&data).await?;
        server.started().await
    }

    /// Leaves the file system no free byte, which works only after [`Postgres::start_in_room`].
    pub async fn take_room(&self) -> Result<()> {
        let mut taken = Ok(());
        // The server may have grown since the look, and then it is refused.
        for _ in 0..TRIES {
            let mut look = tokio::process::Command::new("df");
            look.args(["--block-size=1", "--output=used"]).arg(self.data());
            let used = process::run("df", look).await?;
            let used = used.lines().last().context("df prints a number")?.trim().to_owned();
            taken = mount(&format!("remount,size={used}"), &self.data()).await;
            if taken.is_ok() {
                break;
            }
        }
        taken
    }

    pub async fn give_room(&self) -> Result<()> {
        mount(&format!("remount,{ROOM}"), &self.data()).await
    }
}

async fn mount(options: &str, folder: &Path) -> Result<()> {
    let mut mount = tokio::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder);
    process::run(&format!("mount -o {options}"), mount).await.map(drop)
}

/// Whether this process may mount a file system, which takes root, and a container may forbid it even then.
pub fn may_mount() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let folder = scratch::fresh("mount");
        let runs = |program: &str, words: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(words).arg(&folder).stderr(std::process::Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        runs("mount", &["-t", "tmpfs", "-o", "size=4k", "tmpfs"]) && runs("umount", &[])
    })
}
