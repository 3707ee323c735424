//! `stack up`, `down`, `demo`, `bench`, `peers`, `alerts`, `chaos`: a whole Duetime on this machine, to try, to watch,
//! to measure and to break.
#![expect(clippy::print_stdout, reason = "its output is for a person")]

mod alerts;
mod bench;
mod chaos;
mod demo;
mod down;
mod env_file;
mod peers;
mod place;
mod say;
mod up;
mod view;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// A whole Duetime on this machine: three stores, three nodes.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder of the stack's files.
    #[arg(long, global = true, default_value = ".local")]
    folder: PathBuf,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start stores and nodes and leave them running.
    Up(up::Options),
    /// Stop what `up` started.
    Down(down::Options),
    /// Start a cluster of its own, send it tasks, kill its master half way, and judge.
    Demo(demo::Options),
    /// Measure lateness, throughput and takeovers on clusters of its own.
    Bench(bench::Options),
    /// Measure Duetime and other schedulers on the same work, in one table.
    Peers(peers::Options),
    /// Make each alert fire by its cause, and clear again, on a cluster of its own.
    Alerts(alerts::Options),
    /// Break a cluster of its own by a seeded plan, under a load of every feature, and judge.
    Chaos(chaos::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    match runtime.block_on(run(arguments)) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Verb::Up(options) => up::run(&arguments.folder, &options).await,
        Verb::Down(options) => down::run(&arguments.folder, &options).await,
        Verb::Demo(options) => demo::run(&arguments.folder, &options).await,
        Verb::Bench(options) => bench::run(&arguments.folder, &options).await,
        Verb::Peers(options) => peers::run(&arguments.folder, &options).await,
        Verb::Alerts(options) => alerts::run(&arguments.folder, &options).await,
        Verb::Chaos(options) => chaos::run(&arguments.folder, &options).await,
    }
}

#[expect(clippy::print_stderr, reason = "errors go to standard error")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("stack: {error:#}");
    ExitCode::FAILURE
}
