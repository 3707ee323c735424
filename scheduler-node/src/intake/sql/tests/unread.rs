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

/// Collects until a pass has read a batch: one that looks for long for rows that cannot be read ends without.
async fn collect_a_batch(intake: &SqlIntake, state: &mut PassState) {
    let batch = Box::pin(async { while intake.collect(state).await.is_err() {} });
    soon("a batch is read", batch).await;
}

/// As if all pauses had passed, and no other row waited.
fn let_pauses_pass(state: &mut PassState) {
    (state.aside, state.has_more, state.reads_again_at) = (BTreeMap::new(), false, None);
    state.unread.values_mut().for_each(|unread| unread.until = Instant::now());
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
            collect_a_batch(&intake, &mut state).await;
            assert_eq!((test.live().await, refused(&test).await), (i64::from(tries), vec![]), "{sqlstate}");
            let_pauses_pass(&mut state);
        }
        intake.collect(&mut state).await.unwrap();
        assert_eq!(refused(&test).await, [unreadable], "{sqlstate}");
        assert!(state.unread.is_empty());
        let reason = "SELECT error FROM duetime.inbox WHERE error IS NOT NULL";
        let reason: String = sqlx::query_scalar(reason).fetch_one(&test.pool).await.unwrap();
        assert!(reason.contains("cannot read"), "{reason}");
    }
}

/// They are more than a batch.
#[tokio::test]
async fn many_rows_that_cannot_be_read_keep_no_other_waiting_and_are_refused() {
    let (_counter, test, intake) = owner().await;
    spoil(&test, "58P01").await;
    let submit_many = "SELECT duetime.submit('orders', '13') FROM generate_series(1, 300)";
    sqlx::query(submit_many).execute(&test.pool).await.unwrap();
    submit(&test, 1).await;
    let mut state = PassState::default();
    collect_a_batch(&intake, &mut state).await;
    assert_eq!((test.live().await, state.unread.len()), (1, 300));
    let mut others = 1;
    let all_are_refused = Box::pin(async {
        while !state.unread.is_empty() {
            submit(&test, 1).await;
            others += 1;
            let_pauses_pass(&mut state);
            collect_a_batch(&intake, &mut state).await;
            assert_eq!(test.live().await, others, "each pass reads the rows behind them");
        }
    });
    soon("each of them is refused", all_are_refused).await;
    assert_eq!(refused(&test).await.len(), 300);
}

/// The server may be at fault.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_not_refused_while_no_other_is_read() {
    let (_counter, test, intake) = owner().await;
    spoil(&test, "XX001").await;
    submit(&test, 13).await;
    let mut state = PassState::default();
    for _ in 0..2 * UNREAD_TRIES {
        collect_a_batch(&intake, &mut state).await;
        assert_eq!((refused(&test).await, state.unread.len()), (vec![], 1));
        let_pauses_pass(&mut state);
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
    collect_a_batch(&intake, &mut state).await;
    replace(&test, 2).await;
    intake.collect(&mut state).await.unwrap();
    assert_eq!((test.live().await, state.unread.len()), (0, 1));
    mend(&test).await;
    let_pauses_pass(&mut state);
    intake.collect(&mut state).await.unwrap();
    let made = test.database.task_read(task).await.unwrap().expect("the first one made it");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"2".as_slice()), 1));
}
