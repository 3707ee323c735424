//! The realm that a database serves: which etcd coordinates the nodes that use it.

use std::time::Duration;

use common::{
    cluster::realm::Realms,
    ids::{ClusterId, RealmId},
};
use sqlx::Row;

use super::{Database, Error, StoreOp, claim::interval};

/// The age at which a running node refreshes the note of its realm. It looks a little less often.
const REFRESH_AFTER: Duration = Duration::from_secs(4);

/// The silence after which another realm may take over. It is several times the interval of the refreshes, so that no
/// short outage hands a database over, and short enough for a cluster whose etcd was replaced while no node ran.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// Why a node of another realm cannot use a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another cluster uses it: its nodes have another etcd or another `etcd.prefix` (realm {by}); give each cluster \
     databases of its own. It becomes free when the nodes of the other have been away for {} s",
    SILENT_AFTER.as_secs()
)]
pub struct InUse {
    pub by: RealmId,
}

impl Database {
    /// Lets statements through, or counts the database as away. The schema must have been found to fit.
    pub fn let_through(&self, fits: bool) {
        self.schema_fits.send_if_modified(|was| std::mem::replace(was, fits) != fits);
    }

    /// Makes the database serve the current one of `realms`, or goes on doing so, and returns the realm that it
    /// serves. `None`: there is none to serve, or another node is making the note at this moment.
    pub async fn realm_hold(&self, realms: &Realms) -> Result<Option<RealmId>, Error> {
        let Some(current) = realms.current() else { return Ok(None) };
        let former: Vec<uuid::Uuid> = realms.former().iter().map(|realm| realm.uuid()).collect();
        self.run(StoreOp::RealmHold, |pool| async move {
            let hold = sqlx::query(include_str!("queries/realm_hold.sql"))
                .bind(current.uuid())
                .bind(former)
                .bind(interval(REFRESH_AFTER))
                .bind(interval(SILENT_AFTER));
            let row = hold.fetch_optional(&pool).await?;
            row.map(|row| row.try_get("realm").map(RealmId::new)).transpose()
        })
        .await
    }

    /// The cluster to which the data belongs, also where this node uses none of the servers. `None`: no server has said
    /// so within `within`. Where servers differ, it is `wanted` if one of them says so.
    pub async fn cluster_ask(&self, wanted: Option<ClusterId>, within: Duration) -> Option<ClusterId> {
        tokio::time::timeout(within, self.writer.cluster(wanted)).await.ok().flatten()
    }

    /// The realm whose nodes use this database now.
    pub async fn realm_read(&self) -> Result<Option<RealmId>, Error> {
        self.run(StoreOp::RealmRead, |pool| async move {
            let read = sqlx::query(include_str!("queries/realm_read.sql")).bind(interval(SILENT_AFTER));
            let row = read.fetch_optional(&pool).await?;
            row.map(|row| row.try_get("realm").map(RealmId::new)).transpose()
        })
        .await
    }
}
