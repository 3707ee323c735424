//! Shards move between two databases while tasks fire.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use integration_tests::{
    client::{Client, Failure},
    clock::now_ms,
    ledger::Ledger,
    load::Load,
    sandbox::Sandbox,
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{confirm, flows, lasts, scenario, sql, stream::Stream, traffic, until};

/// The longest time for a few small moves on a busy machine.
pub(crate) const MOVED_WITHIN: Duration = Duration::from_secs(60);

/// A bound that only shows that a cut does not last as long as a copy or a timeout; the product reports the real time.
const CUT_AT_MOST_MS: i64 = 5_000;

/// The last step of a move begins 5 s after its cut.
const ASKED_EVERY: Duration = Duration::from_secs(4);
const ASKED_AT_MOST: usize = 15;

/// Asks for moves of some shards of a database to the other one. Returns how many.
pub(crate) async fn ask(sandbox: &Sandbox, from: usize, most: i64) -> Result<i64> {
    let wanted = "SELECT id FROM duetime.shard WHERE status = 'here' ORDER BY id LIMIT $1";
    let mut source = PgConnection::connect(&sandbox.database_url(from)).await?;
    let shards = sqlx::query_scalar(wanted).bind(most).fetch_all(&mut source).await?;
    ask_for(sandbox, from, shards).await
}

pub(crate) async fn ask_for(sandbox: &Sandbox, from: usize, shards: Vec<i32>) -> Result<i64> {
    let mut home = PgConnection::connect(&sandbox.database_url(0)).await?;
    sqlx::query(
        "INSERT INTO duetime.move (shard, source, target, requested_by) SELECT s, $2, $3, 'test' FROM unnest($1) AS s \
         ON CONFLICT DO NOTHING",
    )
    .bind(&shards)
    .bind(format!("db{}", from + 1))
    .bind(format!("db{}", 2 - from))
    .execute(&mut home)
    .await?;
    Ok(i64::try_from(shards.len())?)
}

/// An open transaction that has written tasks of a database, as far as its locks tell. No move gets to its copy there
/// as long as the connection is open.
pub(crate) async fn hold_up(sandbox: &Sandbox, database: usize) -> Result<PgConnection> {
    let mut application = PgConnection::connect(&sandbox.database_url(database)).await?;
    sqlx::raw_sql("BEGIN; UPDATE duetime.task SET progress = 1 WHERE false").execute(&mut application).await?;
    Ok(application)
}

/// Checks that each row is in one database only, and in the one that has its shard. The traffic must have ended.
pub(crate) async fn each_row_once(sandbox: &Sandbox) -> Result<()> {
    let elsewhere = "SELECT (SELECT count(*) FROM duetime.move_change) + count(*)
           FROM (SELECT shard FROM duetime.task UNION ALL SELECT shard FROM duetime.archive
                 UNION ALL SELECT duetime.shard_in(id) FROM duetime.received) AS r
           LEFT JOIN duetime.shard AS s ON s.id = r.shard
          WHERE s.status IS DISTINCT FROM 'here'";
    let mut seen = BTreeSet::new();
    for database in 0..2 {
        let left = number(sandbox, database, elsewhere).await?;
        ensure!(left == 0, "{left} rows are left where their shards are not, in database {database}");
        let mut connection = PgConnection::connect(&sandbox.database_url(database)).await?;
        let ids = "SELECT id::text FROM duetime.task UNION ALL SELECT id::text FROM duetime.archive";
        let ids: Vec<String> = sqlx::query_scalar(ids).fetch_all(&mut connection).await?;
        let doubled: Vec<String> = ids.into_iter().filter(|id| !seen.insert(id.clone())).collect();
        ensure!(doubled.is_empty(), "rows that are there twice: {doubled:?}");
    }
    println!("{} rows, each once", seen.len());
    Ok(())
}

