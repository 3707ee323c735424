//! The stores of all peers: one PostgreSQL and one RabbitMQ, of which each run gets an empty part, and an own Redis.

use anyhow::{Context, Result};
use integration_tests::sandbox::{Postgres, Rabbit, Redis, fresh, shared};
use sqlx::{Connection, PgConnection};

use crate::bench;

/// The servers that all peers share, one after another.
#[derive(Debug)]
pub(super) struct Stores {
    postgres: &'static Postgres,
    rabbit: &'static Rabbit,
}

/// What one run of one peer gets.
#[derive(Debug)]
pub(super) struct Empty {
    name: String,
    pub postgres_url: String,
    pub amqp_url: String,
    redis: Option<Redis>,
}

impl Empty {
    pub(super) fn redis_url(&self) -> String {
        self.redis.as_ref().map(Redis::url).unwrap_or_default()
    }
}

impl Stores {
    pub(super) async fn start() -> Result<Self> {
        let (postgres, rabbit) = (shared::postgres().await?, shared::rabbit().await?);
        bench::ripen(postgres).await.context("preparing PostgreSQL")?;
        Ok(Self { postgres, rabbit })
    }

    /// A fresh database, virtual host and Redis, when everything from before is on disk.
    pub(super) async fn empty(&self) -> Result<Empty> {
        // A server that a peer has brought down starts again.
        shared::postgres().await?;
        shared::rabbit().await?;
        let name = shared::unique("peer");
        let amqp_url = self.rabbit.add_vhost(&name).await?;
        let postgres_url = self.postgres.create_database(&name).await?;
        let redis = if Redis::is_installed() { Some(Redis::start(&fresh("redis")).await?) } else { None };
        flush().await?;
        Ok(Empty { name, postgres_url, amqp_url, redis })
    }

    /// Removes what a run has left.
    pub(super) async fn clear(&self, used: Empty) -> Result<()> {
        self.rabbit.retire_vhost(used.name.clone());
        self.postgres.drop_database(&used.name).await
    }

    /// Each store with its version.
    pub(super) async fn versions(&self) -> Result<Vec<(&'static str, String)>> {
        let mut connection = PgConnection::connect(&self.postgres.url("postgres")).await?;
        let postgres: String = sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?;
        connection.close().await?;
        let redis = match Redis::is_installed() {
            true => Redis::start(&fresh("redis")).await?.version().await?,
            false => "not installed".into(),
        };
        let rabbit = self.rabbit.version().await?;
        Ok(vec![("PostgreSQL", postgres), ("RabbitMQ", rabbit), ("Redis", redis)])
    }
}

/// Writes all dirty pages to disk, so that no measurement pays for what was before it.
async fn flush() -> Result<()> {
    shared::postgres().await?.execute("CHECKPOINT").await?;
    tokio::process::Command::new("sync").status().await.context("running sync")?;
    Ok(())
}
