use std::collections::BTreeSet;

use common::{ids::QueueName, queue::Queue};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    super::{
        hand_over,
        tests::{dispatch, publisher},
    },
    *,
};
use crate::{
    broker::{BrokerState, Outgoing, Published, tests::bench::LONG},
    loops::tests::Loops,
    store::tests::fixture,
    supervise::spawn_child,
};

/// A broker that notes what it makes ready, and never answers a batch.
#[derive(Debug)]
struct Noting(mpsc::Sender<(String, usize)>);

impl Publish for Noting {
    fn state(&self) -> watch::Receiver<BrokerState> {
        watch::channel(BrokerState::Up { blocked: false }).1
    }

    fn is_ready(&self, _route: &Route, _channels: usize) -> bool {
        false
    }

    async fn prepare(&self, route: &Route, channels: usize) {
        self.0.send((route.routing_key.clone(), channels)).await.expect("the test listens");
    }

    async fn publish(&self, _route: &Route, _batch: Vec<Outgoing>) -> Vec<Published> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_new_lane_is_made_ready_once_and_before_its_first_message_is_due() {
    let loops = Loops::new().await;
    let queue = Queue::with_defaults(QueueName::new("orders"));
    let (noted, mut prepared) = mpsc::channel(10);
    let (claimed, dispatches) = mpsc::channel(10);
    let (now, later) = (Instant::now(), Instant::now() + 2 * LONG);
    let messages = [("orders", later), ("orders", later), ("due", now), ("mails", later)];
    hand_over(&claimed, messages.map(|(queue, at)| dispatch(queue, at))).await;
    let running = spawn_child(publisher(&loops, Noting(noted), &queue, LONG).run(dispatches));
    for name in ["orders", "mails"] {
        let one = timeout(LONG, prepared.recv()).await.expect("it is made ready before");
        assert_eq!(one, Some((name.to_owned(), 4 + 3)), "four batches of a burst, and one of each lane");
    }
    running.abort();
    let rest = timeout(LONG, prepared.recv()).await.expect("the publisher is gone");
    assert_eq!(rest, None, "no lane twice, and none whose message is due");
}

/// In the outbox they would wait for an instant that is wrong once the clock is corrected, and keep their shard from a
/// drain.
#[tokio::test]
async fn messages_that_a_clock_which_was_set_back_has_made_distant_are_left_to_a_rescue_at_their_due_time() {
    let loops = Loops::new().await;
    let queue = Queue::with_defaults(QueueName::new("orders"));
    // By the clock before they were due when they were claimed.
    let due_at = fixture::now(&loops.test.pool).await.plus(60 * LONG);
    let ids = loops.three(|task| (task.due_now, task.due_at) = (false, due_at)).await;
    let database = loops.database();
    let claim = database.sql.task_claim(&ids, &loops.fences, 120 * LONG, &BTreeSet::new(), i64::MAX).await.unwrap();
    database.owned_shards.begin(ids);
    let (claims, dispatches) = loops.claims();
    claims.hand_over(claim).await;
    drop(claims);
    let (noted, _prepared) = mpsc::channel(10);
    let running = publisher(&loops, Noting(noted), &queue, LONG).run(dispatches);
    timeout(LONG, running).await.expect("it does not wait for their due time");
    let owned_shards = &database.owned_shards;
    assert_eq!((owned_shards.in_flight(), owned_shards.heap_len()), (0, 3), "no drain waits for them");
    assert_eq!(owned_shards.next_due(), Some(due_at), "they leave once the clock shows it, however it comes there");
}
