//! Runs `stack` as its users do.

use std::{ffi::OsStr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// What it printed.
pub(crate) struct Printed {
    pub output: String,
    pub errors: String,
}

/// Runs it with its files in `folder`. Fails when it fails or takes longer than `within`.
pub(crate) async fn run<A: AsRef<OsStr>>(
    folder: &Path,
    args: impl IntoIterator<Item = A>,
    within: Duration,
) -> Result<Printed> {
    let ran = Command::new(env!("CARGO_BIN_EXE_stack"))
        .arg("--folder")
        .arg(folder)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ran = tokio::time::timeout(within, ran).await.context("it does not end")??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = Printed { output: text(&ran.stdout), errors: text(&ran.stderr) };
    ensure!(ran.status.success(), "{}{}", printed.output, printed.errors);
    Ok(printed)
}
