//! `duetime shard rebalance` by hand: its plan, the wait for its moves, and one of them called off meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{load::Load, sandbox::Sandbox};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::{
    command::Terminal,
    confirm, flows, load,
    moves::{MOVED_WITHIN, cuts, each_row_once, moved},
    scenario, until,
};

/// Gives each of these shards 1,000 tasks for the day after tomorrow, in the first database.
pub(crate) async fn fill(sandbox: &Sandbox, shards: std::ops::Range<u16>) -> Result<()> {
    let (first, last) = (shards.start, shards.end - 1);
    let fill = format!(
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || '7000800000000000' || lpad(to_hex(s), 4, '0'))::uuid, s, 'later',
                'scheduled', due, due, '{{}}', 'application/json'
           FROM generate_series({first}, {last}) AS s, generate_series(1, 1000) AS n, (SELECT now() + interval '2 days' AS due) AS d"
    );
    let mut database = PgConnection::connect(&sandbox.database_url(0)).await?;
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(&mut database).await?;
    Ok(())
}

/// The shards that the terminal lists as moving.
async fn moving(terminal: &Terminal) -> Result<Vec<String>> {
    let list = terminal.json(&["shard", "moves"]).await?;
    let moves = list["moves"].as_array().context("a list of moves")?;
    Ok(moves.iter().filter(|it| it["step"] != "cleaning").map(|it| it["shard"].to_string()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uneven_load_is_divided_by_hand_and_a_move_is_called_off_meanwhile() {
    scenario(Sandbox::builder().databases(2).nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0, 1], Load::new("mail", 50), Duration::from_secs(15));
        fill(sandbox, 0..8).await?;
        // The first task that finishes would make its shard the one with the whole rate.
        flows(sandbox, 200).await?;
        let terminal = Terminal::of(sandbox);
        let plan = terminal.text(&["shard", "rebalance", "--dry-run"]).await?;
        ensure!(plan.contains("SHARDS") && plan.contains("nothing was changed: this was a dry run"), "{plan}");
        ensure!(moving(&terminal).await?.is_empty(), "a dry run moves nothing");
        terminal.ends(2, &["shard", "rebalance", "--dry-run", "--wait"], "").await?;
        // The load goes on, and the rates and sizes of its shards change by the second. So what tells an even load
        // from an uneven one tolerates much more than the plan leaves, and much less than there is now.
        let uneven = ["shard", "rebalance", "--dry-run", "--tolerance", "35"];
        let plan = terminal.text(&uneven).await?;
        ensure!(plan.contains("SHARDS"), "{plan}");

        let done = terminal.json(&["shard", "rebalance", "--tolerance", "5", "--wait"]).await?;
        ensure!(done["moves"][0]["to"] == "db2", "{done}");
        ensure!(moving(&terminal).await?.is_empty(), "it has waited for the moves");
        let places = terminal.json(&["shard", "list"]).await?;
        let places = places["shards"].as_array().context("a list of shards")?;
        let arrived = (0..8).filter(|shard| places[*shard]["database"] == "db2").count();
        ensure!((1..8).contains(&arrived), "{arrived} of the 8 full shards are in the other database");
        let plan = terminal.text(&uneven).await?;
        ensure!(plan.contains("no shard has to move"), "{plan}");

        fill(sandbox, 16..22).await?;
        let (refused, called_off) = tokio::join!(terminal.refused(&["shard", "rebalance", "--wait"]), async {
            let shards = until("a shard moves", MOVED_WITHIN, || async {
                moving(&terminal).await.ok().filter(|shards| !shards.is_empty())
            });
            let shard = shards.await?.pop().context("a shard")?;
            terminal.text(&["shard", "call-off", &shard]).await.map(|_| shard)
        });
        let (refused, called_off) = (refused?, called_off?);
        ensure!(refused.contains(&format!("the moves of the shards {called_off} were called off")), "{refused}");
        moved(sandbox).await?;
        let ended = terminal.text(&["shard", "moves", "--ended"]).await?;
        ensure!(ended.contains("called off") && ended.contains("moved"), "{ended}");
        cuts(sandbox).await?;
        stream.await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(30)).await, "tasks are outstanding");
        each_row_once(sandbox).await
    })
    .await;
}
