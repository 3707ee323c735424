//! The way from a claim to the publisher, on a real database.

use common::time::UnixMicros;

use super::*;
use crate::{loops::tests::Loops, store::tests::fixture};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_task_that_is_claimed_ahead_waits_for_its_due_time() {
    let loops = Loops::new().await;
    let due_at: UnixMicros = fixture::now(&loops.test.pool).await.plus(HOUR);
    let ids = loops.three(|task| (task.due_now, task.due_at) = (false, due_at)).await;
    let database = loops.counter.databases.home().clone();
    let claim = database.sql.task_claim(&ids, &loops.fences, HOUR * 2, &BTreeSet::new(), i64::MAX).await.unwrap();
    let (claims, mut dispatches) = loops.claims();
    claims.hand_over(claim).await;
    let an_hour_later = Instant::now() + HOUR - Duration::from_secs(60);
    for _ in ids {
        let dispatch = dispatches.recv().await.expect("each claimed task goes to the publisher");
        assert!(dispatch.publish_at > an_hour_later, "the message would go out before its due time");
    }
}
