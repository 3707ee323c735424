//! A shard with many rows and with large ones moves: in bounded memory, and its cut is as short as that of a small one.

use std::time::Duration;

use anyhow::{Context, ensure};
use integration_tests::{load::Load, sandbox::Sandbox};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::{
    confirm, load,
    moves::{ask_for, cuts, each_row_once, number},
    poison::peak,
    scenario, until,
};

/// The tasks of the shard in `make test`, and with `DUETIME_TEST_LARGE` set, in `make test-large`.
const ROWS: i64 = 10_000;
const LARGE_ROWS: i64 = 250_000;

/// Each of these besides has a payload of 250 kB.
const HEAVY: i64 = 80;

/// A page has at most some 2 MB of payloads, which the node holds several times, as text.
const GROWN_AT_MOST: u64 = 96 << 20;

const MOVED_WITHIN: Duration = Duration::from_secs(300);

fn filled(rows: i64) -> String {
    let id = |series: &str| format!("(lpad(to_hex({series} + n), 12, '0') || '70008000000000000000')::uuid");
    let insert = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)";
    let due = "(SELECT now() + interval '2 days' AS due) AS d";
    let (small, heavy) = (id("1700000000000"), id("1800000000000"));
    format!(
        "{insert} SELECT {small}, 0, 'later', 'scheduled', due, due, convert_to(repeat('x', 200), 'UTF8'), 'text/plain'
           FROM generate_series(1, {rows}) AS n, {due};
         {insert} SELECT {heavy}, 0, 'later', 'scheduled', due, due, convert_to(repeat(md5(n::text), 7800), 'UTF8'), 'text/plain'
           FROM generate_series(1, {HEAVY}) AS n, {due};
         ANALYZE duetime.task"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_shard_moves_in_bounded_memory_with_a_short_cut() {
    let rows = if std::env::var_os("DUETIME_TEST_LARGE").is_some() { LARGE_ROWS } else { ROWS };
    scenario(Sandbox::builder().databases(2).nodes(1), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let mut source = PgConnection::connect(&sandbox.database_url(0)).await?;
        sqlx::raw_sql(AssertSqlSafe(filled(rows))).execute(&mut source).await?;
        let pid = sandbox.node(0).pid().context("the node runs")?;
        let before = peak(pid)?;
        let stream = load(sandbox, &[0], Load::new("mail", 50), Duration::from_secs(10));
        let began = std::time::Instant::now();
        ask_for(sandbox, 0, vec![0]).await?;
        until("the move has ended", MOVED_WITHIN, || async {
            (number(sandbox, 0, "SELECT count(*) FROM duetime.move_ended").await.ok()? == 1).then_some(())
        })
        .await?;
        let grown = peak(pid)?.saturating_sub(before);
        println!("{rows} rows moved in {:.1} s; the node grew by {} MiB", began.elapsed().as_secs_f32(), grown >> 20);
        ensure!(grown < GROWN_AT_MOST, "the node grew by {} MiB", grown >> 20);
        cuts(sandbox).await?;
        stream.await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(30)).await, "tasks are outstanding");
        let arrived = number(sandbox, 1, "SELECT count(*) FROM duetime.task WHERE queue = 'later'").await?;
        ensure!(arrived == rows + HEAVY, "{arrived} rows have arrived");
        each_row_once(sandbox).await
    })
    .await;
}
