//! Remembers how far a database's server has acknowledged this cluster's commits, in this node and in etcd.
//!
//! After commits that a client or an outcome relies on, the loop commits a mark and notes its position. A server that
//! takes the place and lacks the mark has lost commits. It is not used until an operator has accepted the loss. etcd
//! keeps the highest position of all nodes, for nodes that start later. It is written every few seconds while all is
//! well, and at once when the server is in doubt. A record under a prefix of another cluster is passed over: that
//! cluster's servers are strangers to this one, and the other way round.

use std::{sync::Arc, time::Duration};

use common::{
    cluster::{realm::RealmRecord, seen::Seen},
    ids::ClusterId,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    coordination::{Coordination, Error, SeenRecord},
    store::Database,
    supervise::at_work,
};

/// The pause after a mark. A loss of commits younger than this may go unnoticed; a shorter pause costs more commits.
const MARK_PAUSE: Duration = Duration::from_millis(100);

/// The pause between two looks at etcd while all is well. Each write adds a revision to etcd.
const SHARE_EVERY: Duration = Duration::from_secs(10);

/// The pause while the server is in doubt or refused, and the shortest one.
const SHARE_AGAIN: Duration = Duration::from_secs(1);

/// The longest wait for a server to say which cluster its data belongs to. Where none says it, the record of the other
/// nodes counts, and the prober waits for that a little longer than this.
const CLUSTER_WITHIN: Duration = Duration::from_secs(1);

/// Whose the records under the prefix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// This cluster's.
    Ours,
    /// Another cluster's, or of no cluster yet: this node neither reads nor writes.
    Others,
    /// This node does not know its own cluster yet, and nothing shows that they are another's. It reads and does not
    /// write.
    Unproven,
}

#[derive(Debug)]
pub struct SeenKeeper {
    database: Arc<Database>,
    coordination: Coordination,
    /// The cluster of the databases, once one of them has answered.
    cluster: watch::Receiver<Option<ClusterId>>,
    /// The record as it was at the last look.
    read: SeenRecord,
    /// Other nodes should learn soon what this one has seen.
    urgent: bool,
    /// The log says already that etcd refuses.
    refused: bool,
}

impl SeenKeeper {
    pub fn new(
        database: Arc<Database>,
        coordination: Coordination,
        cluster: watch::Receiver<Option<ClusterId>>,
    ) -> Self {
        Self { database, coordination, cluster, read: SeenRecord::default(), urgent: true, refused: false }
    }

    pub async fn run(self, stop: CancellationToken) {
        let database = Arc::clone(&self.database);
        tokio::select! {
            () = mark_for_ever(&database) => {}
            () = self.share_for_ever() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn share_for_ever(mut self) {
        loop {
            let shared = {
                let _work = at_work();
                self.share().await
            };
            self.report(&shared);
            let soon = shared.is_err() || self.urgent || self.database.loss().is_some();
            let began = Instant::now();
            let pause = if soon { SHARE_AGAIN } else { SHARE_EVERY };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.database.history_changed() => {
                    self.urgent = true;
                    tokio::time::sleep_until(began + SHARE_AGAIN).await;
                }
            }
        }
    }

    /// The client says once that etcd does not answer. A refusal is an answer, so this keeper says it.
    fn report(&mut self, shared: &Result<(), Error>) {
        let Err(error) = shared else {
            self.refused = false;
            return;
        };
        let (database, cause) = (self.database.name(), error as &dyn std::error::Error);
        if error.is_news(&mut self.refused) {
            tracing::warn!(%database, error = cause, "etcd does not take what was seen of a database; retrying");
        } else {
            tracing::debug!(%database, error = cause, "cannot share what was seen of a database");
        }
    }

    /// Learns what the other nodes have seen, and adds what this one has.
    async fn share(&mut self) -> Result<(), Error> {
        let name = self.database.name();
        let (read, realm) = tokio::try_join!(self.coordination.seen_read(name), self.coordination.realm_read())?;
        let is_free = realm.is_none();
        let whose = self.whose(realm).await;
        if let Some(record) = read.seen.as_ref().filter(|_| whose != Whose::Others) {
            self.database.learn(record);
        }
        self.database.learned();
        // Another node has written since the last look, so this one need not.
        let others_write = read.mod_revision != self.read.mod_revision;
        self.read = read;
        if whose != Whose::Ours {
            // Under another cluster's prefix there is nothing to wait for.
            self.urgent = is_free || whose == Whose::Unproven;
            return Ok(());
        }
        let Some(next) = self.news() else {
            self.urgent = false;
            return Ok(());
        };
        if others_write && !self.urgent {
            return Ok(());
        }
        if let Some(revision) = self.coordination.seen_write(name, &self.read, &next).await? {
            self.read = SeenRecord { seen: Some(next), mod_revision: revision };
            self.urgent = false;
        }
        Ok(())
    }

    /// Whose the records are, by the record of the realm. A node that refuses the only server because of what it has
    /// learned never finds out its cluster by using it, so the server is asked.
    async fn whose(&self, realm: Option<RealmRecord>) -> Whose {
        let known = *self.cluster.borrow();
        match (known, realm) {
            (Some(ours), Some(realm)) if realm.cluster == ours => Whose::Ours,
            (Some(_), _) => Whose::Others,
            (None, None) => Whose::Unproven,
            (None, Some(realm)) => {
                let found = self.database.cluster_ask(Some(realm.cluster), CLUSTER_WITHIN).await;
                if found.is_none_or(|found| found == realm.cluster) {
                    return Whose::Unproven;
                }
                // The server may have been silent at the first looks, and the record was learned then.
                self.database.unlearn();
                Whose::Others
            }
        }
    }

    /// The record with what only this node has seen. `None`: there is nothing to add.
    fn news(&self) -> Option<Seen> {
        let own = self.database.seen()?;
        let Some(record) = &self.read.seen else { return Some(own) };
        let mut next = record.clone();
        next.add(&own).then_some(next)
    }
}

async fn mark_for_ever(database: &Database) {
    loop {
        database.wrote().await;
        mark(database).await;
        tokio::time::sleep(MARK_PAUSE).await;
    }
}

/// A mark that fails says nothing that the prober does not say.
async fn mark(database: &Database) {
    let _work = at_work();
    if let Err(error) = database.mark_position().await {
        tracing::debug!(error = &error as &dyn std::error::Error, "cannot mark the position of a database");
    }
}

#[cfg(test)]
mod tests {
    use common::{
        cluster::seen::{Lineage, Lsn},
        ids::RealmId,
    };
    use uuid::Uuid;

