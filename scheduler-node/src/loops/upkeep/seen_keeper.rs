//! Remembers how far a database's server has acknowledged this cluster's commits, in this node and in etcd.
//!
//! After commits that a client or an outcome relies on, the loop commits a mark and notes its position. A server that
//! takes the place and lacks the mark has lost commits. It is not used until an operator has accepted the loss. etcd
//! keeps the highest position of all nodes, for nodes that start later. It is written every few seconds while all is
//! well, and at once when the server is in doubt.

use std::{sync::Arc, time::Duration};

use common::cluster::seen::Seen;
use tokio::time::Instant;
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

#[derive(Debug)]
pub struct SeenKeeper {
    database: Arc<Database>,
    coordination: Coordination,
    /// The record as it was at the last look.
    read: SeenRecord,
    /// Other nodes should learn soon what this one has seen.
    urgent: bool,
    /// The log says already that etcd refuses.
    refused: bool,
}

impl SeenKeeper {
    pub fn new(database: Arc<Database>, coordination: Coordination) -> Self {
        Self { database, coordination, read: SeenRecord::default(), urgent: true, refused: false }
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
        let read = self.coordination.seen_read(name).await?;
        if let Some(record) = &read.seen {
            self.database.learn(record);
        }
        self.database.learned();
        // Another node has written since the last look, so this one need not.
        let others_write = read.mod_revision != self.read.mod_revision;
        self.read = read;
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
    use super::*;
    use crate::{coordination::EtcdOp, desk::tests::nowhere, store::tests::fixture, working_set::failures::tests::Log};

    #[tokio::test]
    async fn refusals_of_etcd_have_one_line_in_the_log_until_it_takes_something() {
        let log = Log::keep();
        let mut keeper = SeenKeeper::new(fixture::unreachable_database("main"), nowhere());
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
