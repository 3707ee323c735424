//! Rows with long histories and results, and rows that take long to measure.

use super::*;

/// Tasks of [`SHARD`]: some that wait for their time, as many that wait for room, and half as many finished ones. The
/// histories are compressed well.
const LONG: &str = "
    WITH long AS MATERIALIZED (
        SELECT jsonb_agg(jsonb_build_object('attempt', n, 'error', repeat(md5(n::text), 62))) AS history FROM generate_series(1, 100) AS n
    ), live AS (
        INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, history)
        SELECT duetime.mint(now(), 0), 0, 'long', (CASE WHEN g % 2 = 0 THEN 'ready' ELSE 'scheduled' END)::duetime.task_state,
               now() + g * interval '1 s', now(), '', '', long.history
          FROM long
         CROSS JOIN generate_series(1, 80) AS g
    )
    INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, result, finished_at, drop_on)
    SELECT duetime.mint(now(), 0), 0, 'long', 'dead', now(), now(), '', '', repeat('r', 100000), now(), current_date + 2
      FROM generate_series(1, 40)";

/// More of such rows than a page or a round takes, and fewer than there are in a part of the copy.
const MOST: usize = 30;

#[tokio::test]
async fn long_histories_and_results_fill_a_page_and_a_round() {
    let (mut pair, _) = Pair::here().await;
    let source = pair.source.database.clone();
    sqlx::raw_sql(LONG).execute(&pair.source.pool).await.unwrap();
    pair.begin().await;
    let days = source.partition_days().await.unwrap();
    let mut cursor = PageCursor::FIRST;
    while cursor != PageCursor::Done {
        let page = source.move_page(SHARD, &cursor, &days, true, &WritePaces::default()).await.unwrap();
        assert!(page.rows.len() < MOST, "{cursor:?}: {} rows", page.rows.len());
        assert!(pair.write(&page.rows).await);
        cursor = page.next;
    }
    sqlx::raw_sql(LONG).execute(&pair.source.pool).await.unwrap();
    let mut rounds = 0;
    loop {
        let changes = source.move_changes(SHARD, 0, &WritePaces::default()).await.unwrap();
        if changes.numbers.is_empty() {
            break;
        }
        assert!(changes.rows.len() < MOST, "{} rows", changes.rows.len());
        assert!(pair.write(&changes.rows).await);
        source.move_forget(SHARD, &changes.numbers).await.unwrap();
        rounds += 1;
    }
    assert!(rounds > 120 / MOST, "the changes of 120 rows");
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}

/// Of each table, a row with one long value: a name of 400 bytes for each of 100 tasks, or a message.
const LONG_VALUES: &str = "
    UPDATE duetime.task
       SET depends_on = (SELECT array_agg(repeat(md5(n::text || id::text), 12)) FROM generate_series(1, 100) AS n)
     WHERE id = (SELECT min(id::text)::uuid FROM duetime.task);
    UPDATE duetime.task SET depends_met = (SELECT depends_on FROM duetime.task WHERE depends_on IS NOT NULL)
     WHERE id = (SELECT max(id::text)::uuid FROM duetime.task);
    INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, status_msg, finished_at, drop_on)
    SELECT duetime.mint(now(), 0), 0, 'long', 'dead', now(), now(), '', '', repeat('m', 30000), now(), current_date + 2";

#[tokio::test]
async fn names_of_tasks_to_wait_for_and_the_message_of_a_report_count_in_a_page() {
    let (pair, _) = Pair::here().await;
    let source = pair.source.database.clone();
    pair.begin().await;
    sqlx::raw_sql(LONG_VALUES).execute(&pair.source.pool).await.unwrap();
    let days = source.partition_days().await.unwrap();
    let mut bytes = Vec::new();
    let mut cursor = PageCursor::FIRST;
    while cursor != PageCursor::Done {
        let page = source.move_page(SHARD, &cursor, &days, true, &WritePaces::default()).await.unwrap();
        bytes.push(page.bytes);
        cursor = page.next;
    }
    assert!(bytes.iter().any(|bytes| *bytes > 2 * 30_000), "a page of three tasks, with two long values: {bytes:?}");
    assert!(bytes.iter().filter(|bytes| **bytes > 30_000).count() > 1, "a page of the archive: {bytes:?}");
}

