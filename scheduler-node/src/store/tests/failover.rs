//! A database on a primary and its standby: statements follow the server that takes writes.

use std::sync::Arc;

use common::{
    cluster::seen::{Lsn, Seen},
    ids::{DatabaseName, ShardId},
};
use integration_tests::sandbox::{PgBouncer, Postgres, Tether, scratch, shared};

use super::{LONG, fixture, node};
use crate::store::{
    Database, Effect, Error, StoreOp, connect,
    history::{Refusal, ServerState},
    migrate::migrate,
    moves::CloseWait,
    schema::Misfit,
};

pub(crate) const TASKS: &str = "tasks";

/// A primary with an empty database, and its synchronous standby.
pub(crate) async fn pair() -> (Postgres, Postgres) {
    let folder = |name| scratch().join(shared::unique(name));
    let primary = Postgres::start(&folder("primary"), Tether::Tethered).await.unwrap();
    primary.create_database(TASKS).await.unwrap();
    let standby = primary.add_standby(&folder("standby")).await.unwrap();
    (primary, standby)
}

pub(crate) async fn migrated(url: &str) -> Result<(), Misfit> {
    let options = connect::Options { url: url.to_owned().into(), max_connections: 4, application_name: "test".into() };
    migrate(&DatabaseName::new("main"), Some(fixture::all_shards()), 128, None, &options).await.map(drop)
}

/// The port of the server that answers a statement.
async fn port(database: &Database) -> Result<u16, Error> {
    let asked = database.run(StoreOp::SchemaRead, |pool| async move {
        sqlx::query_scalar::<_, i32>("SELECT inet_server_port()").fetch_one(&pool).await
    });
    asked.await.map(|port| u16::try_from(port).unwrap())
}

/// Waits until statements use the server at `wanted`.
async fn until_on(database: &Database, wanted: u16) {
    let found = async {
        while {
            database.look_out().await;
            port(database).await.ok() != Some(wanted)
        } {}
    };
    tokio::time::timeout(LONG, found).await.expect("statements reach the new primary");
}

#[tokio::test]
async fn migrations_and_statements_find_the_primary_wherever_the_url_names_it() {
    let (primary, standby) = pair().await;
    for url in [standby.url_with(&primary, TASKS), primary.url_with(&standby, TASKS)] {
        migrated(&url).await.unwrap();
        let database = fixture::open(&url);
        assert_eq!(port(&database).await.unwrap(), primary.port());
        database.schema_check().await.unwrap();
        // The second statement has connections to spare, and no reason to look again.
        assert_eq!(port(&database).await.unwrap(), primary.port());
    }
    for misfit in [
        migrated(&standby.url(TASKS)).await.unwrap_err(),
        fixture::open(&standby.url(TASKS)).schema_check().await.unwrap_err(),
    ] {
        assert!(misfit.is_unreachable() && format!("{misfit:?}").contains("Standby"), "{misfit:?}");
    }
}

