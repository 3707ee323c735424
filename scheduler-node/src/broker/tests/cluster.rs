//! A virtual host belongs to one cluster.

use common::{
    ids::ClusterId,
    wire::amqp::{CLUSTER, RESULTS},
};
use integration_tests::sandbox::{Rabbit, shared};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use uuid::Uuid;

use super::bench::{LONG, batch, route, server};
use crate::{
    broker::{AmqpSettings, Broker, BrokerMetrics, BrokerState, ClusterGate, Login},
    supervise::spawn_child,
};

/// A node's broker, and the sender of the cluster that its databases belong to.
fn open(url: &str) -> (Broker, JoinHandle<()>, watch::Sender<Option<ClusterId>>) {
    let (known, cluster) = watch::channel(None);
    let settings = AmqpSettings {
        login: Login::new(url.to_owned().into()),
        consume: true,
        delay_exchanges: Vec::new(),
        cluster: Some(ClusterGate { publishing: cluster.clone(), consuming: cluster }),
    };
    let metrics = BrokerMetrics::register(&prometheus::Registry::new()).unwrap();
    let (broker, keeper) = Broker::new(settings, metrics.into());
    (broker, spawn_child(keeper), known)
}

async fn until(broker: &Broker, wanted: impl Fn(&BrokerState) -> bool) -> BrokerState {
    let mut state = broker.state();
    let found = timeout(LONG, state.wait_for(|state| wanted(state))).await;
    found.unwrap_or_else(|_| panic!("the broker stays {:?}", broker.state().borrow())).unwrap().clone()
}

async fn queues(rabbit: &Rabbit, vhost: &str) -> String {
    rabbit.ctl(&["list_queues", "-q", "-p", vhost, "name"]).await.unwrap()
}

#[tokio::test]
async fn a_virtual_host_of_another_cluster_is_neither_read_nor_written() {
    let (_share, rabbit) = server().await;
    let vhost = shared::unique("cluster");
    let url = rabbit.add_vhost(&vhost).await.unwrap();
    let (ours, theirs) = (ClusterId::new(Uuid::from_u128(1)), ClusterId::new(Uuid::from_u128(2)));

    // Nothing is declared before the cluster is known.
    let (first, keeper, known) = open(&url);
    assert!(!queues(rabbit, &vhost).await.contains("duetime"));
    known.send_replace(Some(theirs));
    until(&first, |state| matches!(state, BrokerState::Up { .. })).await;
    assert!(queues(rabbit, &vhost).await.contains(CLUSTER));
    first.close().await;
    keeper.await.unwrap();

    // Another cluster, also after the first has stopped, and although its other queues are gone.
    rabbit.ctl(&["delete_queue", "-p", &vhost, RESULTS]).await.unwrap();
    let (second, keeper, known) = open(&url);
    known.send_replace(Some(ours));
    let is_refused =
        |state: &BrokerState| matches!(state, BrokerState::Down { reason, .. } if reason.contains("another cluster"));
    let BrokerState::Down { reason, .. } = until(&second, is_refused).await else { panic!("it is down") };
    for part in [&theirs.to_string(), &ours.to_string(), CLUSTER] {
        assert!(reason.contains(part), "`{part}` is not in: {reason}");
    }
    let published = second.publish(&route("mail"), batch("mail", 1)).await;
    assert!(format!("{published:?}").contains("another cluster"), "{published:?}");
    let there = queues(rabbit, &vhost).await;
    assert!(!there.contains(RESULTS) && !there.contains("mail"), "{there}");

    // Once a person has deleted the queue, it is free.
    rabbit.ctl(&["delete_queue", "-p", &vhost, CLUSTER]).await.unwrap();
    until(&second, |state| matches!(state, BrokerState::Up { .. })).await;
    second.close().await;
    keeper.await.unwrap();
    rabbit.retire_vhost(vhost);
}
