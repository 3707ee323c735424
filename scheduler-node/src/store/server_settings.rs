//! Reads the settings of a server and the missing indexes, for hints.

use common::hint::PostgresSettings;
use sqlx::Row;

use super::{Database, Error, StoreOp, indexes, migrations::schema_version};

impl Database {
    pub async fn server_settings(&self) -> Result<PostgresSettings, Error> {
        self.run(StoreOp::ServerSettings, |pool| async move {
            let statement = sqlx::query(include_str!("queries/server_settings.sql"));
            let row = statement.bind(indexes::names()).bind(schema_version()).fetch_one(&pool).await?;
            Ok(PostgresSettings {
                max_wal_bytes: row.try_get("max_wal_bytes")?,
                min_wal_bytes: row.try_get("min_wal_bytes")?,
                checkpoint_timeout_s: row.try_get("checkpoint_timeout_s")?,
                checkpoint_completion_target: row.try_get("checkpoint_completion_target")?,
                shared_buffers_bytes: row.try_get("shared_buffers_bytes")?,
                fsync: row.try_get("fsync")?,
                full_page_writes: row.try_get("full_page_writes")?,
                commits_are_durable: row.try_get("commits_are_durable")?,
                autovacuum: row.try_get("autovacuum")?,
                max_locks_per_transaction: row.try_get("max_locks_per_transaction")?,
                lock_room: row.try_get("lock_room")?,
                archive_locks: row.try_get("archive_locks")?,
                encoding: row.try_get("encoding")?,
                missing_indexes: row.try_get("missing_indexes")?,
            })
        })
        .await
    }
}
