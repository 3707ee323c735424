use common::ids::ShardId;
use tokio::sync::mpsc;

use super::*;
use crate::{
    desk::tests::{fresh, with_two_databases},
    loops::tests::LONG,
    store::tests::fixture,
    supervise::spawn_child,
};

#[tokio::test]
async fn a_database_that_takes_no_nudge_delays_those_of_no_other() {
    let (counter, _tests) = with_two_databases().await;
    let nudger = Nudger::new(counter.databases.clone(), Duration::from_secs(10));
    let [main, east] = [0, 64].map(|shard| fixture::fresh_id_of(ShardId::new(shard)));
    let (told, mut tells) = mpsc::channel(10);
    let tell = move |database: NodeDatabase, nudge: Nudge| {
        let told = told.clone();
        async move {
            let rows: Vec<TaskId> = nudge.rows.iter().map(|(id, _)| *id).collect();
            told.send(rows).await.expect("the test listens");
            if database.name().as_str() == "main" {
                std::future::pending().await
            }
        }
    };
    let running = spawn_child(nudger.clone().send(tell, CancellationToken::new()));
    for id in [main, east, east] {
        nudger.written(id, UnixMicros::FIRST);
        let rows = tokio::time::timeout(LONG, tells.recv()).await.expect("the other database is not waited for");
        assert_eq!(rows, Some(vec![id]));
    }
    running.abort();
}

#[tokio::test]
async fn rows_that_are_due_beyond_the_horizon_are_left_to_their_owners() {
    let (counter, _tests) = with_two_databases().await;
    let nudger = Nudger::new(counter.databases.clone(), Duration::from_secs(10));
    let [near, far] = [0, 0].map(|shard| fixture::fresh_id_of(ShardId::new(shard)));
    nudger.written_all([(far, UnixMicros::LAST), (near, UnixMicros::FIRST)]);
    let nudge = std::mem::take(&mut *counter.databases.home().nudge.lock());
    assert_eq!(nudge.rows.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [near]);
}

#[tokio::test]
async fn a_submission_in_sql_calls_for_a_look_at_its_inbox() {
    let (counter, test) = fresh().await;
    let inbox = Arc::clone(&counter.databases.home().inbox);
    let called = async || tokio::time::timeout(LONG, inbox.notified()).await;
    let (databases, stop) = (counter.databases.clone(), CancellationToken::new());
    let listening = spawn_child(listen(databases, DatabaseIndex::HOME, None, stop));
    called().await.expect("what came before is looked for");
    sqlx::query("SELECT duetime.submit('mail', '{}')").execute(&test.pool).await.unwrap();
    called().await.expect("the submission is heard");
    listening.abort();
}
