//! Speaks to etcd: who is alive, who leads, who should own what and who says he does.
//!
//! | key | value | lives as long as |
//! |---|---|---|
//! | `<prefix>/nodes/<name>` | [`Member`](common::cluster::Member) | its node's lease |
//! | `<prefix>/candidates/<lease>` | the node that queues up for master; the oldest key leads, its create revision is the term | its node's lease |
//! | `<prefix>/assignment` | [`AssignmentRecord`](common::cluster::AssignmentRecord), written under the master's term | for ever |
//! | `<prefix>/owners/<shard>` | [`OwnerRecord`](common::cluster::OwnerRecord): whoever creates it may take the fence | its owner's lease |
//! | `<prefix>/drained` | the starts of nodes that operators have drained; one that has ended drains nothing | for ever |
//!
//! All of it may be lost. Tasks, fences and epochs are the databases' business; without etcd every owner goes on, and what
//! is lost here is written again by those who are alive. So nothing here is a permission, and nothing here decides: the
//! pure decisions are in `common::cluster`, the loops act on them, and the fence has the last word.
//!
//! Every write is a transaction that may be repeated: it compares the revision it has seen, so that a copy that was held up
//! on its way finds the world changed and does nothing.

mod assignment;
mod candidates;
mod client;
mod drained;
mod error;
mod keys;
mod metrics;
mod mirror;
mod owners;
mod records;
mod session;
#[cfg(test)]
pub(crate) mod tests;

use std::{fmt, sync::Arc, time::Duration};

use secrecy::SecretString;

pub use assignment::Written;
pub use drained::Drained;
pub use error::{Error, EtcdOp};
pub use metrics::CoordinationMetrics;
pub use mirror::{Mirror, Views};
pub use owners::OwnerKey;
pub use session::{LeaseId, Registered, Renewal};

use client::Endpoints;
use keys::Keys;

/// Where etcd is and how to speak to it.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// `http://` or `https://` URLs, at least one.
    pub endpoints: Vec<String>,
    /// Begins every key; without a slash at its end.
    pub prefix: String,
    /// Silence after which a node counts as gone. Whole seconds.
    pub lease_ttl: Duration,
    pub user: Option<(String, SecretString)>,
    /// Only with `https://` endpoints. `None` there: the system's authorities, no client certificate.
    pub tls: Option<EtcdTls>,
}

/// PEM texts.
#[derive(Clone)]
pub struct EtcdTls {
    /// Who signed the servers' certificates. `None`: those the system trusts.
    pub ca: Option<Vec<u8>>,
    /// The client's own certificate and its key.
    pub identity: Option<(Vec<u8>, SecretString)>,
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca, identity } = self;
        f.debug_struct("EtcdTls").field("ca", &ca.is_some()).field("identity", &identity.is_some()).finish()
    }
}

/// The room's handle; clones share one set of connections.
#[derive(Clone, Debug)]
pub struct Coordination {
    endpoints: Arc<Endpoints>,
    keys: Arc<Keys>,
    lease_ttl: Duration,
    metrics: Arc<CoordinationMetrics>,
}

impl Coordination {
    /// Connects lazily: an etcd that is away does not keep the node from starting. Refuses what can never work, such as an
    /// endpoint that is no URL or a certificate that is no PEM.
    pub async fn new(settings: EtcdSettings, metrics: Arc<CoordinationMetrics>) -> Result<Self, Error> {
        let endpoints = Endpoints::new(&settings, Arc::clone(&metrics)).await?;
        Ok(Self {
            endpoints: Arc::new(endpoints),
            keys: Arc::new(Keys::new(&settings.prefix)),
            lease_ttl: settings.lease_ttl,
            metrics,
        })
    }

    pub fn lease_ttl(&self) -> Duration {
        self.lease_ttl
    }

    /// Whether the last request found no endpoint that answers.
    pub fn is_away(&self) -> bool {
        self.endpoints.is_away()
    }

    pub fn metrics(&self) -> &Arc<CoordinationMetrics> {
        &self.metrics
    }
}