#[tokio::test]
async fn a_primary_that_was_replaced_is_not_used_again() {
    let (primary, standby) = pair().await;
    let url = primary.url_with(&standby, TASKS);
    let database = fixture::open(&url);
    assert_eq!(port(&database).await.unwrap(), primary.port());

    // From now on both take writes. Nothing but the timeline shows which one was replaced.
    standby.promote().await.unwrap();
    database.look_out().await;
    assert_eq!(port(&database).await.unwrap(), standby.port());
    let fresh = fixture::open(&url);
    assert_eq!(port(&fresh).await.unwrap(), standby.port(), "a node that starts takes the newest timeline");

    standby.kill();
    let refused = async {
        loop {
            let error = port(&database).await.expect_err("the old primary answers");
            if error.reason().contains("left behind") {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(LONG, refused).await.expect("the old primary is refused");
    assert_eq!(error.effect, Effect::None, "{error:?}");
    standby.restart().await.unwrap();
    until_on(&database, standby.port()).await;
}

#[tokio::test]
async fn a_statement_on_a_frozen_primary_ends_when_the_standby_takes_its_place() {
    let (primary, standby) = pair().await;
    let database = fixture::open(&primary.url_with(&standby, TASKS));
    assert_eq!(port(&database).await.unwrap(), primary.port());
    let mut nudges = database.nudges(None).await.unwrap();

    primary.pause().unwrap();
    let held = {
        let database = Arc::clone(&database);
        crate::supervise::spawn_child(async move { port(&database).await })
    };
    standby.promote().await.unwrap();
    until_on(&database, standby.port()).await;
    let error = held.await.unwrap().expect_err("a frozen server answers nothing");
    assert_eq!(error.effect, Effect::Unknown);
    let heard = tokio::time::timeout(LONG, nudges.next()).await.expect("the listener notices");
    assert!(heard.is_err(), "{heard:?}");

    primary.resume().unwrap();
    database.look_out().await;
    assert_eq!(port(&database).await.unwrap(), standby.port());
}

#[tokio::test]
async fn a_server_with_other_data_is_not_used() {
    let (primary, standby) = pair().await;
    let database = fixture::open(&primary.url_with(&standby, TASKS));
    assert_eq!(port(&database).await.unwrap(), primary.port());
    let other = shared::postgres().await.unwrap();
    let state = async |url: &str| {
        let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(url).await.unwrap();
        let state = crate::store::entrance::read_state(&mut connection).await.unwrap();
        ServerState { keeps_settings: true, ..state }
    };
    let (own, others) = (state(&primary.url("postgres")).await, state(&other.url("postgres")).await);
    assert_eq!(database.writer.known().judge(&own, true), Ok(()));
    let refusal = database.writer.known().judge(&others, true).unwrap_err();
    assert!(refusal.to_string().contains("other data"), "{refusal}");
    assert_eq!(own.lineage.unwrap().timeline, 1);
}

#[tokio::test]
async fn a_restored_backup_is_used_only_after_the_loss_is_accepted() {
    let server = Postgres::start(&scratch().join(shared::unique("backup")), Tether::Tethered).await.unwrap();
    let url = server.create_database(TASKS).await.unwrap();
    server.stop().await.unwrap();
    let backup = server.save().await.unwrap();
    server.restart().await.unwrap();
    let database = fixture::open(&url);
    server.execute("CREATE TABLE filler AS SELECT generate_series(1, 100000) AS n").await.unwrap();
    database.mark_position().await.unwrap();
    let seen = database.seen().unwrap();
    assert!(seen.last() > Lsn::default(), "{seen:?}");

    // The same server with all its data is welcome again.
    server.kill();
    server.restart().await.unwrap();
    let back = async { while port(&database).await.is_err() {} };
    tokio::time::timeout(LONG, back).await.expect("it is used again");
    assert_eq!(database.loss(), None);

    server.stop().await.unwrap();
    server.put_back(&backup).await.unwrap();
    server.restart().await.unwrap();
    let refused = async {
        while database.loss().is_none() {
            assert!(port(&database).await.is_err(), "the backup is not used");
        }
    };
    tokio::time::timeout(LONG, refused).await.expect("the backup is recognised");
    let loss = database.loss().unwrap();
    assert!(matches!(loss.refusal, Refusal::Behind { bytes } if bytes == loss.bytes && bytes > 0), "{loss:?}");
    // A node that starts knows it from the record.
    let fresh = fixture::open(&url);
    fresh.learn(&seen);
    assert!(port(&fresh).await.is_err() && fresh.loss().is_some());

    let accepted = Seen::beginning(&loss.lineage, 1);
    for database in [&database, &fresh] {
        database.learn(&accepted);
        assert_eq!(database.loss(), None);
        assert_eq!(port(database).await.unwrap(), server.port());
    }
}

/// The target of a move opens a shard because its source is closed.
#[tokio::test]
async fn a_promoted_standby_that_lacks_the_close_of_a_shard_is_not_used() {
    let (primary, standby) = pair().await;
    let url = primary.url_with(&standby, TASKS);
    migrated(&url).await.unwrap();
    let (database, shard) = (fixture::open(&url), ShardId::new(0));
    let (_, epoch) = database.shard_acquire(&[shard], &node("owner")).await.unwrap()[0];
    database.move_guard(&[shard], false).await.unwrap();
    assert!(database.move_leave(shard, epoch, 1).await.unwrap());
    for (server, setting) in [(&primary, "synchronous_standby_names"), (&standby, "primary_conninfo")] {
        server.execute(&format!("ALTER SYSTEM SET {setting} = ''")).await.unwrap();
        server.execute("SELECT pg_reload_conf()").await.unwrap();
    }
    let cut_off = async { while standby.number("SELECT count(*) FROM pg_stat_wal_receiver").await.unwrap() > 0 {} };
    tokio::time::timeout(LONG, cut_off).await.expect("the standby is cut off");

    database.move_close(shard, epoch, 2, CloseWait::Plain).await.unwrap().expect("the owner closes it");
    tokio::time::timeout(LONG, database.wrote()).await.expect("the close is to be marked");
    database.mark_position().await.unwrap();
    primary.kill();
    standby.promote().await.unwrap();
    let refused = async {
        while database.loss().is_none() {
            database.look_out().await;
            assert!(port(&database).await.is_err(), "the standby is not used");
        }
    };
    tokio::time::timeout(LONG, refused).await.expect("the loss is recognised");
    assert!(matches!(database.loss().unwrap().refusal, Refusal::Behind { bytes } if bytes > 0));
}

#[tokio::test]
async fn without_a_synchronous_standby_no_task_is_accepted_where_one_is_required() {
    let (primary, standby) = pair().await;
    let url = primary.url(TASKS);
    let database = Arc::into_inner(fixture::open(&url)).unwrap().require_standby();
    let insert = async || database.run(StoreOp::TaskSubmit, |_| async { Ok(()) }).await;
    assert!(insert().await.unwrap_err().not_replicated().is_some(), "nothing is accepted before a look");
    let until = async |wanted: Option<&str>| {
        let looks = async {
            while {
                database.look_for_standby().await.unwrap();
                database.unreplicated().as_deref() != wanted
            } {}
        };
        tokio::time::timeout(LONG, looks).await.unwrap_or_else(|_| panic!("{wanted:?} is not found"));
        let refused = insert().await.err().and_then(|error| error.not_replicated());
        assert_eq!(refused.is_some(), wanted.is_some(), "{refused:?}");
        database.ping().await.unwrap();
    };
    until(None).await;
    standby.kill();
    until(Some("no synchronous standby is connected")).await;
    for (names, found) in [("", Some("synchronous_standby_names is empty")), ("*", None)] {
        standby.restart().await.unwrap();
        primary.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await.unwrap();
        primary.execute("SELECT pg_reload_conf()").await.unwrap();
        until(found).await;
    }
    primary.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'").await.unwrap();
    let url = format!("postgres://plain:plain@127.0.0.1:{}/{TASKS}", primary.port());
    let plain = Arc::into_inner(fixture::open(&url)).unwrap().require_standby();
    plain.look_for_standby().await.unwrap();
    assert!(plain.unreplicated().unwrap().contains("pg_monitor"), "{:?}", plain.unreplicated());
    primary.execute("GRANT pg_monitor TO plain").await.unwrap();
    plain.look_for_standby().await.unwrap();
    assert_eq!(plain.unreplicated(), None);
}

#[tokio::test]
async fn a_pooler_before_the_server_is_refused_by_name() {
    let server = shared::postgres().await.unwrap();
    let name = shared::unique("pooled");
    server.create_database(&name).await.unwrap();
    for (mode, more) in [
        ("session", ""),
        ("session", "ignore_startup_parameters = options"),
        ("transaction", "ignore_startup_parameters = options"),
    ] {
        let folder = scratch().join(shared::unique("pgbouncer"));
        let pooler = PgBouncer::start(&folder, server, mode, more).await.unwrap();
        for misfit in [
            migrated(&pooler.url(&name)).await.unwrap_err(),
            fixture::open(&pooler.url(&name)).schema_check().await.unwrap_err(),
        ] {
            assert!(misfit.is_unreachable() && format!("{misfit:?}").contains("Pooler"), "{mode} {more}: {misfit:?}");
        }
    }
}

/// Each commit waits for a standby that does not come. Pools that are replaced leave their connections to the commits,
/// and the new ones wait in turn, until the server is full.
#[tokio::test]
async fn commits_that_wait_for_a_standby_take_no_new_connections() {
    let server = Postgres::start(&scratch().join(shared::unique("alone")), Tether::Tethered).await.unwrap();
    server.create_database(TASKS).await.unwrap();
    migrated(&server.url(TASKS)).await.unwrap();
    let database = fixture::open(&server.url(TASKS));
    let ask = async |op, sql: &'static str| {
        database
            .run(op, |pool| async move { sqlx::query(sql).execute(&pool).await })
            .await
            .map(drop)
            .map_err(|error| error.effect)
    };
    let commit = async || ask(StoreOp::TaskSubmit, "SELECT pg_logical_emit_message(true, 'test', 'a commit')").await;
    let as_many_as_connections = usize::try_from(database.connections(StoreOp::TaskSubmit.pool()).most).unwrap();
    let commits = async || futures::future::join_all((0..as_many_as_connections).map(|_| commit())).await;
    assert!(commits().await.iter().all(Result::is_ok));
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'duetime test'";
    let before = server.number(sessions).await.unwrap();

    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'").await.unwrap();
    server.execute("SELECT pg_reload_conf()").await.unwrap();
    while commits().await.iter().any(Result::is_ok) {}
    // No connection is free, and none is added.
    assert_eq!(commits().await, vec![Err(Effect::None); as_many_as_connections]);
    ask(StoreOp::TaskList, "SELECT 1").await.expect("readers wait for no commit");
    assert!(
        server.number(sessions).await.unwrap() <= before + 1,
        "beside the connections that wait, one for the reader"
    );

    server.execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    server.execute("SELECT pg_reload_conf()").await.unwrap();
    let goes_on = async { while commit().await.is_err() {} };
    tokio::time::timeout(LONG, goes_on).await.expect("the connections serve again");
}