/// Asks for moves of shards that a node owns, until it has met its fail point in one of them.
async fn ask_until_ended(sandbox: &Sandbox, node: usize) -> Result<()> {
    let wanted = "SELECT id FROM duetime.shard WHERE status = 'here' AND owner = $1 ORDER BY id LIMIT 2";
    let mut source = PgConnection::connect(&sandbox.database_url(0)).await?;
    for _ in 0..ASKED_AT_MOST {
        let shards = sqlx::query_scalar(wanted).bind(sandbox.node(node).name()).fetch_all(&mut source).await?;
        ask_for(sandbox, 0, shards).await?;
        if sandbox.node(node).wait_ended(ASKED_EVERY).await.is_ok() {
            return Ok(());
        }
    }
    bail!("node {node} has not met its fail point")
}

pub(crate) async fn number(sandbox: &Sandbox, database: usize, query: &'static str) -> Result<i64> {
    let mut connection = PgConnection::connect(&sandbox.database_url(database)).await?;
    Ok(sqlx::query_scalar(query).fetch_one(&mut connection).await?)
}

/// Waits until no move is left; its report is part of a failure.
pub(crate) async fn moved(sandbox: &Sandbox) -> Result<()> {
    let ended = until("all moves have ended", MOVED_WITHIN, || async {
        let left = number(sandbox, 0, "SELECT count(*) FROM duetime.move").await.ok()?;
        (left == 0).then_some(())
    })
    .await;
    if ended.is_err() {
        let mut home = PgConnection::connect(&sandbox.database_url(0)).await?;
        let left: Vec<String> =
            sqlx::query_scalar("SELECT m::text FROM duetime.move AS m").fetch_all(&mut home).await?;
        return ended.with_context(|| format!("left: {left:#?}"));
    }
    ended
}

pub(crate) async fn cuts(sandbox: &Sandbox) -> Result<()> {
    let longest_ms = report_cuts(sandbox).await?;
    ensure!(longest_ms <= CUT_AT_MOST_MS, "a cut took {longest_ms} ms");
    Ok(())
}

/// Prints how many cuts there were, and returns how long the longest was, in milliseconds.
pub(crate) async fn report_cuts(sandbox: &Sandbox) -> Result<i64> {
    let most = number(sandbox, 0, "SELECT coalesce(max(cut_ms), 0) FROM duetime.move_ended").await?;
    let count = number(sandbox, 0, "SELECT count(cut_ms) FROM duetime.move_ended").await?;
    println!("{count} cuts, the longest {most} ms");
    Ok(most)
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_move_there_and_back_under_load() {
    scenario(Sandbox::builder().compared().databases(2).nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 100));
        flows(sandbox, 100).await?;
        let asked = ask(sandbox, 0, 4).await?;
        moved(sandbox).await?;
        let left =
            "SELECT count(*) FROM duetime.task WHERE shard IN (SELECT id FROM duetime.shard WHERE status = 'gone')";
        ensure!(number(sandbox, 0, left).await? == 0, "rows are left in the source");
        let here = "SELECT count(*) FROM duetime.shard WHERE status = 'here' AND epoch > 1 AND id < 64";
        ensure!(number(sandbox, 1, here).await? == asked, "the shards are in the target");
        ask(sandbox, 1, 4).await?;
        moved(sandbox).await?;
        cuts(sandbox).await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        sandbox.settled().await
    })
    .await;
}

/// Submits a task and cancels it around its due time, again and again. The answer must be true.
pub(crate) async fn cancel_at_the_last_moment(client: &Client, ledger: &Ledger, time: Duration) -> Result<()> {
    let began = std::time::Instant::now();
    for turn in 0.. {
        if began.elapsed() > time {
            break;
        }
        let due_ms = now_ms() + 250;
        let number = ledger.submitting("mail", due_ms);
        let task = match client.submit(&json!({ "queue": "mail", "due_at": due_ms, "payload": { "n": number } })).await
        {
            Ok(task) => task,
            Err(_) => {
                ledger.unknown(number);
                continue;
            }
        };
        ledger.accepted(number, &task.id);
        lasts(Duration::from_millis(turn % 16 * 20)).await;
        match client.cancel(&task.id).await {
            Ok(outcome) => ledger.cancelled(number, &outcome),
            Err(Failure::Unknown(_)) => ledger.cancel_unknown(number),
            Err(Failure::NotSent(_)) => {}
            Err(failure) => ensure!(failure.status() == Some(409), "{failure}"),
        }
    }
    Ok(())
}

