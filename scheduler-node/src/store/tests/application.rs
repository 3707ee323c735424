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
