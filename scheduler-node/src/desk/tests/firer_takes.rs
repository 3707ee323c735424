//! Which decided fire times the firer takes on beside a database that answers and takes no tasks.

use std::time::Duration;

use common::ids::ShardId;

use super::{
    schedules::{firer, hourly, name},
    with_two_databases,
};
use crate::{coordination::tests::soon, store::tests::fixture};

/// A look takes a hundred on.
#[tokio::test]
async fn of_a_database_that_takes_no_tasks_a_few_fire_times_are_tried_until_it_does_and_those_of_others_are_made() {
    for is_full in [false, true] {
        let (counter, tests) = with_two_databases().await;
        counter.desk.schedule_put(name("s"), hourly("")).await.expect("put");
        let decide = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                      SELECT f.id, s.name, now() - f.place * interval '1 min', false, s.rules, s.payload,
                             now() - $2 * interval '1 s'
                        FROM duetime.schedule AS s, unnest($1::uuid[]) WITH ORDINALITY AS f (id, place)";
        for (count, shard, overdue_s) in [(300, 64, 60), (1, 0, 30)] {
            let ids: Vec<_> = (0..count).map(|_| fixture::fresh_id_of(ShardId::new(shard)).uuid()).collect();
            sqlx::query(decide).bind(ids).bind(overdue_s).execute(&tests[0].pool).await.unwrap();
        }
        let east = &counter.store.databases()[1];
        if is_full {
            tests[1].fill_disk("INSERT", "task").await;
        } else {
            east.pretend_unreplicated(Some("no standby"));
        }
        let (master, _) = firer(&counter, true);
        let look = async || {
            let pause = master.look().await.expect("it answers");
            drop(master.keep_from_making().await);
            pause
        };
        look().await;
        for _ in 0..5 {
            assert!(look().await > Duration::ZERO);
        }
        assert_eq!(tests[0].live().await, 1);
        // The statement above gave the others one moment, and takes give each its own.
        let untouched = "SELECT count(*) FROM duetime.fire WHERE wake_at = (SELECT min(wake_at) FROM duetime.fire)";
        let untouched: i64 = sqlx::query_scalar(untouched).fetch_one(&tests[0].pool).await.unwrap();
        assert!(untouched >= 150, "a hundred are taken, and ten in each further look at most: {untouched} are left");

        if is_full {
            sqlx::query("DROP TRIGGER fill_disk ON duetime.task").execute(&tests[1].pool).await.unwrap();
        } else {
            east.pretend_unreplicated(None);
        }
        let looking = async {
            while tests[1].live().await < 300 {
                look().await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        soon("they are made", looking).await;
    }
}
