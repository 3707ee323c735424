//! `make bench-peers` in small: Duetime and a sorted set in Redis do the same works, and what arrived is judged.

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::Redis;
use serde_json::Value;

use crate::{language, stack};

const PENDING: u64 = 200;
const TASKS: u64 = 300;
const RATE: u64 = 100;
const SECONDS: u64 = 2;
const WITHIN: std::time::Duration = std::time::Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
async fn duetime_and_a_sorted_set_do_the_same_works() {
    if !Redis::is_installed() {
        language::skipped("Redis is not installed; see integration-tests/install redis");
        return;
    }
    compare().await.expect("all of it was run, and nothing was lost, doubled or early");
}

async fn compare() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let args = format!(
        "peers --only duetime,sorted-set --works late,burst --runs 1 --seconds {SECONDS} --rate {RATE} --pending {PENDING} --tasks {TASKS}"
    );
    let stack::Printed { output, errors } = stack::run(folder.path(), args.split(' '), WITHIN).await?;
    let file = |name: &str| std::fs::read_to_string(folder.path().join("peers").join(name)).context("a result");
    ensure!(file("table.md")? == output.trim_end_matches('\n').to_owned() + "\n", "the table is printed and kept");
    ensure!(file("chart.svg")?.contains("sorted-set"), "the chart shows each peer");

    let results: Value = serde_json::from_str(&file("results.json")?)?;
    let rows = results["rows"].as_array().context("rows")?;
    ensure!(rows.len() == 2, "{errors}{rows:#?}");
    for row in rows {
        for (work, count) in [("late", RATE * SECONDS), ("burst", TASKS)] {
            let seen = &row["runs"][work][0]["arrivals"];
            ensure!(seen["submitted"] == count && seen["arrived"] == count, "{work}: {row:#}\n{errors}");
            let findings = [&seen["lost"], &seen["doubled"], &seen["early"]];
            ensure!(findings.iter().all(|finding| **finding == 0), "{work}: {row:#}");
        }
    }
    Ok(())
}
