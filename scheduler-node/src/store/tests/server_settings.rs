//! The settings of a server are read as its sessions have them, and the indexes as they are.

use common::hint::postgres_hints;
use sqlx::AssertSqlSafe;

use super::fixture;

/// The settings of a database, read by a connection that begins now.
async fn hinted(url: &str) -> Vec<(&'static str, String)> {
    let settings = fixture::open(url).server_settings().await.unwrap();
    postgres_hints(&settings).into_iter().map(|hint| (hint.setting, hint.current)).collect()
}

#[tokio::test]
async fn a_setting_that_is_far_from_its_recommendation_is_found_on_a_real_server() {
    let test = fixture::database().await;
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&test.pool).await.unwrap();
    let settings = test.database.server_settings().await.unwrap();
    assert!(
        settings.archive_locks > 20 && settings.lock_room >= 100 * settings.max_locks_per_transaction,
        "{settings:?}"
    );
    let before = hinted(&test.url).await;
    assert!(before.contains(&("max_wal_size", "2 GB".to_owned())), "{before:?}");
    for (change, current) in [("SET synchronous_commit = off", Some("off")), ("SET synchronous_commit = local", None)] {
        let alter = format!("ALTER DATABASE \"{name}\" {change}");
        sqlx::query(AssertSqlSafe(alter)).execute(&test.pool).await.unwrap();
        let found = hinted(&test.url).await;
        let found = found.iter().find(|(of, _)| *of == "synchronous_commit").map(|(_, current)| current.as_str());
        assert_eq!(found, current, "{change}");
    }
}

#[tokio::test]
async fn an_index_of_tasks_that_is_missing_is_found() {
    let test = fixture::database().await;
    assert!(test.database.server_settings().await.unwrap().missing_indexes.is_empty());
    sqlx::query("DROP INDEX duetime.task_lane").execute(&test.pool).await.unwrap();
    assert!(hinted(&test.url).await.contains(&("duetime.task", "without task_lane".to_owned())));
}
