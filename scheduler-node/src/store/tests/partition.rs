//! The archive's daily partitions.

use chrono::{Days, NaiveDate};

use super::fixture;
use crate::store::partition::Turned;

#[tokio::test]
async fn partitions_are_made_ahead_once_and_dropped_when_their_day_has_passed() {
    let test = fixture::database().await;
    let today: NaiveDate =
        sqlx::query_scalar("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date").fetch_one(&test.pool).await.unwrap();
    let past = today.checked_sub_days(Days::new(2)).unwrap();
    let name = format!("archive_{}", past.format("%Y%m%d"));
    let create = format!(
        "CREATE TABLE duetime.{name} PARTITION OF duetime.archive FOR VALUES FROM ('{past}') TO ('{}')",
        past.succ_opt().unwrap()
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&test.pool).await.unwrap();
    assert_eq!(test.database.partitions_turn(1).await.unwrap(), Turned { made: 0, dropped: 1 });
    let gone: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NULL")
        .bind(format!("duetime.{name}"))
        .fetch_one(&test.pool)
        .await
        .unwrap();
    assert!(gone);
    let further = test.database.partitions_turn(60).await.unwrap();
    assert!(further.made > 0);
    assert_eq!(test.database.partitions_turn(60).await.unwrap(), Turned::default());
}

#[tokio::test]
async fn turning_partitions_waits_for_no_reader_and_no_writer() {
    let test = fixture::database().await;
    let mut reader = test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT count(*) FROM duetime.archive; SELECT count(*) FROM duetime.task")
        .execute(&mut *reader)
        .await
        .unwrap();
    // The server's lock timeout is 2 s: a lock that conflicts with the reader's would fail.
    assert!(test.database.partitions_turn(80).await.unwrap().made > 0);
    sqlx::raw_sql("COMMIT").execute(&mut *reader).await.unwrap();
}