/// A task of 0.1.0 may have such a history.
#[tokio::test]
async fn a_row_above_the_bound_of_a_page_moves_alone() {
    let (mut pair, _) = Pair::here().await;
    // Of a kind that no compression shortens.
    let grow = "
        UPDATE duetime.task
           SET history = (SELECT jsonb_agg(md5(n::text || id::text)) FROM generate_series(1, 100000) AS n)
         WHERE shard = 0";
    sqlx::raw_sql(grow).execute(&pair.source.pool).await.unwrap();
    pair.begin().await;
    let (mut cursor, mut pages) = (PageCursor::FIRST, 0);
    while matches!(cursor, PageCursor::Tasks { .. }) {
        let page = pair.source.database.move_page(SHARD, &cursor, &[], true, &WritePaces::default()).await.unwrap();
        assert!(page.rows.len() <= 1, "{} rows", page.rows.len());
        pages += page.rows.len();
        assert!(pair.write(&page.rows).await);
        cursor = page.next;
    }
    assert_eq!(pages, 3);
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}

/// Makes each look at a history take 20 ms, so that those of a page or a round take longer than a statement may.
const SLOW_HISTORIES: &str = "
    INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
    SELECT duetime.mint(now(), 0), 0, 'slow', 'scheduled', now() + g * interval '1 s', now(), '', '' FROM generate_series(1, 500) AS g;
    INSERT INTO duetime.move_change (shard, guarded, id) SELECT 0, 'task', id FROM duetime.task WHERE shard = 0;
    ALTER TABLE duetime.task RENAME TO plain;
    CREATE FUNCTION duetime.slowly(history jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS
        'BEGIN PERFORM pg_sleep(0.02); RETURN history; END';
    CREATE VIEW duetime.task AS
        SELECT id, shard, state, wake_at, payload, headers, envelope, depends_on, depends_met, duetime.slowly(history) AS history
          FROM duetime.plain";

#[tokio::test]
async fn a_page_and_a_round_that_run_out_of_their_time_are_read_in_smaller_parts() {
    let (page, round, last) = tokio::join!(fixture::database(), fixture::database(), fixture::database());
    for test in [&page, &round, &last] {
        sqlx::raw_sql(SLOW_HISTORIES).execute(&test.pool).await.unwrap();
    }
    let (first, writes) = (PageCursor::FIRST, WritePaces::default());
    // The tasks of a closed shard wait for each try.
    let try_by_try = async {
        for tried in 0..3 {
            match last.database.move_last_changes(SHARD, 0, &WritePaces::default()).await {
                Ok(changes) => return (tried, changes.numbers.len()),
                Err(error) => assert!(error.is_out_of_time(), "{error:?}"),
            }
        }
        panic!("it has the same changes again and again");
    };
    let (read, changes, (failed, found)) = tokio::join!(
        page.database.move_page(SHARD, &first, &[], false, &writes),
        round.database.move_changes(SHARD, 0, &writes),
        try_by_try,
    );
    let (read, changes) = (read.unwrap(), changes.unwrap());
    assert!((1..500).contains(&read.rows.len()), "{} rows", read.rows.len());
    assert!(matches!(read.next, PageCursor::Tasks { .. }), "there are more: {:?}", read.next);
    assert!((1..500).contains(&changes.numbers.len()), "{} changes", changes.numbers.len());
    assert!(!changes.are_all);
    assert!(failed > 0, "each try is an answer");
    assert!((1..500).contains(&found), "{found} changes");
}