    use super::*;
    use crate::{
        coordination::{
            EtcdOp,
            tests::{SOON, coordination, shared_etcd, soon},
        },
        desk::tests::nowhere,
        store::tests::fixture,
        working_set::failures::tests::Log,
    };

    #[tokio::test]
    async fn the_record_of_another_cluster_is_neither_followed_nor_changed() {
        let test = fixture::database().await;
        let (endpoints, prefix) = shared_etcd().await;
        let coordination = coordination(&endpoints, &prefix).await;
        let name = test.database.name();
        let stranger = Lineage { system: 8, timeline: 1, flushed: Lsn::new(1), left: None };
        let theirs = Seen::beginning(&stranger, 0);
        let realm = RealmRecord { cluster: ClusterId::new(Uuid::new_v4()), realm: RealmId::new(Uuid::new_v4()) };
        coordination.realm_keep(&realm).await.unwrap();
        coordination.seen_write(name, &SeenRecord::default(), &theirs).await.unwrap().unwrap();
        let ours = test.database.cluster_ask(None, SOON).await;
        assert!(ours.is_some(), "the database is migrated");
        // The server was silent when this node started.
        test.database.learn(&theirs);
        for cluster in [None, ours] {
            let known = watch::channel(cluster).1;
            let mut keeper = SeenKeeper::new(Arc::clone(&test.database), coordination.clone(), known);
            let used = async {
                loop {
                    keeper.share().await.unwrap();
                    if test.database.ping().await.is_ok() {
                        break;
                    }
                }
            };
            Box::pin(soon("the server is used", used)).await;
            assert_eq!(test.database.loss(), None);
            assert_eq!(coordination.seen_read(name).await.unwrap().seen.as_ref(), Some(&theirs));
        }
    }

    #[tokio::test]
    async fn refusals_of_etcd_have_one_line_in_the_log_until_it_takes_something() {
        let log = Log::keep();
        let mut keeper = SeenKeeper::new(fixture::unreachable_database("main"), nowhere(), watch::channel(None).1);
        let op = EtcdOp::SeenWrite;
        let lines = || log.count("etcd does not take what was seen of a database");
        keeper.report(&Err(Error::Unanswered { op, source: None }));
        assert_eq!(lines(), 0, "the client says it");
        for _ in 0..10 {
            keeper.report(&Err(Error::Contended { op }));
        }
        assert_eq!(lines(), 1);
        keeper.report(&Ok(()));
        keeper.report(&Err(Error::Contended { op }));
        assert_eq!(lines(), 2);
    }
}
