//! The way from a claim to the publisher, on a real database.

use common::time::UnixMicros;

use super::*;
use crate::{
    loops::tests::{LONG, Loops},
    store::{StoreOp, tests::fixture},
    working_set::failures::tests::Log,
};

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
    wait_an_hour(&mut dispatches).await;
}

#[tokio::test]
async fn a_task_that_was_claimed_ahead_of_a_failover_waits_for_its_due_time() {
    let loops = Loops::new().await;
    let due_at: UnixMicros = fixture::now(&loops.test.pool).await.plus(HOUR);
    let ids = loops.three(|task| (task.due_now, task.due_at) = (false, due_at)).await;
    let database = loops.counter.databases.home().clone();
    let claim = database.sql.task_claim(&ids, &loops.fences, HOUR * 2, &BTreeSet::new(), i64::MAX).await.unwrap();
    database.sql.clock().forget();
    let (claims, mut dispatches) = loops.claims();
    claims.hand_over(claim).await;
    wait_an_hour(&mut dispatches).await;
}

#[tokio::test]
async fn the_age_of_a_claim_counts_from_its_sending_and_its_due_time_from_its_answer() {
    let loops = Loops::new().await;
    let due_at: UnixMicros = fixture::now(&loops.test.pool).await.plus(HOUR);
    let ids = loops.three(|task| (task.due_now, task.due_at) = (false, due_at)).await;
    let database = loops.counter.databases.home().clone();
    let claim = database.sql.task_claim(&ids, &loops.fences, HOUR * 2, &BTreeSet::new(), i64::MAX).await.unwrap();
    // Without the clock, the time in the answer is all that tells the due instant.
    database.sql.clock().forget();
    let (claims, mut dispatches) = loops.claims();
    let waited = Duration::from_secs(120);
    let sent_at = claim.sent_at.checked_sub(waited).expect("this machine runs for longer");
    claims.hand_over(Claimed { sent_at, ..claim }).await;
    let dispatch = dispatches.recv().await.expect("each claimed task goes to the publisher");
    assert_eq!(dispatch.claimed_at, sent_at, "an answer that waited counts as fresh");
    assert!(dispatch.publish_at > sent_at + HOUR + waited / 2, "the message would go out before its due time");
}

#[tokio::test]
async fn after_payloads_that_came_too_late_to_be_sent_statements_have_half_as_many_tasks_as_came() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    let database = loops.counter.databases.home().clone();
    let (claims, _dispatches) = loops.claims();
    let claim = database.sql.task_claim(&ids, &loops.fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await.unwrap();
    let size_after = |deliveries: Vec<Delivery>, fifths: u32| {
        let ago = claims.longest_hold / 5 * fifths;
        let sent_at = claim.sent_at.checked_sub(ago).expect("this machine runs for longer");
        let (now, held_back, passed) = (claim.now, Vec::new(), Vec::new());
        let late = Claimed { sent_at, now, deliveries, held_back, passed, refused: false, turned: false };
        let mut size = PartSize::default();
        claims.note_end(&mut size, 500, 500, sent_at, Ok(&late));
        size.most(500)
    };
    let of = |bytes: usize, tasks: usize| {
        let mut delivery = claim.deliveries[0].clone();
        delivery.content.payload = vec![0; bytes];
        vec![delivery; tasks]
    };
    assert_eq!(size_after(of(100 << 10, 6), 0), 500);
    assert_eq!(size_after(of(100 << 10, 6), 4), 3);
    assert_eq!(size_after(of(100, 40), 4), 500, "a slow database has them sent in time");
    assert_eq!(size_after(of(100, 40), 5), 20);
    assert_eq!(size_after(of(100, 3), 5), 500, "so few would come as late if they were fewer");
    assert_eq!(size_after(Vec::new(), 5), 500, "no payload made it late");
}

#[tokio::test]
async fn while_an_outage_lasts_the_log_has_one_warning_of_tasks_that_are_looked_at_again() {
    let log = Log::keep();
    let loops = Loops::new().await;
    let (database, op) = (loops.counter.databases.home().name().clone(), StoreOp::TaskClaim);
    let away = Error { database, op, effect: Effect::Unknown, source: None };
    let (claims, _dispatches) = loops.claims();
    for _ in 0..10 {
        claims.failed(WakeKind::Claim, &[], Duration::ZERO, &away);
    }
    assert_eq!(log.count("claim outcome unknown"), 10);
    assert_eq!(log.count("WARN scheduler_node::loops::dispatch::claims"), 1);
}

async fn wait_an_hour(dispatches: &mut mpsc::Receiver<Dispatch>) {
    let an_hour_later = Instant::now() + HOUR - Duration::from_secs(60);
    for _ in 0..3 {
        let dispatch = tokio::time::timeout(LONG, dispatches.recv()).await.expect("in time");
        let dispatch = dispatch.expect("each claimed task goes to the publisher");
        assert!(dispatch.publish_at > an_hour_later, "the message would go out before its due time");
    }
}

/// Clearly less than the look-again time of a claimed row, and far more than a rescue takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

async fn published(dispatches: &mut mpsc::Receiver<Dispatch>) -> BTreeSet<TaskId> {
    let published = async {
        let mut ids = BTreeSet::new();
        while ids.len() < 3 {
            let dispatch = dispatches.recv().await.expect("the dispatcher runs");
            assert!(dispatch.delivery.redelivered, "it may be a copy");
            ids.insert(dispatch.delivery.id);
        }
        ids
    };
    tokio::time::timeout(SOON, published).await.expect("the look-again time of the rows is not waited for")
}

#[tokio::test]
async fn what_a_claim_takes_after_its_node_gave_up_on_it_is_rescued_soon() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    loops.test.database.ping().await.unwrap();
    let mut late = loops.test.pool.acquire().await.unwrap();
    let claim = "BEGIN; UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = (SELECT epoch FROM duetime.shard WHERE id = 0),
                        claimed_at = clock_timestamp(), wake_at = clock_timestamp() + interval '45 s'";
    sqlx::raw_sql(claim).execute(&mut *late).await.unwrap();
    // The rescue after the claim that was given up, and claims after it, find the tasks unclaimed and locked.
    let (mut dispatches, stop) = loops.dispatch(WakeKind::Rescue, &ids);
    let begun = Instant::now();
    while loops.metrics.passed_over.get() < 6 {
        assert!(begun.elapsed() < SOON, "the tasks are claimed again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sqlx::raw_sql("COMMIT").execute(&mut *late).await.unwrap();
    assert_eq!(published(&mut dispatches).await, BTreeSet::from(ids));
    stop.cancel();
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_to_a_failover_is_rescued_with_the_first_answer_of_the_new_server() {
    let loops = Loops::new().await;
    let ids = loops.three(|_| ()).await;
    let database = loops.counter.databases.home().clone();
    let (claims, _) = loops.claims();
    let claimed = database.sql.task_claim(&ids, &loops.fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await;
    assert_eq!(claimed.unwrap().deliveries.len(), 3);
    database.sql.clock().forget();
    let lost =
        Error { database: database.name().clone(), op: StoreOp::TaskClaim, effect: Effect::Unknown, source: None };
    claims.failed(WakeKind::Claim, &ids, Duration::ZERO, &lost);
    assert!(database.owned_shards.next_due().is_some(), "the tasks in doubt are forgotten");
    let (mut dispatches, stop) = loops.dispatch(WakeKind::Rescue, &[]);
    database.sql.ping().await.unwrap();
    assert_eq!(published(&mut dispatches).await, BTreeSet::from(ids));
    stop.cancel();
}
