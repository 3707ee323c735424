//! Statements on a fence that claims hold.

use std::time::Duration;

use super::*;
use crate::coordination::tests::soon;

/// As a claim holds the fence until it commits.
const CLAIM: &str = "SELECT FROM duetime.shard WHERE id = 0 FOR SHARE";

/// Has the plain forms give up at once, and those in turn wait as long as the test decides.
const PATIENT_IN_TURN: &str = "
    ALTER FUNCTION duetime.move_leave(integer, bigint, bigint) SET lock_timeout = '1ms';
    ALTER FUNCTION duetime.move_return(integer, bigint, bigint) SET lock_timeout = '1ms';
    ALTER FUNCTION duetime.move_leave_in_turn(integer, bigint, bigint) SET lock_timeout = 0;
    ALTER FUNCTION duetime.move_return_in_turn(integer, bigint, bigint) SET lock_timeout = 0;
";

/// Whether a statement waits for its turn in this database.
const IN_TURN: &str = "
    SELECT EXISTS (
           SELECT FROM pg_locks
            WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND relation = 'duetime.shard'::regclass AND mode = 'ExclusiveLock' AND NOT granted)";

/// A claim that comes later waits behind them, so claims that overlap for ever keep them out for a moment only.
#[tokio::test]
async fn claims_that_overlap_starve_neither_the_begin_of_a_move_nor_the_end_of_one_that_is_called_off() {
    let (pair, _) = Pair::here().await;
    pair.source.be_patient(PoolKind::Fire).await;
    let pool = pair.source.pool.clone();
    sqlx::raw_sql(PATIENT_IN_TURN).execute(&pool).await.unwrap();
    pair.source.database.move_guard(&[SHARD], false).await.unwrap();
    for (leaves, status) in [(true, ShardStatus::Leaving), (false, ShardStatus::Here)] {
        let mut first = begun(&pool).await;
        sqlx::query(CLAIM).execute(&mut *first).await.unwrap();
        let (database, epoch, number) = (pair.source.database.clone(), pair.epoch, pair.next_write());
        let step = spawn_child(async move {
            if leaves {
                database.move_leave(SHARD, epoch, number).await
            } else {
                database.move_return(SHARD, epoch, number).await
            }
        });
        let its_turn = async {
            while !sqlx::query_scalar::<_, bool>(IN_TURN).fetch_one(&pool).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("a statement that waits for its turn", its_turn).await;
        let claims = pool.clone();
        let second = spawn_child(async move { sqlx::query(CLAIM).execute(&claims).await });
        until_waiting(&pool, 2).await;
        sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
        assert!(step.await.unwrap().unwrap());
        second.await.unwrap().unwrap();
        assert_eq!(Pair::status(&pair.source).await, Some(status));
    }
}

/// Has each deletion of notes run out of its time, as with very many of them.
const SLOW_TO_FORGET: &str = "
    CREATE FUNCTION public.out_of_time() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'a test ends this statement' USING ERRCODE = 'query_canceled';
    END $$;
    CREATE TRIGGER out_of_time BEFORE DELETE ON duetime.move_change FOR EACH ROW EXECUTE FUNCTION public.out_of_time()";

/// Nothing fires while the table is locked.
#[tokio::test]
async fn a_return_in_turn_deletes_no_notes_and_the_next_move_takes_them_for_changes() {
    let (mut pair, ids) = Pair::copied().await;
    let source = pair.source.pool.clone();
    sqlx::raw_sql("UPDATE duetime.task SET priority = 5 WHERE shard = 0").execute(&source).await.unwrap();
    sqlx::raw_sql(SLOW_TO_FORGET).execute(&source).await.unwrap();
    let returned = pair.source.database.move_return(SHARD, pair.epoch, pair.next_write()).await;
    assert!(returned.unwrap(), "in turn, after the plain form has run out of its time");
    assert_eq!(Pair::status(&pair.source).await, Some(ShardStatus::Here));
    sqlx::raw_sql("DROP TRIGGER out_of_time ON duetime.move_change").execute(&source).await.unwrap();
    sqlx::query("DELETE FROM duetime.task WHERE id = $1").bind(ids[0].uuid()).execute(&source).await.unwrap();
    assert!(pair.source.database.move_leave(SHARD, pair.epoch, pair.next_write()).await.unwrap());
    assert_eq!(
        pair.source.database.move_changes(SHARD, 0, &WritePaces::default()).await.unwrap().numbers.len(),
        3,
        "the notes are left"
    );
    pair.rounds().await;
    assert_eq!(rows(&pair.target.pool).await, rows(&source).await);
}

/// Has each change of a fence fail with this SQLSTATE, and counts them.
const FAILING: &str = "
    CREATE SEQUENCE public.tries;
    CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('public.tries');
        RAISE EXCEPTION 'a test ends this statement' USING ERRCODE = TG_ARGV[0];
    END $$;
    CREATE TRIGGER fail BEFORE UPDATE ON duetime.shard FOR EACH ROW EXECUTE FUNCTION public.fail(";

/// How many have failed. A sequence that has given no number yet has the `last_value` of one that has given the first.
const COUNTED: &str = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.tries";

#[tokio::test]
async fn a_step_of_unknown_outcome_is_not_sent_again_under_the_same_number() {
    for (sqlstate, tries) in [("55P03", 2), ("25P04", 1)] {
        let (pair, _) = Pair::here().await;
        let pool = pair.source.pool.clone();
        pair.source.database.move_guard(&[SHARD], false).await.unwrap();
        let failing = sqlx::AssertSqlSafe(format!("{FAILING}'{sqlstate}')"));
        sqlx::raw_sql(failing).execute(&pool).await.unwrap();
        let left = pair.source.database.move_leave(SHARD, pair.epoch, pair.next_write()).await;
        assert!(left.expect_err("a test ends it").is_contention());
        let counted: i64 = sqlx::query_scalar(COUNTED).fetch_one(&pool).await.unwrap();
        assert_eq!(counted, tries, "{sqlstate}");
    }
}
