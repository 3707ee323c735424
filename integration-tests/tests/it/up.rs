//! `make up` and `make down`: a start that is broken off leaves nothing that `make down` does not stop.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::{HISTORY, Identity, Signal, fresh};
use tokio::process::Command;

use crate::{stack, until};

/// A liveness limit: RabbitMQ alone may take a minute and a half to start on a busy machine.
const WITHIN: Duration = Duration::from_secs(300);
/// The time that PostgreSQL's and Erlang's helpers take to notice the end of their server.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Whether a process works in this folder, or below it.
fn is_used(folder: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .map(|process| fs::read_link(process.path().join("cwd")))
        .any(|cwd| cwd.is_ok_and(|cwd| cwd.starts_with(folder)))
}

async fn none_is_left(folder: &Path) -> Result<()> {
    until("no process is left", GONE_WITHIN, || async { (!is_used(folder)).then_some(()) }).await
}

/// Starts a stack and sends it `signal` once all its stores are on record, before they answer. Returns its folder.
async fn broken_off(signal: Signal) -> Result<PathBuf> {
    let folder = fresh("up");
    let mut up = Command::new(env!("CARGO_BIN_EXE_stack"))
        .arg("--folder")
        .arg(&folder)
        .arg("up")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    // It is launched last, and takes seconds to answer.
    let record = folder.join("stack/running.json");
    let is_recorded = || fs::read_to_string(&record).is_ok_and(|record| record.contains("\"rabbitmq\""));
    until("RabbitMQ starts", WITHIN, || async { is_recorded().then_some(()) }).await?;
    Identity::of("stack up", up.id().context("it runs")?)?.end(signal, WITHIN).await?;
    ensure!(!up.wait().await?.success(), "it was not interrupted");
    Ok(folder)
}

/// Starts a stack as `make up | head` does, whose reader has seen enough.
async fn started_without_reader(folder: &Path) -> Result<()> {
    let (_, without_reader) = std::io::pipe()?;
    let mut up = Command::new(env!("CARGO_BIN_EXE_stack"));
    up.arg("--folder").arg(folder).arg("up").stdin(Stdio::null()).stdout(without_reader).kill_on_drop(true);
    let ended = tokio::time::timeout(WITHIN, up.status()).await.context("it does not end")??;
    ensure!(ended.success() && folder.join("env").exists(), "{ended}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_asked_to_end_stops_what_it_has_started() -> Result<()> {
    for signal in [Signal::Int, Signal::Term, Signal::Hup] {
        none_is_left(&broken_off(signal).await?).await.with_context(|| format!("{signal:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_whose_start_was_killed_is_stopped_and_starts_again() -> Result<()> {
    let folder = broken_off(Signal::Kill).await?;
    stack::run(&folder, ["down"], WITHIN).await?;
    none_is_left(&folder).await?;
    started_without_reader(&folder).await?;
    let again = stack::run(&folder, ["up"], WITHIN).await?;
    let files = fs::read_dir(folder.join("stack/nodes"))?.flatten().map(|file| file.path()).collect::<Vec<_>>();
    stack::run(&folder, ["down", "--purge"], WITHIN).await?;
    none_is_left(&folder).await?;
    ensure!(again.output.contains("already runs"), "{}", again.output);
    ensure!(!files.iter().any(|file| file.extension().is_some_and(|is| is == HISTORY)), "{files:?}");
    ensure!(!folder.join("stack").exists(), "the data are still there");
    Ok(())
}
