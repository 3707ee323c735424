//! Accepts the loss of commits for an operator, so that the nodes use a server that lacks them.

use std::{sync::Arc, time::Duration};

use common::{
    cluster::seen::Seen,
    wire::{AcceptedLoss, Problem},
};

use super::{Desk, run_to_end};
use crate::coordination::{Error, EtcdOp};

/// The most tries of a write that conflicts with the nodes' own records. Each node writes at most once a second.
const ROUNDS: usize = 8;

/// The longest wait for a server to say which cluster its data belongs to. One that is refused answers in milliseconds.
const CLUSTER_WITHIN: Duration = Duration::from_secs(2);

impl Desk {
    /// Lets the cluster use the server of a database that this node refuses. All nodes learn it within two seconds.
    pub(crate) async fn accept_loss(&self, name: &str, by: &str) -> Result<AcceptedLoss, Problem> {
        let database = Arc::clone(&self.parts().store.databases()[self.database_named(name)?]);
        let Some(loss) = database.loss() else {
            let detail = format!("this node refuses no server of database `{name}`, so there is no loss to accept");
            return Err(Problem::conflict(detail));
        };
        let (coordination, by) = (self.parts().coordination.clone(), by.to_owned());
        run_to_end(async move {
            // Under one prefix by mistake, two clusters would each take the other's server for one that lost commits.
            if let Some(cluster) = database.cluster_ask(None, CLUSTER_WITHIN).await
                && let Some(foreign) = coordination.realm_refusal(cluster).await?
            {
                return Err(Problem::conflict(foreign.to_string()));
            }
            for _ in 0..ROUNDS {
                let read = coordination.seen_read(database.name()).await?;
                let records = [read.seen.clone(), database.seen()];
                let before = records.iter().flatten().map(|seen| seen.losses_accepted).max().unwrap_or(0);
                let next = Seen::beginning(&loss.lineage, before + 1);
                if coordination.seen_write(database.name(), &read, &next).await?.is_some() {
                    database.learn(&next);
                    let (database, bytes) = (database.name(), loss.bytes);
                    tracing::warn!(%database, bytes, by, "the loss of commits was accepted; the server is used");
                    return Ok(AcceptedLoss::new(database, bytes, &loss.lineage, &next));
                }
            }
            Err(Error::Contended { op: EtcdOp::SeenWrite }.into())
        })
        .await
    }
}
