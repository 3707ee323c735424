//! Submitting in SQL: a task exists exactly when the transaction that submitted it commits, whatever happens to the
//! nodes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    clock::now_ms,
    ledger::{Ledger, Number},
    sandbox::{Builder, Sandbox},
};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::{confirm, flows, held_up_ms, lasts, outage::shard_of, scenario, until};

const SOON: Duration = Duration::from_secs(60);

/// Submits one task inside the transaction that is open.
async fn submit(
    connection: &mut PgConnection,
    ledger: &Ledger,
    due_ms: i64,
    key: Option<String>,
    options: Value,
) -> Result<(Number, String)> {
    let number = ledger.submitting("mail", due_ms);
    let id = sqlx::query_scalar(
        "SELECT duetime.submit('mail', $1, to_timestamp($2::bigint / 1000.0), key => $3, options => $4)::text",
    )
    .bind(json!({ "n": number }))
    .bind(due_ms)
    .bind(key)
    .bind(options)
    .fetch_one(connection)
    .await?;
    Ok((number, id))
}

/// A stream of transactions on one database, one task each. Every third has a key and every third a partition key, so
/// that half of those belong to the other database. Every fifth transaction is rolled back.
pub(crate) async fn stream(url: String, ledger: &Ledger, name: &str, time: Duration) -> Result<()> {
    let mut connection = PgConnection::connect(&url).await?;
    let until = Instant::now() + time;
    let mut count = 0;
    while Instant::now() < until {
        count += 1;
        let key = (count % 3 == 0).then(|| format!("{name} {count}"));
        let options = if count % 3 == 1 { json!({ "partition_key": format!("{name} {count}") }) } else { json!({}) };
        let mut transaction = connection.begin().await?;
        let due_ms = now_ms() + 20 + (count * 37) % 500;
        let (number, id) = submit(&mut transaction, ledger, due_ms, key, options).await?;
        if count % 5 == 0 {
            ledger.refused(number);
            transaction.rollback().await?;
        } else {
            // The ledger counts it from here on: a commit without an answer would fail the story.
            ledger.accepted(number, &id);
            transaction.commit().await?;
        }
        lasts(Duration::from_millis(15)).await;
    }
    Ok(())
}

async fn stream_on_both(sandbox: &Sandbox, time: Duration, trouble: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let ledger = &sandbox.ledger;
    let (one, other, done) = tokio::join!(
        stream(sandbox.database_url(0), ledger, "one", time),
        stream(sandbox.database_url(1), ledger, "other", time),
        trouble(),
    );
    one.and(other).and(done)?;
    ensure!(ledger.wait_all(SOON).await, "tasks are outstanding");
    inboxes_are_empty(sandbox).await
}

/// Waits until both inboxes are empty. A task of the other database arrives there before its row goes here.
async fn inboxes_are_empty(sandbox: &Sandbox) -> Result<()> {
    for database in 0..2 {
        let url = sandbox.database_url(database);
        let left = || async {
            let mut connection = PgConnection::connect(&url).await.ok()?;
            sqlx::query_scalar::<_, i64>("SELECT count(*) FROM duetime.inbox").fetch_one(&mut connection).await.ok()
        };
        let empty = || async { (left().await? == 0).then_some(()) };
        until(&format!("the inbox of database {database} is empty"), SOON, empty).await?;
    }
    Ok(())
}

