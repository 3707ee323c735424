//! The firer beside schedules that no node can decide: they are postponed, and keep none that is due later from firing.

use std::{sync::Arc, time::Duration};

use common::{
    ids::{DatabaseName, ShardId},
    time::UnixMicros,
};

use super::{
    Counter,
    schedules::{firer, firer_among, hourly, made, name, set_back},
    with_two_databases,
};
use crate::{
    coordination::tests::soon,
    loops::{
        submit::firer::Firer,
        upkeep::prober::{NodeFitness, Unfit},
    },
    metrics::Metrics,
    store::{
        submit::Sending,
        tests::{
            fixture::{self, TestDatabase},
            new_task,
        },
    },
};

/// The firer of a master that is cut off from `east`. It has looked for some seconds.
fn cut_off(counter: &Counter) -> (Firer, Arc<Metrics>) {
    let (master, metrics) = just_started(counter);
    master.has_looked();
    (master, metrics)
}

/// The same before its first look.
fn just_started(counter: &Counter) -> (Firer, Arc<Metrics>) {
    let away = (DatabaseName::new("east"), Unfit::away("cut off".to_owned()));
    firer_among(counter, true, NodeFitness { unfit: [away].into(), ..NodeFitness::default() })
}

/// `s` and so many more, due for an hour, all with a last task in `east`.
async fn with_last_tasks_in_east(more: i32) -> (Counter, [TestDatabase; 2]) {
    let (counter, tests) = with_two_databases().await;
    counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
    let others = "INSERT INTO duetime.schedule (name, rules, payload, since)
                  SELECT 's' || g, rules, payload, since FROM duetime.schedule, generate_series(1, $1) AS g";
    sqlx::query(others).bind(more).execute(&tests[0].pool).await.unwrap();
    let last = "UPDATE duetime.schedule SET last_task = $1";
    sqlx::query(last).bind(fixture::fresh_id_of(ShardId::new(64)).uuid()).execute(&tests[0].pool).await.unwrap();
    set_back(&tests[0], 1).await;
    (counter, tests)
}

/// How many schedules are due only after this moment. After one from before a look, a back-off that has ended counts
/// too.
async fn due_after(test: &TestDatabase, moment: UnixMicros) -> i64 {
    let later = "SELECT count(*) FROM duetime.schedule WHERE wake_at > $1";
    sqlx::query_scalar(later).bind(moment.to_utc()).fetch_one(&test.pool).await.unwrap()
}

