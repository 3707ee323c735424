//! Faults of PostgreSQL.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use sqlx::{Connection, Executor};

use super::{Kind, Needs, Part, Scene};
use crate::sandbox::Postgres;

/// Most statements of a node have less time than this.
const LOCKED_MOST_MS: u64 = 6_000;
/// The time that a tool for high availability takes to notice the loss of a primary.
const NOTICED_AFTER: Duration = Duration::from_secs(2);
/// The time in which a server without room uses up the WAL that it has.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
const NO_SNAPSHOT: &str = "the database opened no snapshot";
/// Shards that one fault moves.
const MOVES: i64 = 3;
/// A cut waits for a moment without tasks in flight, which a busy machine seldom has.
const MOVED_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(300);

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "crash-postgres",
        row: "F17",
        says: "all processes of the first database are killed, and it recovers",
        part: Part::Home,
        needs: Needs::Nothing,
        play: |scene| Box::pin(crash(scene, 0)),
    },
    Kind {
        name: "restart-postgres",
        row: "F17",
        says: "the first database is shut down in order, and starts again",
        part: Part::Home,
        needs: Needs::Nothing,
        play: |scene| Box::pin(restart(scene)),
    },
    Kind {
        name: "promote-standby",
        row: "F18",
        says: "the primary of the first database is killed, its synchronous standby promoted, and the old one follows it",
        part: Part::Home,
        needs: Needs::Large,
        play: |scene| Box::pin(promote(scene)),
    },
    Kind {
        name: "two-primaries",
        row: "F20",
        says: "the synchronous standby of the first database is promoted while the old primary goes on, which then follows it",
        part: Part::Home,
        needs: Needs::Large,
        play: |scene| Box::pin(promote_beside(scene)),
    },
    Kind {
        name: "freeze-postgres",
        row: "F21",
        says: "all processes of the first database are stopped with SIGSTOP, and continue",
        part: Part::Home,
        needs: Needs::Nothing,
        play: |scene| Box::pin(freeze(scene)),
    },
    Kind {
        name: "lock-table",
        row: "F21",
        says: "a transaction locks the table of tasks",
        part: Part::Home,
        needs: Needs::Nothing,
        play: |scene| Box::pin(lock(scene)),
    },
    Kind {
        name: "long-transaction",
        row: "F22",
        says: "a transaction keeps a snapshot open",
        part: Part::None,
        needs: Needs::Nothing,
        play: |scene| Box::pin(snapshot(scene)),
    },
    Kind {
        name: "no-room",
        row: "F23",
        says: "the disk of the second database has no free byte; every other time its WAL meets that, and the server ends",
        part: Part::Second,
        needs: Needs::Room,
        play: |scene| Box::pin(lack_room(scene)),
    },
    Kind {
        name: "second-database-away",
        row: "F24",
        says: "the second database is killed, and recovers",
        part: Part::Second,
        needs: Needs::Large,
        play: |scene| Box::pin(crash(scene, 1)),
    },
    Kind {
        name: "end-sessions",
        row: "F36",
        says: "all sessions of the first database are terminated, listeners among them",
        part: Part::Home,
        needs: Needs::Nothing,
        play: |scene| Box::pin(end_sessions(scene)),
    },
    Kind {
        name: "move-shards",
        row: "-",
        says: "three shards move from one database to the other",
        part: Part::None,
        needs: Needs::Large,
        play: |scene| Box::pin(move_shards(scene)),
    },
];

/// The server that takes the writes of the first database, and the other one.
async fn primary_and_standby(scene: &Scene) -> Result<(&'static Postgres, &'static Postgres)> {
    let (one, other) = (scene.sandbox().postgres(0), scene.sandbox().standby());
    let is_standby = one.number("SELECT pg_is_in_recovery()::int::bigint").await? == 1;
    Ok(if is_standby { (other, one) } else { (one, other) })
}

/// The server that takes the writes of a database.
async fn server(scene: &Scene, database: usize) -> Result<&'static Postgres> {
    if database == 0 && scene.sandbox().has_standby() {
        return Ok(primary_and_standby(scene).await?.0);
    }
    Ok(scene.sandbox().postgres(database))
}

async fn crash(mut scene: Scene, database: usize) -> Result<()> {
    let server = server(&scene, database).await?;
    server.kill();
    scene.hold().await;
    server.restart().await
}

