use common::{ids::Epoch, queue::Queue};
use prometheus::Registry;

use super::*;
use crate::{
    desk::tests::fresh,
    loops::nudger::Nudger,
    store::tests::fixture::{self, TestDatabase},
};

async fn replace(test: &TestDatabase, payload: i32) -> TaskId {
    let submit = "SELECT duetime.submit('orders', to_jsonb($1::int), now() + interval '1 hour', key => 'k',
                                        options => '{\"on_duplicate\": \"replace\"}')";
    TaskId::from_uuid(sqlx::query_scalar(submit).bind(payload).fetch_one(&test.pool).await.unwrap())
}

#[tokio::test]
async fn a_submission_waits_behind_an_earlier_one_of_its_key_that_is_held() {
    let (counter, test) = fresh().await;
    let database = &counter.databases.all()[0];
    database.owned_shards.adopt(&fixture::all_shards().iter().map(|id| (id, Epoch::from_store(1))).collect::<Vec<_>>());
    counter.books.store(Arc::new(QueueBook::new(1, [Queue::with_defaults(QueueName::new("orders"))])));
    let intake = SqlIntake {
        index: DatabaseIndex::HOME,
        databases: counter.databases.clone(),
        desk: counter.desk.clone(),
        books: Arc::clone(&counter.books),
        fitness: watch::channel(NodeFitness::default()).1,
        releaser: Releaser { nudger: Nudger::new(counter.databases.clone(), Duration::from_secs(10)) },
        metrics: Arc::new(Metrics::register(&Registry::new()).unwrap()),
    };
    let mut passed = Passed::default();
    let task = replace(&test, 0).await;
    intake.collect(&mut passed).await.unwrap();
    let lock = test.lock_row(task).await;
    let earlier = replace(&test, 1).await;
    intake.collect(&mut passed).await.unwrap();
    assert!(passed.aside.contains_key(&earlier), "its key is held");
    lock.release().await;
    replace(&test, 2).await;
    intake.collect(&mut passed).await.unwrap();
    // As if the pause of the earlier one had passed.
    passed.aside.clear();
    intake.collect(&mut passed).await.unwrap();
    let made = test.database.task_read(task).await.unwrap().expect("it is there");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"2".as_slice()), 1));
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.inbox").fetch_one(&test.pool).await.unwrap();
    assert_eq!(left, 0);
}

#[test]
fn an_inbox_is_looked_at_again_until_a_glance_is_as_new() {
    let mut pause = LOOK_AGAIN / 2;
    let mut looks = Vec::new();
    while pause < LOOK_EVERY {
        pause = Left::Nothing.next_look(pause);
        looks.push(pause.as_millis());
    }
    assert_eq!(looks, [40, 80, 160, 320, 500]);
    assert_eq!(Left::Fresh.next_look(LOOK_EVERY), LOOK_AGAIN);
}
