//! The client of etcd: live nodes, the master, the assignment of shards, and the owners' own records.
//!
//! | key | value | lives as long as |
//! |---|---|---|
//! | `<prefix>/cluster` | [`RealmRecord`]: the cluster and realm that the prefix belongs to | for ever |
//! | `<prefix>/nodes/<name>` | [`Member`] | its node's lease |
//! | `<prefix>/candidates/<lease>` | a node that stands for master; the oldest key leads | its node's lease |
//! | `<prefix>/assignment` | [`AssignmentRecord`], written under the master's term | for ever |
//! | `<prefix>/owners/<shard>` | [`OwnerRecord`]: its creator may take the fence | its owner's lease |
//! | `<prefix>/databases/<name>/seen` | [`Seen`]: what the nodes have seen of the database's server | for ever |
//! | `<prefix>/drained` | the starts of nodes that operators have drained; an ended one drains nothing | for ever |
//!
//! The create revision of the master's candidate key is its term.
//!
//! All of it may be lost. Tasks, fences and epochs are in the databases. Without etcd every owner goes on, and
//! live nodes write lost keys again. So no key is a permission, and this room takes no decision: the pure
//! decisions are in `common::cluster`, the loops act on them, and the fence has the last word.
//!
//! Every write is a transaction that may be repeated. It compares the revision that it has read, so a delayed
//! copy finds a newer revision and does nothing.
//!
//! [`Member`]: common::cluster::Member
//! [`RealmRecord`]: common::cluster::realm::RealmRecord
//! [`AssignmentRecord`]: common::cluster::AssignmentRecord
//! [`OwnerRecord`]: common::cluster::OwnerRecord
//! [`Seen`]: common::cluster::seen::Seen

mod assignment;
mod candidates;
mod client;
mod drained;
mod error;
mod keys;
mod metrics;
mod mirror;
mod owners;
mod probe;
mod realm;
mod records;
mod revocation;
mod seen;
mod session;
#[cfg(test)]
pub(crate) mod tests;

use std::{fmt, sync::Arc, time::Duration};

use secrecy::SecretString;

pub use assignment::AssignmentWrite;
pub use error::{Error, EtcdOp};
pub use metrics::CoordinationMetrics;
pub use mirror::{Mirror, Views};
pub use owners::{KEYS_PER_TRANSACTION, OwnerKey};
pub use realm::ForeignPrefix;
pub use revocation::Revocation;
pub use seen::SeenRecord;
pub use session::{LeaseId, Registered, Renewal};

use client::Endpoints;
use keys::Keys;

/// The address of etcd, and the credentials.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// `http://` or `https://` URLs, at least one.
    pub endpoints: Vec<String>,
    /// The beginning of every key, without a slash at its end.
    pub prefix: String,
    /// The silence after which a node counts as gone. Whole seconds.
    pub lease_ttl: Duration,
    pub user: Option<(String, SecretString)>,
    /// Only with `https://` endpoints. `None` there: the system's authorities, no client certificate.
    pub tls: Option<EtcdTls>,
}

/// The PEM texts of an encrypted connection.
#[derive(Clone)]
pub struct EtcdTls {
    /// The authorities that signed the servers' certificates. `None`: those that the system trusts.
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

/// The handle of this room. Clones share one set of connections.
#[derive(Clone, Debug)]
pub struct Coordination {
    endpoints: Arc<Endpoints>,
    keys: Arc<Keys>,
    lease_ttl: Duration,
    metrics: Arc<CoordinationMetrics>,
}

impl Coordination {
    /// Connects lazily: an unreachable etcd does not keep the node from starting. Refuses settings that can
    /// never work, such as an endpoint that is no URL or a certificate that is no PEM.
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
