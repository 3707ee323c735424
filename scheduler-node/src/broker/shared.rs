//! What a handle on the broker and the keepers of its connections share.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    connection::Link,
    consumer::Incoming,
    intake::ExchangeTroubles,
    login::Login,
    metrics::BrokerMetrics,
    publisher::Publisher,
    received::{DelayExchange, Received},
    state::Board,
    topology::Strangers,
};

pub(super) struct Shared {
    pub(super) login: Login,
    pub(super) board: Board,
    /// Present while the publishing connection is up.
    pub(super) publisher: ArcSwapOption<Publisher>,
    pub(super) incoming: mpsc::Sender<Incoming>,
    pub(super) untaken: Mutex<Option<mpsc::Receiver<Incoming>>>,
    pub(super) received: mpsc::Sender<Received>,
    pub(super) unreceived: Mutex<Option<mpsc::Receiver<Received>>>,
    pub(super) delay_exchanges: Arc<[DelayExchange]>,
    pub(super) exchange_troubles: ExchangeTroubles,
    pub(super) strangers: Arc<Strangers>,
    pub(super) confirm_within: Duration,
    pub(super) metrics: Arc<BrokerMetrics>,
    pub(super) stop: CancellationToken,
    pub(super) stopped: CancellationToken,
}

impl Shared {
    pub(super) fn offer_publisher(&self, link: &Arc<Link>) {
        let publisher = Publisher::new(
            Arc::clone(link),
            Arc::clone(&self.strangers),
            self.confirm_within,
            Arc::clone(&self.metrics),
        );
        self.publisher.store(Some(Arc::new(publisher)));
    }
}
