//! The sessions of applications: a submission and a cancellation in SQL mean the same, whatever an application sets.

use common::ids::ShardId;

use super::{fixture, inbox::submit};
use crate::{
    coordination::tests::soon,
    store::watch::{Notification, Nudge},
};

/// PostgreSQL prepares no transaction that has notified.
#[tokio::test]
async fn a_transaction_that_asks_for_no_notification_cancels_without_one() {
    let test = fixture::database().await;
    let id = submit(&test, "'mail', '{}'").await;
    sqlx::raw_sql("UPDATE duetime.shard SET status = 'gone'").execute(&test.pool).await.unwrap();
    let mut nudges = test.database.nudges(None).await.unwrap();
    let mut application = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SET LOCAL duetime.notified = 'yes'").execute(&mut *application).await.unwrap();
    sqlx::query("SELECT duetime.cancel($1)").bind(id.uuid()).execute(&mut *application).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut *application).await.unwrap();
    // This one is sent last, so it is heard last.
    test.database.tell(&Nudge { shards: [ShardId::new(0)].into(), ..Nudge::default() }).await.unwrap();
    assert_ne!(soon("a notification", nudges.next()).await.unwrap(), Notification::Inbox);
}

#[tokio::test]
async fn a_submission_is_due_at_the_moment_that_was_given_whatever_the_session_sets() {
    let test = fixture::database().await;
    let mut application = test.pool.acquire().await.unwrap();
    let settings = "SET TimeZone = 'UTC-3'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'; SET bytea_output = 'escape'";
    sqlx::raw_sql(settings).execute(&mut *application).await.unwrap();
    sqlx::query("SELECT duetime.submit('mail', '{}', '2031-01-01T12:00Z')").execute(&mut *application).await.unwrap();
    let due_at: String =
        sqlx::query_scalar("SELECT request ->> 'due_at' FROM duetime.inbox").fetch_one(&test.pool).await.unwrap();
    assert_eq!(due_at, "2031-01-01T12:00:00.000000Z");
}

/// From PostgreSQL 18 on, a session decides what the name of a zone means, even `UTC`.
#[tokio::test]
async fn what_an_application_calls_names_no_time_zone() {
    let test = fixture::database().await;
    let named: Vec<String> = sqlx::query_scalar(
        "SELECT proname::text FROM pg_proc
          WHERE pronamespace = 'duetime'::regnamespace AND proname IN ('submit', 'cancel', 'inbox_cancelled')
            AND prosrc ~* 'zone +'''",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    assert_eq!(named, Vec::<String>::new());
}
