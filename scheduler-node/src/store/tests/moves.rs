//! A shard that moves from one database to another while others write: whatever is committed is in the target
//! afterwards, and whatever is refused has changed nothing. Races use two connections and a lock.

mod large;
mod late;
mod turn;

use std::{cell::Cell, sync::Arc};

use common::{
    ids::{Epoch, NodeId, ShardId, TaskId},
    shard::ShardStatus,
};
use sqlx::{PgPool, Postgres, pool::PoolConnection};

use super::{
    fixture::{self, TestDatabase},
    node, submitted, until_waiting,
};
use crate::{
    store::{
        Fault, PoolKind,
        move_rows::{MoveRows, PageCursor, WritePaces},
        moves::CloseWait,
    },
    supervise::spawn_child,
};

const SHARD: ShardId = ShardId::new(0);

/// Writers of the task `$1`, and the state of the task after each.
const WRITERS: [(&str, &str); 5] = [
    (
        "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
         VALUES (overlay($1::text PLACING 'ffff' FROM 1 FOR 4)::uuid, 0, 'late', 'scheduled', now(), now(), '', '')",
        "scheduled",
    ),
    (
        "SELECT duetime.task_put(overlay($1::text PLACING 'ffff' FROM 1 FOR 4)::uuid, 0, 'late', now(), false, 3::smallint,
             ''::bytea, '', NULL, NULL, NULL, NULL, NULL, NULL, 'k', 0, 'keep', interval '1 day', 1000, NULL)",
        "scheduled",
    ),
    ("SELECT duetime.cancel($1::uuid)", "cancelled"),
    (
        "WITH gone AS (DELETE FROM duetime.task WHERE id = $1::uuid RETURNING *)
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
         SELECT id, shard, queue, 'succeeded', wake_at, due_at, payload, content_type, now(), current_date + 2 FROM gone",
        "succeeded",
    ),
    (
        "UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = 1 WHERE id = $1::uuid",
        "dispatching",
    ),
];

/// A shard that is leaving its source.
struct Pair {
    source: TestDatabase,
    target: TestDatabase,
    owner: NodeId,
    epoch: Epoch,
    /// The number of its last write.
    writes: Cell<i64>,
}

impl Pair {
    /// A shard with three tasks, before its move.
    async fn here() -> (Self, Vec<TaskId>) {
        let (source, target) = tokio::join!(fixture::database(), fixture::database());
        sqlx::query("DELETE FROM duetime.shard WHERE id = 0").execute(&target.pool).await.unwrap();
        let owner = node("owner");
        let epoch = source.database.shard_acquire(&[SHARD], &owner).await.unwrap()[0].1;
        let ids = submitted(&source, 3).await;
        (Self { source, target, owner, epoch, writes: Cell::new(0) }, ids)
    }

    /// The same, copied; changes are noted from now on.
    async fn copied() -> (Self, Vec<TaskId>) {
        let (mut pair, ids) = Self::here().await;
        pair.begin().await;
        pair.copy().await;
        (pair, ids)
    }

    async fn begin(&self) {
        self.target.database.move_guard(&[SHARD], false).await.unwrap();
        self.source.database.move_guard(&[SHARD], false).await.unwrap();
        let seen = self.target.database.move_fence(SHARD).await.unwrap();
        let begins = self.target.database.move_arrive(SHARD, self.epoch, self.writes.get(), seen.as_ref());
        assert!(begins.await.unwrap());
        assert!(self.source.database.move_leave(SHARD, self.epoch, self.next_write()).await.unwrap());
    }

    fn next_write(&self) -> i64 {
        self.writes.set(self.writes.get() + 1);
        self.writes.get()
    }

    async fn copy(&mut self) {
        let days = self.source.database.partition_days().await.unwrap();
        let mut cursor = PageCursor::FIRST;
        while cursor != PageCursor::Done {
            let page =
                self.source.database.move_page(SHARD, &cursor, &days, true, &WritePaces::default()).await.unwrap();
            assert!(self.write(&page.rows).await);
            cursor = page.next;
        }
    }

    async fn write(&mut self, rows: &MoveRows) -> bool {
        self.target.database.move_write(SHARD, self.epoch, self.next_write(), rows).await.unwrap()
    }

    async fn rounds(&mut self) {
        loop {
            let changes = self.source.database.move_changes(SHARD, 0, &WritePaces::default()).await.unwrap();
            if changes.numbers.is_empty() {
                return;
            }
            assert!(self.write(&changes.rows).await);
            self.source.database.move_forget(SHARD, &changes.numbers).await.unwrap();
        }
    }