fn two_databases() -> Builder {
    Sandbox::builder().databases(2)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_fires_on_time_and_what_is_rolled_back_never() {
    scenario(two_databases(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        stream_on_both(sandbox, Duration::from_secs(5), async || Ok(())).await?;
        let late = sandbox.ledger.lateness(0, i64::MAX);
        ensure!(late.p99_ms < 5_000.0 + held_up_ms() as f64, "{late}");
        println!("due 20 ms or more after the submission: {late}");
        how_soon(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_that_cancels_delays_its_own_tasks_and_no_others() {
    const TASKS: usize = 60;
    const HELD: usize = 6;
    scenario(Sandbox::builder(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        // The requests take less time, on a busy machine too.
        let due_ms = now_ms() + 20_000;
        let mut numbers = Vec::new();
        for _ in 0..TASKS {
            numbers.push(crate::submit(&sandbox.client(0), &sandbox.ledger, "mail", due_ms, &json!({})).await?);
        }
        let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
        let mut transaction = connection.begin().await?;
        for number in &numbers[..HELD] {
            sqlx::query("SELECT duetime.cancel($1::uuid)")
                .bind(crate::id_of(&sandbox.ledger, *number)?)
                .execute(&mut *transaction)
                .await?;
        }
        for number in &numbers[HELD..] {
            sandbox.ledger.wait_delivered(*number, 1, SOON).await.context("while the transaction is open")?;
        }
        let early = numbers[..HELD].iter().filter(|number| !sandbox.ledger.deliveries(**number).is_empty()).count();
        ensure!(early == 0, "{early} tasks were delivered that an open transaction holds");
        transaction.rollback().await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks that were not cancelled are outstanding");
        Ok(())
    })
    .await;
}

/// Prints the time from a commit until the task exists.
async fn how_soon(sandbox: &Sandbox) -> Result<()> {
    let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
    let mut took_ms = Vec::new();
    for _ in 0..100 {
        let (number, id) = submit(&mut connection, &sandbox.ledger, now_ms() + 2_000, None, json!({})).await?;
        sandbox.ledger.accepted(number, &id);
        let committed = Instant::now();
        loop {
            let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM duetime.task WHERE id = $1::uuid)")
                .bind(&id)
                .fetch_one(&mut connection)
                .await?;
            if there {
                break;
            }
            ensure!(committed.elapsed() < SOON, "task {id} was not collected");
            // Leaves the cores to the nodes.
            lasts(Duration::from_millis(1)).await;
        }
        took_ms.push(committed.elapsed().as_secs_f64() * 1e3);
    }
    took_ms.sort_by(f64::total_cmp);
    println!(
        "from the commit to the task: p50 {:.1} ms, p90 {:.1} ms, max {:.1} ms",
        took_ms[50], took_ms[90], took_ms[99]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_killed_meanwhile_loses_no_submission() {
    scenario(two_databases(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        stream_on_both(sandbox, Duration::from_secs(9), async || {
            flows(sandbox, 100).await?;
            sandbox.kill(1);
            sandbox.settled().await
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_a_submission_reaches_its_database_loses_nothing() {
    crash_at("after_inbox_leave=10*off->return").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_a_submission_that_has_arrived_is_deleted_doubles_nothing() {
    crash_at("after_collect=30*off->return").await;
}

async fn crash_at(failpoint: &str) {
    scenario(two_databases().failpoints(0, failpoint), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let fault = sandbox.ledger.fault(failpoint);
        stream_on_both(sandbox, Duration::from_secs(9), async || {
            sandbox.node(0).wait_ended(SOON).await?;
            sandbox.ledger.heal(fault);
            sandbox.settled().await
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_for_a_database_that_is_away_waits_and_stands_in_nobodys_way() {
    scenario(two_databases(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let fault = sandbox.ledger.fault("the second database stopped");
        sandbox.postgres(1).stop_immediately().await?;
        let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
        let (mut here, mut away) = (Vec::new(), Vec::new());
        // More than one pass reads, so that the waiting ones could fill it.
        for count in 0..600 {
            let options = json!({ "partition_key": format!("customer {count}") });
            let (number, id) = submit(&mut connection, &sandbox.ledger, now_ms(), None, options).await?;
            sandbox.ledger.accepted(number, &id);
            if shard_of(&id)? < 64 { here.push(number) } else { away.push(number) }
        }
        for number in &here {
            sandbox.ledger.wait_delivered(*number, 1, SOON).await?;
        }
        let late = |numbers: &[Number]| {
            let of = |number: &Number| {
                let delivery = sandbox.ledger.deliveries(*number).into_iter().next()?;
                Some(delivery.at_us / 1_000 - delivery.due_ms?)
            };
            numbers.iter().filter_map(of).max().unwrap_or(0)
        };
        println!("here: at the most {} ms late", late(&here));
        // Every few seconds a pass waits for the unreachable database.
        ensure!(late(&here) < 8_000 + held_up_ms() as i64, "those that are for this database wait for the other one");
        ensure!(
            away.iter().all(|number| sandbox.ledger.deliveries(*number).is_empty()),
            "they arrived while their database was away"
        );
        sandbox.postgres(1).restart().await?;
        sandbox.ledger.heal(fault);
        let back = Instant::now();
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        println!("away: {} ms late, {:?} after it was back", late(&away), back.elapsed());
        inboxes_are_empty(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_task_stays_in_the_inbox_and_is_told_by_its_id() {
    scenario(two_databases(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let mut connection = PgConnection::connect(&sandbox.database_url(1)).await?;
        let reject = json!({ "on_duplicate": "reject" });
        let due_ms = now_ms() + 500;
        let (number, id) =
            submit(&mut connection, &sandbox.ledger, due_ms, Some("k".to_owned()), reject.clone()).await?;
        sandbox.ledger.accepted(number, &id);
        let client = sandbox.client(0);
        until("the first is a task", SOON, || async { client.get(&id).await.ok() }).await?;
        let (number, id) = submit(&mut connection, &sandbox.ledger, due_ms, Some("k".to_owned()), reject).await?;
        sandbox.ledger.refused(number);
        let detail = until("the second is refused", SOON, || async {
            let failure = client.get(&id).await.err()?;
            let detail = failure.problem("detail").to_owned();
            detail.contains("cannot be a task").then_some(detail)
        })
        .await?;
        ensure!(detail.contains("already has this key"), "{detail}");
        let error: Option<String> = sqlx::query_scalar("SELECT error FROM duetime.inbox WHERE id = $1::uuid")
            .bind(&id)
            .fetch_one(&mut connection)
            .await?;
        ensure!(error.is_some());
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_on_one_shard_is_submitted_to_in_every_database_and_cancelled_with_the_transaction() {
    scenario(two_databases(), async |sandbox| {
        let single = json!({ "settle": "confirm", "placement": "single" });
        sandbox.consume_and_ack("mail", &single).await?;
        let mut shards = Vec::new();
        for database in 0..2 {
            let mut connection = PgConnection::connect(&sandbox.database_url(database)).await?;
            let copied = "SELECT 1 FROM duetime.queue WHERE name = 'mail' AND policy ->> 'placement' = 'single'";
            until(&format!("database {database} knows the queue"), SOON, async || {
                sqlx::query(copied).fetch_optional(&mut connection).await.ok()?
            })
            .await?;
            let mut transaction = connection.begin().await?;
            let (number, id) = submit(&mut transaction, &sandbox.ledger, now_ms() + 1_000, None, json!({})).await?;
            sandbox.ledger.accepted(number, &id);
            let (cancelled, of_cancelled) =
                submit(&mut transaction, &sandbox.ledger, now_ms() + 1_000, None, json!({})).await?;
            let outcome: String = sqlx::query_scalar("SELECT duetime.cancel($1::uuid)")
                .bind(&of_cancelled)
                .fetch_one(&mut *transaction)
                .await?;
            ensure!(outcome == "cancelled", "{outcome}");
            sandbox.ledger.refused(cancelled);
            transaction.commit().await?;
            shards.push(shard_of(&id)?);
        }
        ensure!(shards[0] == shards[1], "{shards:?}");
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        inboxes_are_empty(sandbox).await.context("all is collected")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_submitted_and_cancelled_in_one_transaction_is_shown_as_cancelled_wherever_its_shard_is() {
    scenario(two_databases(), async |sandbox| {
        let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
        let mut transaction = connection.begin().await?;
        let mut ids = Vec::new();
        for number in 0..20 {
            // Its key decides its shard: half of the keys are in the other database.
            let id: String = sqlx::query_scalar(
                "SELECT duetime.submit('mail', '{}', now() + interval '1 hour', key => 'k' || $1::int)::text",
            )
            .bind(number)
            .fetch_one(&mut *transaction)
            .await?;
            let outcome: String =
                sqlx::query_scalar("SELECT duetime.cancel($1::uuid)").bind(&id).fetch_one(&mut *transaction).await?;
            ensure!(outcome == "cancelled", "{outcome}");
            ids.push(id);
        }
        transaction.commit().await?;
        let client = sandbox.client(0);
        for id in &ids {
            until(&format!("task {id} is shown as cancelled"), SOON, || async {
                client.get(id).await.ok().filter(|task| task.state == "cancelled")
            })
            .await?;
        }
        Ok(())
    })
    .await;
}
