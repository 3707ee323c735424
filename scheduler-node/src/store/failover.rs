//! Follows the server of a database that takes writes, when another one becomes it.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Database,
    connect::ACQUIRE_DEADLINE,
    error::sqlstate,
    pools::Pools,
    trust::Doubts,
    writer::{Found, Look},
};

/// The pause between two looks of a statement that waits for a server to take writes.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The age at which pools may be replaced because their server is read-only. A primary may stay so for long, and
/// to connect anew for each statement would only add load.
const READ_ONLY_AGAIN: Duration = Duration::from_secs(1);

impl Database {
    /// The pools for the next statement. After a doubt it looks for the writer first, and waits as long as a
    /// statement waits for a connection. An error: there is none, and nothing was sent.
    pub(super) async fn trusted_pools(&self) -> Result<Arc<Pools>, sqlx::Error> {
        let pools = self.pools.load_full();
        if pools.are_trusted() { Ok(pools) } else { self.find_writer().await }
    }

    async fn find_writer(&self) -> Result<Arc<Pools>, sqlx::Error> {
        let deadline = Instant::now() + ACQUIRE_DEADLINE;
        let Ok(_turn) = timeout_at(deadline, self.writer.turn()).await else {
            return Err(sqlx::Error::PoolTimedOut);
        };
        loop {
            let pools = self.pools.load_full();
            if pools.are_trusted() {
                return Ok(pools);
            }
            if pools.ended().is_cancelled() {
                // A promotion, which a new connection showed.
                if self.replace(&pools, pools.server) {
                    self.clock.forget();
                }
                continue;
            }
            let doubts = pools.doubts();
            let mut look = self.writer.look(pools.server).await;
            match look.found.take() {
                Some(found) => {
                    self.follow(&pools, doubts, &found);
                    // New doubts may come during each look.
                    if !self.pools.load().are_trusted() && Instant::now() >= deadline {
                        return Err(sqlx::Error::PoolTimedOut);
                    }
                }
                // A server that is only full still serves the connections that it has.
                None if look.answered(pools.server) => return Ok(pools),
                None => {
                    self.writer.note_loss(&look);
                    if Instant::now() >= deadline {
                        return Err(self.writer.absence(look));
                    }
                    sleep(LOOK_AGAIN).await;
                }
            }
        }
    }

    /// Whether the URL names several servers, one of which takes writes.
    pub fn has_several_servers(&self) -> bool {
        self.writer.has_several_servers()
    }

    /// Looks at all servers, although the one in use seems well: a primary that was replaced may go on taking
    /// writes. Call this every few seconds.
    pub async fn look_out(&self) {
        let Some(_turn) = self.writer.free_turn() else { return };
        let pools = self.pools.load_full();
        let doubts = pools.doubts();
        let mut look = self.writer.look(pools.server).await;
        match look.found.take() {
            Some(found) if self.is_better(&pools, &look, &found) => self.follow(&pools, doubts, &found),
            None if look.lacks_commits() && !self.writer.has_several_servers() => pools.ended().cancel(),
            None if self.writer.has_several_servers() && look.failed(pools.server) => pools.doubt(),
            _ => {}
        }
    }

    /// Whether `found` is the server in use, or must take its place. A server that is merely slow keeps its place
    /// beside another one with the same history.
    fn is_better(&self, pools: &Pools, look: &Look, found: &Found) -> bool {
        found.server == pools.server
            || !pools.are_trusted()
            || look.failed(pools.server)
            || self.writer.known().is_newer(found.state.lineage.as_ref())
    }

    /// Uses the server that takes writes. Statements on another one end: whatever it answers is void. `doubts`: those
    /// about `pools` when the look began that found the server.
    fn follow(&self, pools: &Arc<Pools>, doubts: Doubts, found: &Found) {
        // Refused after all: other nodes have just said what they saw. The next look says why.
        let Ok(is_newer) = self.writer.known().admit(&found.state, self.has_several_servers()) else { return };
        if found.server == pools.server && !is_newer && !pools.ended().is_cancelled() {
            pools.trust(doubts);
            return;
        }
        if !self.replace(pools, found.server) {
            return;
        }
        let fresh = self.pools.load();
        fresh.trust(fresh.doubts());
        pools.ended().cancel();
        if is_newer || found.server != pools.server {
            // The clock of another server may be behind, and a reading of the old one would then run ahead.
            self.clock.forget();
            let (server, timeline) = (self.writer.name(found.server), self.writer.known().timeline());
            tracing::warn!(database = %self.name, server, timeline, "another server takes writes now; using it");
        }
    }

    /// Call this after a statement that got no answer. Replaces the pools, unless the server still works on such a
    /// statement: while each commit waits for a standby, new pools would fill the server with connections that wait.
    pub(super) async fn leave_if_silent(&self, pools: &Arc<Pools>) {
        let asked = Instant::now();
        let Ok(_turn) = timeout_at(asked + ACQUIRE_DEADLINE, self.writer.turn()).await else { return };
        if !Arc::ptr_eq(&self.pools.load(), pools) || pools.worked_since(asked.into_std()) {
            return;
        }
        match self.writer.work_under_way(pools.server).await {
            Some(waits_for) => {
                pools.note_work();
                self.doubt(pools);
                tracing::warn!(
                    database = %self.name, waits_for,
                    "the database does not end a statement of this node; waiting on the connections that there are"
                );
            }
            None if self.replace(pools, pools.server) => {
                tracing::warn!(database = %self.name, "the database has stopped answering; reconnecting");
            }
            None => {}
        }
    }

    /// Replaces all pools. Only the first caller replaces them.
    pub(super) fn replace(&self, old: &Arc<Pools>, server: usize) -> bool {
        let fresh = Arc::new(Pools::new(&self.writer, server));
        Arc::ptr_eq(&self.pools.compare_and_swap(old, fresh), old)
    }

    /// Draws the conclusions from a statement's error about the server.
    pub(super) fn notice(&self, pools: &Arc<Pools>, error: &sqlx::Error) {
        match sqlstate(error).as_deref() {
            // The server is read-only.
            Some("25006") if pools.age() >= READ_ONLY_AGAIN => {
                self.replace(pools, pools.server);
            }
            // It stops, has crashed, starts, or has lost the connection.
            Some(code) if code.starts_with("57P") || code.starts_with("08") => self.doubt(pools),
            Some(_) => {}
            None => match error {
                sqlx::Error::PoolTimedOut if pools.age_of_trust() < ACQUIRE_DEADLINE => {}
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::WorkerCrashed => self.doubt(pools),
                _ => {}
            },
        }
    }

    /// With one server there is nothing to look for.
    fn doubt(&self, pools: &Pools) {
        self.writer.known().doubt();
        if self.writer.has_several_servers() {
            pools.doubt();
        }
    }
}
