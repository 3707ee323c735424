//! The stores that all tests of one process share: slow to start, cheap to divide. Each starts at its first use and
//! ends with the process. A test takes a database, a prefix, a virtual host of its own.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use tokio::sync::OnceCell;

use super::{etcd::Etcd, postgres::Postgres, process::Tether, rabbit::Rabbit, scratch};

/// The most servers that one sandbox takes.
pub const POSTGRES_MAX: usize = 4;

static POSTGRES: [OnceCell<Postgres>; POSTGRES_MAX] = [const { OnceCell::const_new() }; POSTGRES_MAX];
static ETCD: OnceCell<Etcd> = OnceCell::const_new();
static RABBIT: OnceCell<Rabbit> = OnceCell::const_new();

/// A name that is unique in this process: `<stem>_<number>`.
pub fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub async fn postgres() -> Result<&'static Postgres> {
    numbered_postgres(0).await
}

/// One of several servers, for scenarios in which one of two is gone.
pub async fn numbered_postgres(number: usize) -> Result<&'static Postgres> {
    let server = POSTGRES[number]
        .get_or_try_init(|| async { Postgres::start(&scratch::fresh("postgres"), Tether::Tethered).await })
        .await?;
    if !server.is_running() {
        server.restart().await?;
    }
    Ok(server)
}

/// One member.
pub async fn etcd() -> Result<&'static Etcd> {
    let cluster =
        ETCD.get_or_try_init(|| async { Etcd::start(&scratch::fresh("etcd"), 1, Tether::Tethered).await }).await?;
    cluster.restart_all().await?;
    Ok(cluster)
}

pub async fn rabbit() -> Result<&'static Rabbit> {
    let broker =
        RABBIT.get_or_try_init(|| async { Rabbit::start(&scratch::fresh("rabbit"), Tether::Tethered).await }).await?;
    if !broker.is_running() {
        broker.restart().await?;
    }
    Ok(broker)
}
