//! Requests for moves and the standings of databases: added as a whole or not at all, and never to a database whose
//! drain is written.

use common::{
    ids::{DatabaseName, ShardId},
    shard::{ShardSet, Standing, move_progress::MovePhase},
    wire::shard::MoveOutcome,
};
use sqlx::{AssertSqlSafe, Executor};

use super::{fixture, node};
use crate::{
    store::{
        PoolKind,
        move_requests::{AskedMove, ENDED_SHOWN, MoveNote, MovesAdded},
        move_rows::PageCursor,
    },
    supervise::spawn_child,
};

fn set(text: &str) -> ShardSet {
    text.parse().expect("a set")
}

fn name(text: &str) -> DatabaseName {
    DatabaseName::new(text)
}

fn asked(shards: &str, target: &str) -> Vec<AskedMove> {
    let one = |shard: ShardId| AskedMove { shard, source: name("main"), target: name(target) };
    set(shards).iter().map(one).collect()
}

async fn moving(test: &fixture::TestDatabase) -> String {
    test.database.move_list().await.unwrap().iter().map(|row| row.shard).collect::<ShardSet>().to_string()
}

#[tokio::test]
async fn moves_are_added_as_a_whole_and_an_overlap_adds_none() {
    let test = fixture::database().await;
    assert_eq!(test.database.move_add(&asked("0-3", "west"), "ann").await.unwrap(), MovesAdded::All);
    assert_eq!(test.database.move_add(&asked("3-9", "west"), "bob").await.unwrap(), MovesAdded::UnderWay);
    assert_eq!(test.database.move_add(&asked("5", "east"), "bob").await.unwrap(), MovesAdded::All);
    let rows = test.database.move_list().await.unwrap();
    assert_eq!(moving(&test).await, "0-3,5");
    let first = &rows[0];
    assert_eq!((first.source.as_str(), first.target.as_str(), first.requested_by.as_str()), ("main", "west", "ann"));
    assert_eq!((first.step, first.called_off_at, first.cut, first.rows_copied), (MovePhase::Planned, None, None, 0));
}

#[tokio::test]
async fn of_two_overlapping_requests_at_one_moment_one_is_carried_out() {
    let test = fixture::database().await;
    test.be_patient(PoolKind::Write).await;
    // The first request is in a transaction that is not committed yet.
    let mut first = test.pool.acquire().await.unwrap();
    first.execute("BEGIN").await.unwrap();
    sqlx::query(include_str!("../queries/move_add.sql"))
        .bind(vec![2_i32, 3])
        .bind(vec!["main", "main"])
        .bind(vec!["west", "west"])
        .bind("ann")
        .execute(&mut *first)
        .await
        .unwrap();
    let database = test.database.clone();
    let second = spawn_child(async move { database.move_add(&asked("0-2", "east"), "bob").await.unwrap() });
    test.until_waiting(1).await;
    first.execute("COMMIT").await.unwrap();
    assert_eq!(second.await.unwrap(), MovesAdded::UnderWay);
    assert_eq!(moving(&test).await, "2-3");
}

#[tokio::test]
async fn a_move_and_a_drain_of_its_target_wait_for_one_another() {
    let test = fixture::database().await;
    test.be_patient(PoolKind::Write).await;
    let drain = include_str!("../queries/database_standing_put.sql");
    let mut draining = test.pool.acquire().await.unwrap();
    draining.execute("BEGIN").await.unwrap();
    sqlx::query(drain).bind("west").bind("draining").execute(&mut *draining).await.unwrap();
    let database = test.database.clone();
    let moving_there = spawn_child(async move { database.move_add(&asked("0-3", "west"), "ann").await.unwrap() });
    test.until_waiting(1).await;
    draining.execute("COMMIT").await.unwrap();
    assert_eq!(moving_there.await.unwrap(), MovesAdded::Closed(vec!["west".to_owned()]));
    assert_eq!(moving(&test).await, "");

    test.database.database_standing_put(&name("west"), Standing::Serving).await.unwrap();
    let mut adding = test.pool.acquire().await.unwrap();
    adding.execute("BEGIN").await.unwrap();
    sqlx::query(include_str!("../queries/move_add.sql"))
        .bind(vec![0_i32])
        .bind(vec!["main"])
        .bind(vec!["west"])
        .bind("ann")
        .execute(&mut *adding)
        .await
        .unwrap();
    let database = test.database.clone();
    let drained = spawn_child(async move {
        database.database_standing_put(&name("west"), Standing::Draining).await.unwrap();
        database.move_list().await.unwrap().len()
    });
    test.until_waiting(1).await;
    adding.execute("COMMIT").await.unwrap();
    assert_eq!(drained.await.unwrap(), 1, "the drain finds the move that came before it");
}

#[tokio::test]
async fn a_move_is_called_off_before_its_cut_only() {
    let test = fixture::database().await;
    test.database.move_add(&asked("0-4", "west"), "ann").await.unwrap();
    for (shard, step) in [(1, "copying"), (2, "cutting"), (3, "cleaning")] {
        let update = format!("UPDATE duetime.move SET step = '{step}' WHERE shard = {shard}");
        test.pool.execute(AssertSqlSafe(update)).await.unwrap();
    }
    for _ in 0..2 {
        let (done, too_late) = test.database.move_call_off(&set("0-3,90")).await.unwrap();
        assert_eq!((done, too_late), (set("0-1"), set("2-3")));
    }
    let rows = test.database.move_list().await.unwrap();
    let off: ShardSet = rows.iter().filter(|row| row.called_off_at.is_some()).map(|row| row.shard).collect();
    assert_eq!(off, set("0-1"), "shard 4 was not named");
}

