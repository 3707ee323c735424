//! `stack chaos`: faults by a seeded plan under a load of every feature, judged from a history, with a report.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Args;
use integration_tests::{
    chaos::{self, Plan},
    clock::now_ms,
    ledger::Verdict,
    sandbox::scratch_below,
};

use crate::say::say;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long load and faults last; what is due by then is waited for.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Decides faults, victims and times. Chosen and printed when absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Submissions a second, of all kinds together.
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// Only these faults; `--list` names them.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// One server of each store, instead of two databases with a standby, three brokers and three members of etcd.
    #[arg(long)]
    small: bool,
    /// Folder of the history and the report. A folder of its own below `.local/chaos` when absent.
    #[arg(long)]
    out: Option<PathBuf>,
    /// List the faults, and run nothing.
    #[arg(long)]
    list: bool,
    /// Judge the history of a former run again, and run nothing.
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    if options.list {
        for fault in chaos::known_faults() {
            let lack = fault.lack.map(|lack| format!(" (not here: {lack})")).unwrap_or_default();
            say(format_args!("{:<22}{:<5}{}{lack}", fault.name, fault.row, fault.says));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(history) = &options.judge {
        return Ok(conclude(&chaos::judge(history)?));
    }
    ensure!(options.minutes > 0.0 && options.minutes < 100_000.0, "a run takes some time");
    let seed = options.seed.unwrap_or_else(|| now_ms().unsigned_abs());
    scratch_below(&base.join("chaos").join("stores"))?;
    let plan = Plan {
        seed,
        time: Duration::from_secs_f64(options.minutes * 60.0),
        rate: options.rate,
        small: options.small,
        faults: options.faults.clone(),
        folder: options.out.clone().unwrap_or_else(|| base.join("chaos").join(format!("seed-{seed}"))),
    };
    say(format_args!("seed {seed}; history and report: {}", plan.folder.display()));
    // Dropping the cluster stops its nodes; the stores end with this process.
    tokio::select! {
        verdict = chaos::run(&plan, |line| say(line)) => Ok(conclude(&verdict?)),
        _ = tokio::signal::ctrl_c() => {
            say("\ninterrupted: all is stopped; `stack chaos --judge` judges what the history has");
            Ok(ExitCode::from(130))
        }
    }
}

fn conclude(verdict: &Verdict) -> ExitCode {
    say(verdict);
    if verdict.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
