use common::{
    ids::QueueName,
    queue::{Queue, QueueBook, QueuePolicy, Settle},
};

use super::*;
use crate::loops::tests::{DELIVER, Loops, POISON, until};

#[tokio::test]
async fn a_task_that_another_transaction_holds_at_its_deadline_delays_no_other_and_ends_later() {
    for (settle, then) in [(Settle::Reject, "succeeded"), (Settle::Result, "scheduled")] {
        let loops = Loops::new().await;
        let policy = QueuePolicy { settle, ..QueuePolicy::default() };
        let queue = |name| Queue { policy: policy.clone(), ..Queue::with_defaults(QueueName::new(name)) };
        loops.counter.books.store(Arc::new(QueueBook::new(1, ["orders", POISON].map(queue))));
        let ids = loops.claimed().await;
        loops.settle(ids, DELIVER).await;
        let overdue = "UPDATE duetime.task SET wake_at = now() - interval '1 s'";
        sqlx::raw_sql(overdue).execute(&loops.test.pool).await.unwrap();
        let lock = loops.test.lock_row(ids[1]).await;

        let (_dispatches, stop) = loops.dispatch(WakeKind::Deadline, &ids);
        for id in [ids[0], ids[2]] {
            until(|| async { loops.test.state_of(id).await.as_deref() == Some(then) }).await;
        }
        assert_eq!(loops.test.state_of(ids[1]).await.as_deref(), Some("delivered"));
        lock.release().await;
        until(|| async { loops.test.state_of(ids[1]).await.as_deref() == Some(then) }).await;
        stop.cancel();
    }
}
