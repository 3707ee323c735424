//! `make bench` in small: each part runs once for a few seconds. Every task that it submitted arrived, and none early.
//! Its figures prove nothing here, because the build is not optimised and the time is short. A busy machine may make
//! copies.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::stack;

/// A liveness limit: on a busy machine the parts take six minutes together.
const WITHIN: Duration = Duration::from_secs(1_200);

/// The parts of two benches, which run at the same time on stores of their own: a part in small mostly waits. Each part
/// but `raw` judges what arrived; its lines begin with its name.
const BENCHES: [&str; 2] = ["raw,throughput,submit,result", "lateness,burst,calls,first"];

/// The findings about tasks. A part says of each how many there were.
const FINDINGS: [&str; 5] = ["missing", "early", "stored twice", "unexpected answers", "missing in the end"];

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_the_bench_accounts_for_its_tasks() -> Result<()> {
    let [left, right] = BENCHES;
    tokio::try_join!(accounts_for_its_tasks(left), accounts_for_its_tasks(right))?;
    Ok(())
}

async fn accounts_for_its_tasks(parts: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let args = format!(
        "bench --only {parts} --seconds 2 --pending 500 --rate 100 --queues 1 --burst 2000 --calls-rate 60 --output json"
    );
    let stack::Printed { output, errors } = stack::run(folder.path(), args.split(' '), WITHIN).await?;
    let lines: Vec<Value> = serde_json::from_str(&output).with_context(|| output.clone())?;
    let mut silent: BTreeSet<&str> = parts.split(',').filter(|part| *part != "raw").collect();
    for line in &lines {
        let (part, figure) = (line["part"].as_str().unwrap_or_default(), line["figure"].as_str().unwrap_or_default());
        if FINDINGS.iter().any(|finding| figure.ends_with(finding)) {
            ensure!(line["value"] == 0.0, "{line}\n{errors}");
            silent.retain(|name| !part.starts_with(name));
        }
    }
    ensure!(silent.is_empty(), "{silent:?} did not tell what became of their tasks: {lines:#?}");
    Ok(())
}
