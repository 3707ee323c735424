//! Nodes of the last release beside nodes of this version: an upgrade, a rollback and a second upgrade under load.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    consumer::Answer,
    ledger::Ledger,
    load::Load,
    sandbox::{Release, Sandbox, last_release, migrate},
};
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::{
    command::Terminal,
    confirm, flows, held_up_ms,
    language::skipped,
    moves, scenario, schedule,
    stream::Stream,
    traffic::{self, Traffic},
};

/// No task may be later than this while nodes are replaced. `membership` has a narrower bound under a lighter load.
const GAP_MS: f64 = 5_000.0;
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// The last release, if it was built.
#[track_caller]
pub(crate) fn built_release() -> Result<Option<(Release, std::path::PathBuf)>> {
    let release = last_release()?;
    let Some(program) = release.program.clone() else {
        skipped(&format!("{} was not built; see integration-tests/build-last-release", release.version));
        return Ok(None);
    };
    Ok(Some((release, program)))
}

/// Replaces a running node by one of `program`, or of this version.
async fn replace(sandbox: &Sandbox, number: usize, program: Option<&Path>, with_drain: bool) -> Result<()> {
    let node = sandbox.node(number);
    if with_drain {
        let drained = Terminal::of(sandbox).json(&["cluster", "drain", node.name(), "--wait"]).await?;
        ensure!(drained["drained"] == true && drained["shards_owned"] == 0, "{drained}");
    }
    let status = node.stop(STOP_WITHIN).await?;
    ensure!(status.success(), "{} left with {status}", node.name());
    node.set_program(program);
    sandbox.restart(number).await?;
    sandbox.settled().await
}

/// The versions of all nodes, in order, as each node shows them.
async fn versions(sandbox: &Sandbox) -> Result<Vec<String>> {
    let mut shown: Option<Vec<String>> = None;
    for client in sandbox.clients() {
        let report = client.cluster().await?;
        let nodes = report["nodes"].as_array().context("nodes")?;
        let mut versions: Vec<_> =
            nodes.iter().map(|node| (node["name"].to_string(), node["version"].clone())).collect();
        versions.sort_by(|one, other| one.0.cmp(&other.0));
        let versions =
            versions.into_iter().map(|(_, version)| version.as_str().unwrap_or_default().to_owned()).collect();
        ensure!(shown.as_ref().is_none_or(|shown| *shown == versions), "{shown:?} and {versions:?}");
        shown = Some(versions);
    }
    shown.context("there are nodes")
}

/// The median and the longest lateness of each queue's first attempts, in milliseconds.
fn lateness_by_queue(ledger: &Ledger) -> BTreeMap<String, (i64, i64)> {
    let mut late_ms: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for arrival in ledger.arrivals().into_iter().filter(|arrival| arrival.attempt == 1) {
        if let Some(due_ms) = arrival.due_ms {
            late_ms.entry(arrival.queue).or_default().push(arrival.at_us / 1_000 - due_ms);
        }
    }
    let summary = |mut late_ms: Vec<i64>| {
        late_ms.sort_unstable();
        (late_ms[late_ms.len() / 2], late_ms[late_ms.len() - 1])
    };
    late_ms.into_iter().map(|(queue, late_ms)| (queue, summary(late_ms))).collect()
}