/// Moves some shards there, and all that are in the target back, until `time` is over.
async fn move_again_and_again(sandbox: &Sandbox, time: Duration) -> Result<()> {
    let began = std::time::Instant::now();
    while began.elapsed() < time {
        for from in [0, 1] {
            ask(sandbox, from, 8).await?;
            moved(sandbox).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_every_kind_hold_while_their_shards_move() {
    const TIME: Duration = Duration::from_secs(30);
    scenario(Sandbox::builder().compared().databases(2).nodes(2), async |sandbox| {
        traffic::consume(sandbox).await?;
        let running = traffic::Traffic::start(sandbox);
        let (ledger, client) = (&sandbox.ledger, sandbox.client(1));
        let (moves, cancels, one, other) = tokio::join!(
            move_again_and_again(sandbox, TIME),
            cancel_at_the_last_moment(&client, ledger, TIME),
            sql::stream(sandbox.database_url(0), ledger, "one", TIME),
            sql::stream(sandbox.database_url(1), ledger, "other", TIME),
        );
        moves.and(cancels).and(one).and(other)?;
        running.end().await?;
        cuts(sandbox).await?;
        ensure!(ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        each_row_once(sandbox).await?;
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_end_although_their_owners_die_at_every_step() {
    let steps = [
        ["after_move_arrive", "after_move_leave"],
        ["after_move_page", "after_move_close"],
        ["after_move_open", "after_move_sweep"],
        ["before_move_end", "after_move_round"],
    ];
    let nodes = Sandbox::builder().compared().databases(2).nodes(2);
    let nodes = (0..2).fold(nodes, |nodes, node| nodes.failpoints(node, &format!("{}=return", steps[0][node])));
    scenario(nodes, async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 50));
        for (round, points) in steps.iter().enumerate() {
            for node in 0..2 {
                let fault = sandbox.ledger.fault(points[node]);
                ask_until_ended(sandbox, node).await?;
                sandbox.ledger.heal(fault);
                match steps.get(round + 1) {
                    Some(next) => sandbox.node(node).start_with_failpoints(&format!("{}=return", next[node]))?,
                    None => sandbox.node(node).start()?,
                }
            }
        }
        stream.end().await?;
        moved(sandbox).await?;
        cuts(sandbox).await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        each_row_once(sandbox).await?;
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_an_open_transaction_and_says_so_and_is_called_off_meanwhile() {
    scenario(Sandbox::builder().compared().databases(2).nodes(1), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0], Load::new("mail", 50));
        flows(sandbox, 50).await?;
        let mut application = hold_up(sandbox, 0).await?;
        ask(sandbox, 0, 2).await?;
        until("the move names the open transaction", MOVED_WITHIN, || async {
            let held_up = "SELECT count(*) FROM duetime.move WHERE problem LIKE '%open transaction%'";
            (number(sandbox, 0, held_up).await.ok()? > 0).then_some(())
        })
        .await?;
        let mut home = PgConnection::connect(&sandbox.database_url(0)).await?;
        let call_off =
            "UPDATE duetime.move SET called_off_at = now() WHERE shard = (SELECT min(shard) FROM duetime.move)";
        sqlx::query(call_off).execute(&mut home).await?;
        sqlx::query("COMMIT").execute(&mut application).await?;
        moved(sandbox).await?;
        let called_off = "SELECT count(*) FROM duetime.move_ended WHERE outcome = 'called_off'";
        ensure!(number(sandbox, 0, called_off).await? == 1, "one was called off");
        ensure!(number(sandbox, 0, "SELECT count(*) FROM duetime.move_ended").await? == 2, "the other has moved");
        cuts(sandbox).await?;
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        sandbox.settled().await
    })
    .await;
}
