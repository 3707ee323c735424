//! Rows whose requests cannot be read, and reads that fail for another reason.

use super::*;
use crate::intake::sql::read::UNREAD_TRIES;

/// Makes each read of a request with the payload 13 fail.
async fn spoil(test: &TestDatabase, sqlstate: &str) {
    let spoil = format!(
        "CREATE FUNCTION public.shown(request jsonb) RETURNS text LANGUAGE plpgsql AS $$
         BEGIN
             IF request ->> 'payload' = '13' THEN
                 RAISE EXCEPTION 'a test spoils this request' USING ERRCODE = '{sqlstate}';
             END IF;
             RETURN format('%s', request);
         END $$;
         CREATE CAST (jsonb AS text) WITH FUNCTION public.shown(jsonb)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(spoil)).execute(&test.pool).await.unwrap();
}

async fn mend(test: &TestDatabase) {
    let mend = "CREATE OR REPLACE FUNCTION public.shown(request jsonb) RETURNS text LANGUAGE sql AS
                $$ SELECT format('%s', request) $$";
    sqlx::raw_sql(mend).execute(&test.pool).await.unwrap();
}

async fn refused(test: &TestDatabase) -> Vec<TaskId> {
    let refused = "SELECT id FROM duetime.inbox WHERE error IS NOT NULL";
    let refused: Vec<uuid::Uuid> = sqlx::query_scalar(refused).fetch_all(&test.pool).await.unwrap();
    refused.into_iter().map(TaskId::from_uuid).collect()
}

async fn submit(test: &TestDatabase, payload: i32) -> TaskId {
    let submit = sqlx::query_scalar("SELECT duetime.submit('orders', to_jsonb($1::int))").bind(payload);
    TaskId::from_uuid(submit.fetch_one(&test.pool).await.unwrap())
}

/// A node that owns all shards.
async fn owner() -> (Counter, TestDatabase, SqlIntake) {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    let intake = intake(&counter);
    (counter, test, intake)
}

/// The lock ends as soon as a third statement waits for it: after the read of many rows and that of one, a read of the
/// ids would pass.
#[tokio::test]
async fn a_lock_on_the_inbox_refuses_no_submission() {
    let (_counter, test, intake) = owner().await;
    submit(&test, 1).await;
    let mut holder = test.pool.acquire().await.unwrap();
    let lock = "BEGIN; LOCK TABLE duetime.inbox IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut *holder).await.unwrap();
    let third_waits = async {
        let waiting = "SELECT query_start::text FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let mut waited = BTreeSet::new();
        while waited.len() < 3 {
            waited.extend(sqlx::query_scalar::<_, String>(waiting).fetch_all(&test.pool).await.unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut state = PassState::default();
    {
        let mut pass = std::pin::pin!(intake.collect(&mut state));
        let ended = tokio::select! {
            ended = &mut pass => Some(ended),
            () = third_waits => None,
        };
        sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
        let ended = match ended {
            Some(ended) => ended,
            None => pass.await,
        };
        assert!(ended.is_err_and(|error| error.is_contention()), "it waits for the end of the lock");
    }
    assert!(refused(&test).await.is_empty());
    intake.collect(&mut state).await.unwrap();
    assert_eq!(test.live().await, 1);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_keeps_no_other_waiting_and_is_refused_after_some_tries() {
    for sqlstate in ["57014", "54000", "XX001"] {
        let (_counter, test, intake) = owner().await;
        spoil(&test, sqlstate).await;
        let (unreadable, mut state) = (submit(&test, 13).await, PassState::default());
        for tries in 1..UNREAD_TRIES {
            submit(&test, 1).await;
            intake.collect(&mut state).await.expect_err("the first row cannot be read");
            intake.collect(&mut state).await.unwrap();
            assert_eq!((test.live().await, refused(&test).await), (i64::from(tries), vec![]), "{sqlstate}");
            // As if the pause had passed, and no other row waited.
            (state.aside, state.has_more) = (BTreeMap::new(), false);
        }
        intake.collect(&mut state).await.unwrap();
        assert_eq!(refused(&test).await, [unreadable], "{sqlstate}");
        assert!(state.unread.is_empty());
    }
}

/// The server may be at fault.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_not_refused_while_no_other_is_read() {
    let (_counter, test, intake) = owner().await;
    spoil(&test, "XX001").await;
    submit(&test, 13).await;
    let mut state = PassState::default();
    for _ in 0..2 * UNREAD_TRIES {
        intake.collect(&mut state).await.expect_err("the row cannot be read");
        // As if the pause had passed.
        (state.aside, state.has_more) = (BTreeMap::new(), false);
    }
    mend(&test).await;
    intake.collect(&mut state).await.unwrap();
    assert_eq!((test.live().await, state.unread.len()), (1, 0));
}

#[tokio::test]
async fn a_submission_waits_behind_one_that_cannot_be_read_and_may_have_its_key() {
    let (_counter, test, intake) = owner().await;
    spoil(&test, "57014").await;
    let task = replace(&test, 13).await;
    let mut state = PassState::default();
    intake.collect(&mut state).await.expect_err("the row cannot be read");
    replace(&test, 2).await;
    intake.collect(&mut state).await.unwrap();
    assert_eq!(test.live().await, 0);
    mend(&test).await;
    // As if the pauses had passed.
    (state.aside, state.has_more) = (BTreeMap::new(), false);
    intake.collect(&mut state).await.unwrap();
    let made = test.database.task_read(task).await.unwrap().expect("the first one made it");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"2".as_slice()), 1));
}
