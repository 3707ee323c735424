//! What a handle on the broker and the keepers of its connections share.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use common::ids::ClusterId;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    ClusterGate,
    answers::Answer,
    connection::Link,
    consumer::Incoming,
    intake::ExchangeTroubles,
    login::Login,
    metrics::BrokerMetrics,
    publisher::Publisher,
    received::{DelayExchange, Received},
    routes::Refusals,
    state::{Board, Role},
    topology::Strangers,
};

pub(super) struct Shared {
    pub(super) login: Login,
    pub(super) board: Board,
    /// Present while the publishing connection is up.
    pub(super) publisher: ArcSwapOption<Publisher>,
    pub(super) answers: mpsc::Sender<Answer>,
    pub(super) incoming: mpsc::Sender<Incoming>,
    pub(super) untaken: Mutex<Option<mpsc::Receiver<Incoming>>>,
    /// Whether the node holds more messages of each queue than usual.
    pub(super) holds_more: watch::Sender<bool>,
    pub(super) received: mpsc::Sender<Received>,
    pub(super) unreceived: Mutex<Option<mpsc::Receiver<Received>>>,
    /// The delay exchanges to consume from. An open connection follows each change.
    pub(super) delay_exchanges: watch::Sender<Arc<[DelayExchange]>>,
    pub(super) cluster: Option<ClusterGate>,
    pub(super) exchange_troubles: ExchangeTroubles,
    pub(super) strangers: Arc<Strangers>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) confirm_within: Duration,
    pub(super) metrics: Arc<BrokerMetrics>,
    pub(super) stop: CancellationToken,
    pub(super) stopped: CancellationToken,
}

impl Shared {
    /// The cluster that the virtual host must belong to, once the connection may open. `None`: any cluster.
    pub(super) async fn cluster(&self, role: Role) -> Option<ClusterId> {
        let ClusterGate { publishing, consuming } = self.cluster.clone()?;
        let mut known = match role {
            Role::Publishing => publishing,
            Role::Consuming => consuming,
        };
        // The sender is gone when the node stops.
        known.wait_for(Option::is_some).await.ok().and_then(|cluster| *cluster)
    }

    pub(super) fn offer_publisher(&self, link: &Arc<Link>) {
        let publisher = Publisher::new(
            Arc::clone(link),
            Arc::clone(&self.strangers),
            Arc::clone(&self.refusals),
            self.confirm_within,
            Arc::clone(&self.metrics),
        );
        self.publisher.store(Some(Arc::new(publisher)));
    }
}