    /// Writes the last changes of a closed shard, and opens it in the target.
    async fn open(&mut self, closed: Epoch) -> Epoch {
        self.rounds().await;
        self.target.database.move_open(SHARD, self.epoch, closed, &self.owner).await.unwrap().expect("it arrives")
    }

    /// The move from here on, without writers in the way. Returns the epochs of source and target.
    async fn cut(&mut self) -> (Epoch, Epoch) {
        let closed = self.close().await.expect("the owner closes it");
        (closed, self.open(closed).await)
    }

    async fn close(&self) -> Option<Epoch> {
        self.source.database.move_close(SHARD, self.epoch, self.next_write(), CloseWait::Plain).await.unwrap()
    }

    /// Ends the move as one that was called off.
    async fn end(&mut self) {
        assert!(self.source.database.move_return(SHARD, self.epoch, self.next_write()).await.unwrap());
        let rows = first_page(&self.target, false).await;
        assert!(self.write(&rows).await);
        assert!(self.target.database.move_drop(SHARD, self.epoch, self.next_write()).await.unwrap());
    }

    /// Lets closes wait as long as a test needs.
    async fn patient(&self) {
        self.source.be_patient(PoolKind::Fire).await;
        let patient = "ALTER FUNCTION duetime.move_close(integer, bigint, bigint) SET lock_timeout = 0";
        sqlx::query(patient).execute(&self.source.pool).await.unwrap();
    }

    async fn status(database: &TestDatabase) -> Option<ShardStatus> {
        database.database.move_fence(SHARD).await.unwrap().map(|fence| fence.status)
    }
}

/// Every row of the shard: id, table and content.
async fn rows(pool: &PgPool) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT 'task ' || t::text FROM duetime.task AS t WHERE shard = 0
         UNION ALL SELECT 'archive ' || a::text FROM duetime.archive AS a WHERE shard = 0
         UNION ALL SELECT 'received ' || r::text FROM duetime.received AS r WHERE duetime.shard_in(id) = 0
         ORDER BY 1",
    )
    .fetch_all(pool)
    .await
    .unwrap()
}

/// The rows of the first page of the shard.
async fn first_page(test: &TestDatabase, with_rows: bool) -> MoveRows {
    let writes = WritePaces::default();
    test.database.move_page(SHARD, &PageCursor::FIRST, &[], with_rows, &writes).await.unwrap().rows
}

async fn begun(pool: &PgPool) -> PoolConnection<Postgres> {
    let mut connection = pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *connection).await.unwrap();
    connection
}

async fn write(executor: impl sqlx::PgExecutor<'_>, sql: &'static str, id: TaskId) -> Result<(), sqlx::Error> {
    sqlx::query(sql).bind(id.uuid().to_string()).execute(executor).await.map(drop)
}

#[tokio::test]
async fn a_copy_has_every_row_of_the_shard_and_no_other() {
    let (mut pair, ids) = Pair::here().await;
    let prepare = "
        UPDATE duetime.task SET state = 'ready', priority = 5 WHERE id = (SELECT max(id::text)::uuid FROM duetime.task);
        INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, headers, key, partition_key, history)
        SELECT duetime.mint(now(), i % 2), i % 2, 'q' || i % 3, (CASE WHEN i % 5 = 0 THEN 'ready' ELSE 'scheduled' END)::duetime.task_state,
               '2026-01-01', now(), '\\x00ff225c2c7b', 'a/b', '{\"a\": \"\\\\ \\\"{},()\"}', 'k' || i, CASE WHEN i % 3 = 0 THEN 'p, \"' || i END, '[]'
          FROM generate_series(1, 2500) AS i;
        INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, result, finished_at, drop_on)
        SELECT duetime.mint(now(), i % 2), i % 2, 'q', 'succeeded', now(), now(), 'x', 'a', '{\"a\": 1e2}', now(), current_date + 1 + i % 3
          FROM generate_series(1, 3000) AS i;
        INSERT INTO duetime.received (id, source) SELECT duetime.mint(now(), i % 2), 'east' FROM generate_series(1, 50) AS i;";
    sqlx::raw_sql(prepare).execute(&pair.source.pool).await.unwrap();
    pair.begin().await;
    pair.copy().await;
    let copied = rows(&pair.target.pool).await;
    assert_eq!(copied, rows(&pair.source.pool).await);
    assert_eq!(copied.len(), ids.len() + 1_250 + 1_500 + 25);
    let all: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.task WHERE shard <> 0")
        .fetch_one(&pair.target.pool)
        .await
        .unwrap();
    assert_eq!(all, 0);
}

