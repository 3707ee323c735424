//! Reads of the queues with waiting tasks that run out of their time, as beside an old transaction.

use common::task::NewTask;

use super::*;
use crate::{
    loops::tests::LONG,
    store::{
        submit::Sending,
        tests::{changed, new_task},
    },
};

impl Loops {
    /// Has the database do this at each row that a read of the queues with waiting tasks passes, and in no other
    /// statement.
    async fn at_each_row_read(&self, this: &str) {
        let sql = format!(
            "CREATE FUNCTION public.passes() RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN
                 IF current_query() LIKE '%RECURSIVE hop%' THEN {this}; END IF;
                 RETURN true;
             END $$;
             ALTER TABLE duetime.task RENAME TO stored_task;
             CREATE VIEW duetime.task AS SELECT * FROM duetime.stored_task WHERE public.passes()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.test.pool).await.unwrap();
    }
}

/// One look after each read would start 5 tasks in 5 s.
#[tokio::test]
async fn a_read_that_runs_out_of_its_time_delays_no_queue() {
    const TASKS: usize = 200;
    let loops = Loops::new().await;
    loops.ruled(QueuePolicy { rate_per_second: Some(100.0), ..one_a_second(Placement::Single) }).await;
    let ids: BTreeSet<TaskId> = (0..TASKS).map(|_| fixture::fresh_id_of(ShardId::new(0))).collect();
    let limited = |id: &TaskId| changed(new_task(*id), |task| task.queue = QueueName::new(LIMITED));
    let tasks: Vec<NewTask> = ids.iter().map(limited).collect();
    loops.test.database.task_submit(&tasks, Sending::First).await.unwrap();
    sqlx::raw_sql("UPDATE duetime.task SET state = 'ready'").execute(&loops.test.pool).await.unwrap();
    loops.test.database.ping().await.unwrap();
    loops.at_each_row_read("PERFORM pg_sleep(6)").await;
    let (claims, mut dispatches) = loops.claims();
    claims.database.ready_queues.add([QueueName::new(LIMITED)], clock::instant());
    let stop = CancellationToken::new();
    spawn_child(loops.ready_starter(claims).run(stop.clone()));
    let started = tokio::time::timeout(LONG, ids_of(&mut dispatches, TASKS)).await;
    assert_eq!(started.expect("looks wait for no read"), ids);
    stop.cancel();
}

#[tokio::test]
async fn what_an_owner_before_left_is_started_although_each_read_runs_out_of_its_time() {
    let loops = Loops::new().await;
    let ids = loops.limited().await;
    loops.at_each_row_read("RAISE query_canceled").await;
    let (claims, mut dispatches) = loops.claims();
    let stop = CancellationToken::new();
    spawn_child(loops.ready_starter(claims).run(stop.clone()));
    assert_eq!(ids_of(&mut dispatches, 3).await, ids.into());
    stop.cancel();
}

#[tokio::test]
async fn one_read_is_under_way_at_a_time_and_shards_that_come_meanwhile_call_for_another() {
    let loops = Loops::new().await;
    let starter = loops.ready_starter(loops.claims().0);
    let now = clock::instant();
    let mut reads = Reads::new(now);
    for has_moved in [false, true] {
        starter.begin_read(&mut reads, now);
        if has_moved {
            reads.ask(now);
        }
        starter.begin_read(&mut reads, now);
        assert_eq!(reads.under_way.len(), 1);
        let (read, took) = reads.ended().await.expect("one is under way");
        starter.end_read(&mut reads, (Ok(read.unwrap()), took));
        assert_eq!(reads.next_at == Some(now), has_moved);
        reads.ask(now);
    }
}
