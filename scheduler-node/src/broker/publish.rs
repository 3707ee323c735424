//! Publishing, as the publisher loop sees the broker.

use tokio::sync::watch;

use super::{Broker, BrokerState, Outgoing, Published, Route};

/// Publishes batches. A node publishes through [`Broker`], whose methods have the contracts. The simulation publishes
/// through a broker that lies.
pub trait Publish: Send + Sync + 'static {
    fn state(&self) -> watch::Receiver<BrokerState>;

    /// A broker whose routes are always ready has nothing to do.
    fn prepare(&self, _route: &Route, _channels: usize) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Whether [`Self::prepare`] would do nothing.
    fn is_ready(&self, _route: &Route, _channels: usize) -> bool {
        true
    }

    fn publish(&self, route: &Route, batch: Vec<Outgoing>) -> impl Future<Output = Vec<Published>> + Send;
}

impl Publish for Broker {
    fn state(&self) -> watch::Receiver<BrokerState> {
        Broker::state(self)
    }

    async fn prepare(&self, route: &Route, channels: usize) {
        Broker::prepare(self, route, channels).await;
    }

    fn is_ready(&self, route: &Route, channels: usize) -> bool {
        Broker::is_ready(self, route, channels)
    }

    async fn publish(&self, route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        Broker::publish(self, route, batch).await
    }
}