#[tokio::test]
async fn a_writer_under_way_at_the_cut_is_waited_for_and_its_write_is_in_the_target() {
    for (sql, state) in WRITERS {
        let (mut pair, ids) = Pair::copied().await;
        pair.patient().await;
        let mut writer = begun(&pair.source.pool).await;
        write(&mut *writer, sql, ids[0]).await.unwrap();
        let (database, epoch, number) = (pair.source.database.clone(), pair.epoch, pair.next_write());
        let closing = spawn_child(async move { database.move_close(SHARD, epoch, number, CloseWait::Plain).await });
        until_waiting(&pair.source.pool, 1).await;
        sqlx::query("COMMIT").execute(&mut *writer).await.unwrap();
        let closed = closing.await.unwrap().unwrap().expect("the owner closes it");
        pair.open(closed).await;
        let moved = rows(&pair.target.pool).await;
        assert_eq!(moved, rows(&pair.source.pool).await, "{sql}");
        assert!(moved.iter().any(|row| row.contains(state)), "{sql}: {moved:?}");
    }
}

#[tokio::test]
async fn a_writer_that_comes_after_the_cut_is_refused_and_changes_nothing() {
    for (sql, _) in WRITERS {
        let (mut pair, ids) = Pair::copied().await;
        let before = rows(&pair.source.pool).await;
        let mut closing = begun(&pair.source.pool).await;
        let closed: i64 = sqlx::query_scalar("SELECT duetime.move_close(0, $1, $2)")
            .bind(pair.epoch.number())
            .bind(pair.next_write())
            .fetch_one(&mut *closing)
            .await
            .unwrap();
        let (pool, id) = (pair.source.pool.clone(), ids[0]);
        let writing = spawn_child(async move { write(&pool, sql, id).await });
        until_waiting(&pair.source.pool, 1).await;
        sqlx::query("COMMIT").execute(&mut *closing).await.unwrap();
        let error = writing.await.unwrap().expect_err("the shard has moved");
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.to_string());
        assert_eq!(code.as_deref(), Some("DT001"), "{sql}: {error}");
        pair.open(Epoch::from_store(closed)).await;
        assert_eq!(rows(&pair.source.pool).await, before, "{sql}");
        assert_eq!(rows(&pair.target.pool).await, before, "{sql}");
    }
}

#[tokio::test]
async fn without_the_lock_of_the_gate_a_writer_under_way_at_the_cut_would_be_lost() {
    let (mut pair, ids) = Pair::copied().await;
    let unlock =
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('duetime.gate_pass'::regproc), 'FOR SHARE', ''); END $$";
    sqlx::raw_sql(unlock).execute(&pair.source.pool).await.unwrap();
    let mut writer = begun(&pair.source.pool).await;
    write(&mut *writer, WRITERS[4].0, ids[0]).await.unwrap();
    let (_, _) = pair.cut().await;
    sqlx::query("COMMIT").execute(&mut *writer).await.unwrap();
    assert_ne!(rows(&pair.target.pool).await, rows(&pair.source.pool).await, "nothing has waited for it");
}

#[tokio::test]
async fn the_gate_is_made_once_all_writers_have_ended_and_not_before() {
    let (pair, ids) = Pair::here().await;
    let mut writer = begun(&pair.source.pool).await;
    write(&mut *writer, WRITERS[4].0, ids[0]).await.unwrap();
    let error = pair.source.database.move_guard(&[SHARD], false).await.expect_err("a writer is under way");
    assert_eq!(error.fault(), Fault::Contention);
    let leaves = pair.source.database.move_leave(SHARD, pair.epoch, pair.next_write());
    assert!(!leaves.await.unwrap(), "no shard leaves past the gate");
    sqlx::query("COMMIT").execute(&mut *writer).await.unwrap();
    pair.begin().await;
    assert_eq!(Pair::status(&pair.source).await, Some(ShardStatus::Leaving));
}

#[tokio::test]
async fn a_change_between_the_read_of_a_round_and_its_end_comes_with_the_next_round() {
    let (mut pair, ids) = Pair::copied().await;
    write(&pair.source.pool, WRITERS[4].0, ids[0]).await.unwrap();
    let read = pair.source.database.move_changes(SHARD, 0, &WritePaces::default()).await.unwrap();
    write(&pair.source.pool, WRITERS[3].0, ids[0]).await.unwrap();
    assert!(pair.write(&read.rows).await);
    pair.source.database.move_forget(SHARD, &read.numbers).await.unwrap();
    assert_ne!(rows(&pair.target.pool).await, rows(&pair.source.pool).await, "the first round is older");
    pair.rounds().await;
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}