#[tokio::test]
async fn no_cut_begins_once_its_move_is_called_off() {
    let test = fixture::database().await;
    test.database.move_add(&asked("0-1", "west"), "ann").await.unwrap();
    test.database.move_call_off(&set("0")).await.unwrap();
    let node = node("a");
    let note = |step| MoveNote { step, ..MoveNote::default() };
    use MovePhase::{Copying, Cutting};
    let rows = test.database.move_list().await.unwrap();
    for (shard, step, is_noted) in [(0, Cutting, false), (0, Copying, true), (1, Cutting, true)] {
        let requested_at = rows[usize::from(shard)].requested_at;
        let noted = test.database.move_note(ShardId::new(shard), requested_at, &node, &note(step)).await.unwrap();
        assert_eq!(noted, is_noted, "shard {shard}, {step:?}");
    }
}

/// A node that was frozen may send what it knows of a move long after another node has ended that move.
#[tokio::test]
async fn what_comes_late_of_a_move_that_has_ended_does_nothing_to_the_next_one_of_its_shard() {
    let test = fixture::database().await;
    let (database, shard, late) = (&test.database, ShardId::new(0), node("late"));
    let row = async || database.move_list().await.unwrap().remove(0);
    database.move_add(&asked("0", "west"), "ann").await.unwrap();
    let former = row().await;
    database.move_end(shard, former.requested_at, MoveOutcome::CalledOff).await.unwrap();
    database.move_add(&asked("0", "west"), "bob").await.unwrap();
    let note = MoveNote { step: MovePhase::Copying, page: Some(&PageCursor::Done), ..MoveNote::default() };
    assert!(!database.move_note(shard, former.requested_at, &late, &note).await.unwrap());
    database.move_end(shard, former.requested_at, MoveOutcome::Moved).await.unwrap();
    let next = row().await;
    assert_eq!(
        (next.requested_by.as_str(), next.step, next.page),
        ("bob", MovePhase::Planned, None),
        "nothing is copied"
    );
    assert_eq!(database.move_ended_list().await.unwrap().len(), 1);
    database.move_end(shard, next.requested_at, MoveOutcome::Moved).await.unwrap();
    assert_eq!(moving(&test).await, "");
}

#[tokio::test]
async fn a_cut_that_begins_first_is_not_called_off() {
    let test = fixture::database().await;
    test.database.move_add(&asked("0", "west"), "ann").await.unwrap();
    test.be_patient(PoolKind::Write).await;
    let mut cutting = test.pool.acquire().await.unwrap();
    cutting.execute("BEGIN; UPDATE duetime.move SET step = 'cutting' WHERE shard = 0").await.unwrap();
    let database = test.database.clone();
    let calling = spawn_child(async move { database.move_call_off(&set("0")).await.unwrap() });
    test.until_waiting(1).await;
    cutting.execute("COMMIT").await.unwrap();
    assert_eq!(calling.await.unwrap(), (ShardSet::default(), set("0")));
}

#[tokio::test]
async fn a_standing_keeps_its_beginning_and_only_the_drain_that_was_seen_is_removed() {
    let test = fixture::database().await;
    let database = &test.database;
    let first = database.database_standing_put(&name("west"), Standing::Draining).await.unwrap();
    assert_eq!(database.database_standing_put(&name("west"), Standing::Draining).await.unwrap(), first);
    database.database_standing_put(&name("west"), Standing::Serving).await.unwrap();
    assert!(database.database_standing_remove(&name("west"), first.since).await.unwrap().is_none(), "it serves");
    let second = database.database_standing_put(&name("west"), Standing::Draining).await.unwrap();
    assert!(database.database_standing_remove(&name("west"), first.since).await.unwrap().is_none(), "another drain");
    let removed =
        database.database_standing_remove(&name("west"), second.since).await.unwrap().expect("as it was seen");
    assert_eq!(removed.standing, Standing::Removed);
    assert_eq!(database.database_standings().await.unwrap(), [removed]);
}

#[tokio::test]
async fn the_newest_of_the_moves_that_ended_are_listed() {
    let test = fixture::database().await;
    let fill = "INSERT INTO duetime.move_ended (shard, source, target, outcome, requested_by, requested_at, cut_ms, rows_copied, bytes_copied)
         SELECT g, 'main', 'west', CASE WHEN g % 2 = 0 THEN 'moved' ELSE 'called_off' END, 'ann', now(), 40, 7, 900
           FROM generate_series(1, 120) AS g ORDER BY g";
    test.pool.execute(fill).await.unwrap();
    let ended = test.database.move_ended_list().await.unwrap();
    assert_eq!(i64::try_from(ended.len()).unwrap(), ENDED_SHOWN);
    assert_eq!((ended[0].shard, ended[0].outcome, ended[0].cut_ms), (ShardId::new(120), MoveOutcome::Moved, Some(40)));
    assert_eq!(ended[1].outcome, MoveOutcome::CalledOff);
}
