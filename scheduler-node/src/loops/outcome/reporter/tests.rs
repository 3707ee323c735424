use common::{
    ids::{Epoch, ShardId},
    shard::{ShardStatus, map::FenceRow},
    wire::amqp::RESULTS,
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    broker::tests::bench,
    loops::tests::{Loops, until},
    store::Places,
    supervise::spawn_child,
};

fn about(id: TaskId) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("duetime-attempt".into(), AMQPValue::LongInt(1));
    BasicProperties::default().with_correlation_id(id.to_string().into()).with_headers(headers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_waits_until_the_place_of_its_shard_is_known() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    let hand = bench.hand().await;
    let incoming = std::mem::replace(&mut bench.incoming, mpsc::channel(1).1);
    // A node that has just started: the cluster has 128 shards, and their database has not told which it has.
    let places = Places::new(std::iter::once(loops.database().sql.clone()).collect());
    places.learn_shard_count(128);
    let databases = NodeDatabases::new(vec![loops.database().clone()], places.clone());
    let (reporter, stop) = (Reporter { databases, ..loops.reporter() }, CancellationToken::new());
    spawn_child(reporter.add_line(stop.clone()));
    spawn_child(reporter.run(incoming, stop));

    let nowhere = TaskId::mint(uuid::Uuid::nil(), ShardId::new(128));
    for id in [ids[0], nowhere] {
        hand.publish(RESULTS, br#"{"status":"succeeded"}"#, about(id)).await;
    }
    until(|| async { !loops.test.quarantine().await.is_empty() }).await;
    assert_eq!(loops.test.quarantine().await.len(), 1, "only the report on a shard that does not exist");
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("dispatching"));

    let here = FenceRow { shard: ShardId::new(0), status: ShardStatus::Here, epoch: Epoch::NONE };
    places.tell(&[Some(vec![here])]);
    until(|| async { loops.test.state_of(ids[0]).await.as_deref() == Some("succeeded") }).await;
}