async fn restart(mut scene: Scene) -> Result<()> {
    let server = server(&scene, 0).await?;
    server.stop_immediately().await?;
    scene.hold().await;
    server.restart().await
}

async fn promote(scene: Scene) -> Result<()> {
    let (primary, standby) = primary_and_standby(&scene).await?;
    // A promotion that loses commits is out of promise.
    primary.wait_for(standby).await?;
    primary.kill();
    tokio::time::sleep(NOTICED_AFTER).await;
    standby.promote().await?;
    primary.follow(standby).await
}

async fn promote_beside(mut scene: Scene) -> Result<()> {
    let (primary, standby) = primary_and_standby(&scene).await?;
    primary.wait_for(standby).await?;
    standby.promote().await?;
    scene.hold().await;
    primary.kill();
    primary.follow(standby).await
}

async fn freeze(mut scene: Scene) -> Result<()> {
    let server = server(&scene, 0).await?;
    server.pause()?;
    scene.hold().await;
    server.resume()
}

async fn lack_room(mut scene: Scene) -> Result<()> {
    let server = scene.sandbox().postgres(1);
    server.take_room().await?;
    if scene.random.random_bool(0.5) {
        tokio::time::timeout(ENDS_WITHIN, use_up_wal(server)).await.ok();
    }
    scene.hold().await;
    server.give_room().await?;
    // It may be ending just now for the want of room.
    match server.restart().await {
        Ok(()) => Ok(()),
        Err(_) => server.restart().await,
    }
}

/// Fills the files of the WAL that are there already, until the server needs one more and ends.
async fn use_up_wal(server: &Postgres) {
    while server.execute("SELECT pg_switch_wal()").await.is_ok() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn lock(mut scene: Scene) -> Result<()> {
    let mut connection = scene.stage.primary(0).await?;
    let mut transaction = connection.begin().await?;
    transaction.execute("LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").await?;
    tokio::time::sleep(super::between(&mut scene.random, 1_000, LOCKED_MOST_MS)).await;
    transaction.rollback().await?;
    Ok(())
}

/// Another fault may end the server, and the transaction with it.
async fn snapshot(mut scene: Scene) -> Result<()> {
    let Ok(mut connection) = scene.stage.primary(0).await else {
        scene.note_void(NO_SNAPSHOT);
        return Ok(());
    };
    let Ok(mut transaction) = connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await else {
        scene.note_void(NO_SNAPSHOT);
        return Ok(());
    };
    if transaction.execute("SELECT count(*) FROM duetime.task").await.is_err() {
        scene.note_void(NO_SNAPSHOT);
    }
    scene.hold().await;
    transaction.rollback().await.ok();
    Ok(())
}

async fn end_sessions(scene: Scene) -> Result<()> {
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name LIKE 'duetime%' AND pid <> pg_backend_pid()";
    server(&scene, 0).await?.execute(end).await
}

async fn move_shards(mut scene: Scene) -> Result<()> {
    let source = scene.random.random_range(0..2_usize);
    let moving = async {
        // A server may be away in another fault.
        while ask_for_moves(&scene, source).await.is_err() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        moved(&scene).await;
    };
    tokio::time::timeout(MOVED_WITHIN, moving).await.context("shards have not moved")
}

async fn ask_for_moves(scene: &Scene, source: usize) -> Result<()> {
    let some = "SELECT id FROM duetime.shard WHERE status = 'here' ORDER BY random() LIMIT $1";
    let mut connection = scene.stage.primary(source).await?;
    let shards: Vec<i32> = sqlx::query_scalar(some).bind(MOVES).fetch_all(&mut connection).await?;
    let ask = "INSERT INTO duetime.move (shard, source, target, requested_by) \
               SELECT s, $2, $3, 'chaos' FROM unnest($1) AS s ON CONFLICT DO NOTHING";
    let mut home = scene.stage.primary(0).await?;
    sqlx::query(ask)
        .bind(&shards)
        .bind(format!("db{}", source + 1))
        .bind(format!("db{}", 2 - source))
        .execute(&mut home)
        .await?;
    Ok(())
}

async fn moved(scene: &Scene) {
    loop {
        if let Ok(mut home) = scene.stage.primary(0).await {
            let left = sqlx::query_scalar("SELECT count(*) FROM duetime.move").fetch_one(&mut home).await;
            if matches!(left, Ok(0_i64)) {
                return;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