pub(crate) async fn schema_of(sandbox: &Sandbox) -> Result<i64> {
    let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
    let newest = "SELECT max(version) FROM duetime.migration WHERE success";
    Ok(sqlx::query_scalar(newest).fetch_one(&mut connection).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_upgraded_and_rolled_back_node_by_node_while_tasks_fire() -> Result<()> {
    let Some((release, old)) = built_release()? else { return Ok(()) };
    scenario(Sandbox::builder().program(&old), async |sandbox| {
        traffic::consume(sandbox).await?;
        let (_pulses, arrivals) = schedule::consume(sandbox, "pulse", &confirm(), |_| Answer::ack()).await?;
        schedule::put(&sandbox.client(0), "s", "pulse", &json!({ "overlap": "allow" })).await?;
        let traffic = Traffic::start(sandbox);

        ensure!(schema_of(sandbox).await? == release.schema);
        sandbox.node(0).set_program(None);
        migrate(sandbox.node(0)).await?;
        ensure!(schema_of(sandbox).await? > release.schema, "there is nothing to migrate");
        let own = env!("CARGO_PKG_VERSION");
        for number in 0..3 {
            replace(sandbox, number, None, number == 1).await?;
            let mut expected = vec![own; number + 1];
            expected.resize(3, &release.version);
            let found = versions(sandbox).await?;
            ensure!(found == expected, "{found:?}, not {expected:?}");
        }
        // As `helm rollback` does it: the former migration runs too, and leaves the newer schema alone.
        sandbox.node(0).set_program(Some(&old));
        migrate(sandbox.node(0)).await?;
        ensure!(schema_of(sandbox).await? > release.schema);
        for number in 0..3 {
            replace(sandbox, number, Some(&old), number == 2).await?;
        }
        ensure!(versions(sandbox).await? == vec![release.version.as_str(); 3]);
        for number in [2, 0, 1] {
            replace(sandbox, number, None, number == 0).await?;
        }
        traffic.end().await?;

        ensure!(sandbox.ledger.wait_all(Duration::from_secs(30)).await, "tasks are outstanding");
        let lateness = sandbox.ledger.judge().lateness;
        let by_queue = lateness_by_queue(&sandbox.ledger);
        ensure!(lateness.max_ms <= GAP_MS + held_up_ms() as f64, "{lateness}; {by_queue:?}");
        let client = sandbox.live()?;
        schedule::turn(&client, "s", "pause").await?;
        schedule::all_made(sandbox).await?;
        let made = schedule::made(&client, "s", "pulse").await?;
        let left_out = schedule::left_out(&made);
        ensure!(left_out.is_empty() && made.len() >= 10, "left out: {left_out:?} of {}", made.len());
        println!("{} fire times of the schedule; {lateness}; median and maximum in ms: {by_queue:?}", made.len());
        schedule::arrived(&arrivals, &made).await
    })
    .await;
    Ok(())
}

/// The owners of the shards that move are of both versions, and each shard has one of them at each step.
#[tokio::test(flavor = "multi_thread")]
async fn shards_move_between_databases_of_a_cluster_of_two_versions() -> Result<()> {
    let Some((_, old)) = built_release()? else { return Ok(()) };
    scenario(Sandbox::builder().databases(2).nodes(2).program(&old), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 50));
        flows(sandbox, 50).await?;
        sandbox.node(0).set_program(None);
        migrate(sandbox.node(0)).await?;
        replace(sandbox, 0, None, true).await?;
        for (from, to) in [(0, 1), (1, 0)] {
            let both = owned_by_each(sandbox, from).await?;
            moves::ask_for(sandbox, from, both).await?;
            moves::moved(sandbox).await?;
            ensure!(
                moves::number(sandbox, to, "SELECT count(*) FROM duetime.shard WHERE status = 'arriving'").await? == 0
            );
        }
        moves::cuts(sandbox).await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        moves::each_row_once(sandbox).await?;
        sandbox.settled().await
    })
    .await;
    Ok(())
}

/// Two shards of each node that are in a database.
async fn owned_by_each(sandbox: &Sandbox, database: usize) -> Result<Vec<i32>> {
    let mut connection = PgConnection::connect(&sandbox.database_url(database)).await?;
    let mut shards = Vec::new();
    for node in sandbox.nodes() {
        let some = "SELECT id FROM duetime.shard WHERE status = 'here' AND owner = $1 ORDER BY id LIMIT 2";
        let owned: Vec<i32> = sqlx::query_scalar(some).bind(node.name()).fetch_all(&mut connection).await?;
        ensure!(owned.len() == 2, "{} owns {owned:?}", node.name());
        shards.extend(owned);
    }
    Ok(shards)
}