#[tokio::test]
async fn a_key_that_passed_to_another_task_during_the_copy_does_not_stop_it() {
    let (mut pair, _) = Pair::here().await;
    let make = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
                VALUES (duetime.mint(now(), 0), 0, 'q', 'scheduled', $1::timestamptz, now(), '', '', 'k')";
    sqlx::query(make).bind("2026-01-01").execute(&pair.source.pool).await.unwrap();
    pair.begin().await;
    let first = first_page(&pair.source, true).await;
    assert!(pair.write(&first).await);
    sqlx::query("DELETE FROM duetime.task WHERE key = 'k'").execute(&pair.source.pool).await.unwrap();
    sqlx::query(make).bind("2027-01-01").execute(&pair.source.pool).await.unwrap();
    pair.copy().await;
    pair.rounds().await;
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}

#[tokio::test]
async fn an_owner_of_an_older_epoch_and_a_write_that_comes_late_change_nothing_in_the_target() {
    let (mut pair, ids) = Pair::copied().await;
    let stale = first_page(&pair.source, true).await;
    write(&pair.source.pool, WRITERS[3].0, ids[0]).await.unwrap();
    pair.rounds().await;
    let now = rows(&pair.target.pool).await;
    let target = &pair.target.database;
    assert!(
        !target.move_write(SHARD, pair.epoch, pair.writes.get(), &stale).await.unwrap(),
        "a later write came before"
    );
    let next = pair.source.database.shard_acquire(&[SHARD], &node("next")).await.unwrap()[0].1;
    assert!(target.move_fill(SHARD, next, 0).await.unwrap());
    assert!(!target.move_write(SHARD, pair.epoch, pair.next_write(), &stale).await.unwrap(), "another node owns it");
    assert!(!target.move_fill(SHARD, pair.epoch, pair.writes.get()).await.unwrap());
    assert_eq!(target.move_open(SHARD, pair.epoch, next, &pair.owner).await.unwrap(), None);
    assert_eq!(pair.close().await, None);
    assert_eq!(rows(&pair.target.pool).await, now);
}

#[tokio::test]
async fn a_write_of_a_move_that_was_called_off_changes_nothing_in_the_next_one() {
    write_late(false).await;
    // The beginning of the former move is executed a second time, before the next one begins.
    write_late(true).await;
}

/// Found by the model of cuts: the same owner moves the shard again, and so under the same epoch.
async fn write_late(begins_late: bool) {
    let (mut pair, ids) = Pair::copied().await;
    let held_up = first_page(&pair.source, true).await;
    let number = pair.next_write();
    write(&pair.source.pool, WRITERS[2].0, ids[0]).await.unwrap();
    pair.end().await;
    if begins_late {
        assert!(!pair.target.database.move_arrive(SHARD, pair.epoch, 0, None).await.unwrap());
    }
    pair.begin().await;
    let target = &pair.target.database;
    assert!(!target.move_write(SHARD, pair.epoch, number, &held_up).await.unwrap(), "a write of the move before");
    pair.copy().await;
    pair.cut().await;
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await, "the cancelled task stays cancelled");
}

#[tokio::test]
async fn a_shard_that_goes_and_comes_back_has_rising_epochs_and_keeps_its_rows() {
    let (mut pair, _) = Pair::copied().await;
    let before = rows(&pair.source.pool).await;
    let (closed, opened) = pair.cut().await;
    assert!(pair.epoch < closed && closed < opened);
    let left = first_page(&pair.source, false).await;
    // What is left behind goes, and the shard comes back.
    assert!(pair.source.database.move_sweep(SHARD, closed, &left).await.unwrap());
    assert!(rows(&pair.source.pool).await.is_empty());
    let Pair { source, target, owner, .. } = pair;
    let mut back = Pair { source: target, target: source, owner, epoch: opened, writes: Cell::new(0) };
    back.begin().await;
    back.copy().await;
    let sweep = back.target.database.move_sweep(SHARD, closed, &left);
    assert!(!sweep.await.unwrap(), "a late clean-up meets a shard that arrives");
    let (closed_again, home) = back.cut().await;
    assert!(opened < closed_again && closed_again < home);
    assert!(!back.target.database.move_sweep(SHARD, closed, &left).await.unwrap(), "it is here");
    // The shard goes again, and is closed: its rows are not copied yet.
    let Pair { source, target, owner, .. } = back;
    let again = Pair { source: target, target: source, owner, epoch: home, writes: Cell::new(0) };
    again.begin().await;
    let (source, number) = (&again.source.database, again.next_write());
    let third = source.move_close(SHARD, home, number, CloseWait::InTurn).await.unwrap().unwrap();
    assert!(!again.source.database.move_sweep(SHARD, closed, &left).await.unwrap(), "the clean-up of an older move");
    assert!(third > home);
    assert_eq!(rows(&again.source.pool).await, before);
}