/// Otherwise the next looks read past it, and past all that was deleted from the index since it came due.
#[tokio::test]
async fn what_no_node_has_decided_for_some_seconds_is_postponed_and_looks_begin_behind_it() {
    let (counter, tests) = with_last_tasks_in_east(1).await;
    let lately = "UPDATE duetime.schedule SET wake_at = clock_timestamp() - interval '1 s' WHERE name = 's1'";
    let first = async || {
        let first = "SELECT name, wake_at > now() - interval '1 min' FROM duetime.schedule ORDER BY wake_at LIMIT 1";
        sqlx::query_as::<_, (String, bool)>(first).fetch_one(&tests[0].pool).await.unwrap()
    };
    let (master, metrics) = cut_off(&counter);
    // After 4 s `s1` is overdue too. A look that ends later shows nothing, so another one is made.
    let look = async {
        loop {
            set_back(&tests[0], 1).await;
            let set_at = fixture::now(&tests[0].pool).await;
            sqlx::query(lately).execute(&tests[0].pool).await.unwrap();
            assert_eq!(first().await, ("s".to_owned(), false));
            master.has_looked();
            master.look().await.expect("it answers");
            if fixture::now(&tests[0].pool).await < set_at.plus(Duration::from_secs(4)) {
                break;
            }
        }
    };
    soon("a look that ends in time", look).await;
    assert_eq!(first().await, ("s1".to_owned(), true), "another node may still decide it");
    let glance = counter.store.home().look().await.expect("it answers");
    let now = fixture::now(&tests[0].pool).await;
    assert!(glance.schedule_wake_at.is_some_and(|first| first > now.minus(Duration::from_secs(60))));
    // A node that reaches the database decides both.
    let (other, of_other) = firer(&counter, false);
    let decides_both = async {
        while made(&of_other) < 2 {
            other.look().await.expect("it answers");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // What a node cannot read rests for a minute.
    tokio::time::timeout(Duration::from_secs(50), Box::pin(decides_both)).await.expect("they rest for a second");
    assert_eq!(made(&metrics), 0);
}

/// All nodes may have just started, or the first database come back. What another node decides is late enough then.
#[tokio::test]
async fn a_node_postpones_nothing_before_it_has_looked_for_some_seconds() {
    let (counter, tests) = with_last_tasks_in_east(1).await;
    let (master, _) = just_started(&counter);
    let began = fixture::now(&tests[0].pool).await;
    master.look().await.expect("it answers");
    assert_eq!(due_after(&tests[0], began).await, 0);
    master.has_looked();
    master.look().await.expect("it answers");
    assert_eq!(due_after(&tests[0], began).await, 2);
}

#[tokio::test]
async fn what_a_node_can_decide_again_it_decides_before_it_postpones() {
    let (counter, _tests) = with_last_tasks_in_east(0).await;
    let read = counter.store.home().schedule_read(&name("s")).await.unwrap().expect("there");
    let (master, metrics) = firer(&counter, true);
    master.note_undecided(read.revision);
    master.has_looked();
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 1);
}

/// Each node would wait for the other one, and write the same rows.
#[tokio::test]
async fn a_node_postpones_what_no_other_transaction_holds() {
    let (counter, tests) = with_last_tasks_in_east(2).await;
    let mut holder = tests[0].pool.acquire().await.unwrap();
    let hold = "BEGIN; SELECT FROM duetime.schedule WHERE name = 's1' FOR SHARE";
    sqlx::raw_sql(hold).execute(&mut *holder).await.unwrap();
    let began = fixture::now(&tests[0].pool).await;
    let (master, _) = cut_off(&counter);
    master.look().await.expect("it answers");
    assert_eq!(due_after(&tests[0], began).await, 2);
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
}

#[tokio::test]
async fn of_very_many_that_no_node_can_decide_a_bounded_number_is_written_and_for_longer() {
    let (counter, tests) = with_last_tasks_in_east(599).await;
    let began = fixture::now(&tests[0].pool).await;
    let (master, _) = cut_off(&counter);
    master.look().await.expect("it answers");
    let later = began.plus(Duration::from_secs(2));
    assert_eq!((due_after(&tests[0], later).await, due_after(&tests[0], began).await), (500, 500));
    // Otherwise they may be overdue again before the others are postponed.
    let out_of_the_way = "UPDATE duetime.schedule SET wake_at = wake_at + interval '1 h' WHERE wake_at > $1";
    sqlx::query(out_of_the_way).bind(began.to_utc()).execute(&tests[0].pool).await.unwrap();
    let the_others = async {
        while due_after(&tests[0], began).await <= 500 {
            master.look().await.expect("it answers");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon("the others are postponed", the_others).await;
    // The back-off of few ends within a second from now.
    let later = fixture::now(&tests[0].pool).await.plus(Duration::from_secs(1));
    assert_eq!(due_after(&tests[0], later).await, 500, "the others are few");
}

/// Three hundred schedules with unreadable last tasks in `east`, except for each fiftieth if `some_can_be_read`. Behind
/// them is one without a last task. A look reads a hundred.
async fn with_unreadable_last_tasks(some_can_be_read: bool) -> (Counter, [TestDatabase; 2]) {
    let (counter, tests) = with_last_tasks_in_east(300).await;
    let unreadable = fixture::fresh_id_of(ShardId::new(64));
    let east = &counter.store.databases()[1];
    east.task_submit(&[new_task(unreadable)], Sending::First).await.unwrap();
    sqlx::query(r#"UPDATE duetime.task SET retry = '"unreadable"'"#).execute(&tests[1].pool).await.unwrap();
    let last = "UPDATE duetime.schedule SET last_task = CASE WHEN name = 's' THEN NULL ELSE $1::uuid END
                 WHERE name = 's' OR NOT $2 OR nullif(substr(name, 2), '')::int % 50 <> 0";
    sqlx::query(last).bind(unreadable.uuid()).bind(some_can_be_read).execute(&tests[0].pool).await.unwrap();
    // In the order of their numbers.
    let order = "UPDATE duetime.schedule
                    SET wake_at = now() - interval '1 h' + coalesce(nullif(substr(name, 2), '')::int, 1000) * interval '1 s'";
    sqlx::query(order).execute(&tests[0].pool).await.unwrap();
    (counter, tests)
}

#[tokio::test]
async fn schedules_whose_last_tasks_cannot_be_read_keep_none_behind_them_from_firing() {
    let (counter, _tests) = with_unreadable_last_tasks(true).await;
    let (master, metrics) = firer(&counter, true);
    master.has_looked();
    let looking = async {
        // Six with a readable last task, and the one behind them.
        while made(&metrics) < 7 {
            master.look().await.expect("it answers");
            // Each back-off has ended, as after looks that take long.
            tokio::time::sleep(Duration::from_millis(1_050)).await;
        }
    };
    soon("looks get past the others", looking).await;
}

#[tokio::test]
async fn a_database_that_tells_nothing_of_the_last_tasks_of_a_look_is_not_asked_by_the_next_one() {
    let (counter, _tests) = with_unreadable_last_tasks(false).await;
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 0);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 1, "the one behind them");
}

/// As an interrupted move leaves a shard.
#[tokio::test]
async fn schedules_whose_last_tasks_are_in_a_closed_shard_take_no_place_in_a_look() {
    let (counter, tests) = with_last_tasks_in_east(150).await;
    let behind = "UPDATE duetime.schedule SET last_task = NULL, wake_at = now() - interval '1 min' WHERE name = 's'";
    sqlx::query(behind).execute(&tests[0].pool).await.unwrap();
    let close = "UPDATE duetime.shard SET status = 'gone', epoch = epoch + 1 WHERE id = 64";
    sqlx::query(close).execute(&tests[1].pool).await.unwrap();
    counter.store.places().refresh().await.expect("both answer");
    let (master, metrics) = firer(&counter, true);
    master.look().await.expect("it answers");
    assert_eq!(made(&metrics), 1);
}
