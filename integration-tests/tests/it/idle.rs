//! What a cluster without tasks asks of its stores.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::Sandbox;
use reqwest::Method;
use tokio::time::Instant;

use crate::{lasts, scenario};

/// The time over which statements are counted. Everything that a node does every ten seconds or more often is in it.
const COUNTED_FOR: Duration = Duration::from_secs(12);

/// The most statements a second of three nodes together.
const MOST_A_SECOND: f64 = 40.0;

/// What follows a start ends by then: first reads, and looks for what was left behind.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// The statements of all nodes so far, by their names.
async fn statements(sandbox: &Sandbox) -> Result<BTreeMap<String, f64>> {
    let mut all = BTreeMap::new();
    for client in sandbox.clients() {
        let answer = client.send(Method::GET, "/metrics", None).await?;
        for line in answer.text().await?.lines() {
            let Some(labels) = line.strip_prefix("duetime_database_statement_seconds_count{") else { continue };
            let (_, rest) = labels.split_once("op=\"").context(labels.to_owned())?;
            let (op, _) = rest.split_once('"').context(labels.to_owned())?;
            let (_, count) = line.rsplit_once(' ').context(labels.to_owned())?;
            *all.entry(op.to_owned()).or_default() += count.parse::<f64>()?;
        }
    }
    Ok(all)
}

/// The rate of statements over [`COUNTED_FOR`], and the part of each name.
async fn measured(sandbox: &Sandbox) -> Result<(f64, String)> {
    let (before, began) = (statements(sandbox).await?, Instant::now());
    lasts(COUNTED_FOR).await;
    let (after, seconds) = (statements(sandbox).await?, began.elapsed().as_secs_f64());
    let mut rates: Vec<(f64, &str)> = after
        .iter()
        .map(|(op, count)| ((count - before.get(op).copied().unwrap_or_default()) / seconds, op.as_str()))
        .filter(|(rate, _)| *rate > 0.0)
        .collect();
    rates.sort_by(|one, other| other.0.total_cmp(&one.0));
    let listed: Vec<String> = rates.iter().map(|(rate, op)| format!("{op} {rate:.1}")).collect();
    Ok((rates.iter().map(|(rate, _)| rate).sum(), listed.join(", ")))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_sends_few_statements() {
    scenario(Sandbox::builder().unwatched(), async |sandbox| {
        let deadline = Instant::now() + QUIET_WITHIN;
        loop {
            let (all, listed) = measured(sandbox).await?;
            println!("{all:.1} statements a second: {listed}");
            if all <= MOST_A_SECOND {
                return Ok(());
            }
            let is_early = Instant::now() < deadline;
            ensure!(is_early, "{all:.1} statements a second, not {MOST_A_SECOND}: {listed}");
        }
    })
    .await;
}