#[tokio::test]
async fn a_cut_that_is_given_up_opens_the_source_again_and_a_move_that_is_called_off_leaves_nothing() {
    let (mut pair, ids) = Pair::copied().await;
    let closed = pair.close().await.expect("the owner closes it");
    let stranger = pair.source.database.move_reopen(SHARD, closed, &node("other")).await.unwrap();
    assert_eq!(stranger, None);
    let reopened = pair.source.database.move_reopen(SHARD, closed, &pair.owner).await.unwrap().unwrap();
    pair.epoch = reopened;
    write(&pair.source.pool, WRITERS[4].0, ids[0]).await.unwrap();
    assert!(pair.target.database.move_fill(SHARD, reopened, pair.writes.get()).await.unwrap());
    pair.end().await;
    assert!(pair.source.database.move_changes(SHARD, 0, &WritePaces::default()).await.unwrap().numbers.is_empty());
    assert!(rows(&pair.target.pool).await.is_empty());
    assert_eq!(Pair::status(&pair.target).await, Some(ShardStatus::Gone));
    pair.source.database.move_guard(&[], true).await.unwrap();
    let guarded: bool =
        sqlx::query_scalar("SELECT bool_or(0 <@ shards) FROM duetime.gate").fetch_one(&pair.source.pool).await.unwrap();
    assert!(!guarded, "a shard that does not move costs nothing");
}

#[tokio::test]
async fn the_owner_of_a_closed_shard_and_the_one_that_opens_it_in_its_target_have_different_epochs() {
    let (mut pair, _) = Pair::copied().await;
    let source = pair.source.database.clone();
    let closed = pair.close().await.expect("it leaves");
    // Two nodes take the fence there one after the other. The open was sent before, and comes after.
    source.closed.store(Arc::new(vec![SHARD.number().into()]));
    let first = source.shard_acquire(&[SHARD], &node("next")).await.unwrap()[0].1;
    let second = source.shard_acquire(&[SHARD], &node("last")).await.unwrap()[0].1;
    let opened = pair.open(closed).await;
    assert!(closed < first && first < second && second < opened, "{closed}, {first}, {second}, {opened}");
}

#[tokio::test]
async fn the_last_changes_are_read_part_by_part_while_their_notes_stay() {
    let (mut pair, ids) = Pair::copied().await;
    // A read takes one of them: two are above its bound.
    let grow = "UPDATE duetime.task SET payload = convert_to(repeat('x', 1500000), 'UTF8') WHERE shard = 0";
    sqlx::query(grow).execute(&pair.source.pool).await.unwrap();
    let source = pair.source.database.clone();
    let closed = pair.close().await.expect("it leaves");
    let mut after = 0;
    for part in 1..=ids.len() {
        let changes = source.move_changes(SHARD, after, &WritePaces::default()).await.unwrap();
        assert_eq!((changes.numbers.len(), changes.are_all), (1, part == ids.len()), "part {part}");
        assert!(pair.write(&changes.rows).await);
        after = changes.numbers[0];
    }
    pair.target.database.move_open(SHARD, pair.epoch, closed, &pair.owner).await.unwrap().expect("it arrives");
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}

/// The progress of a move tells them. Each submission that replaced a task has left its answer.
#[tokio::test]
async fn the_bytes_of_a_page_of_notes_are_also_those_of_their_answers() {
    let test = fixture::database().await;
    let fill = "INSERT INTO duetime.received (id, source, answer)
                SELECT duetime.mint(now(), $1), '(replaced)', to_jsonb(repeat('a', 1000)) FROM generate_series(1, 3)";
    sqlx::query(fill).bind(i32::from(SHARD.number())).execute(&test.pool).await.unwrap();
    let cursor = PageCursor::Received { id: uuid::Uuid::nil() };
    let page = test.database.move_page(SHARD, &cursor, &[], true, &WritePaces::default()).await.unwrap();
    assert_eq!(page.rows.len(), 3);
    assert!((3_000..4_000).contains(&page.bytes), "{}", page.bytes);
}
