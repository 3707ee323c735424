//! Takes shards that no longer move out of the write gate of their database.
//!
//! The gate costs each write of the shards that it guards. The end of a move takes them out, unless a transaction that
//! has written is in the way, or the node dies. So every node looks at the gate of a database some time after the last
//! move there, and after its own start. Where shards are left, it takes them out, and comes again until none is.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::ids::DatabaseIndex;
use tokio_util::sync::CancellationToken;

use super::{LOOK_EVERY, Shared};
use crate::{
    dice,
    store::{Error, Fault},
    supervise::at_work,
    working_set::database::NodeDatabase,
};

/// The shortest pause before a look at a gate, and half of the longest. The node that ends the move is done by then, as
/// a rule. A try to take shards out may hold up the writers of each table for 100 ms.
pub(super) const LOOK_AFTER: Duration = Duration::from_secs(60);

/// The databases, and when to look at the gate of each. `None`: no shard is left there, or the try was refused.
#[derive(Debug, Default)]
pub(super) struct Gates(BTreeMap<DatabaseIndex, Option<Instant>>);

impl Gates {
    pub(super) async fn run(mut self, shared: &Shared, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            self.round(shared, Instant::now(), stop).await;
        }
    }

    /// Looks at the gates whose time has come, until `stop`. While moves of a database are asked for, its gate is left
    /// alone.
    pub(super) async fn round(&mut self, shared: &Shared, now: Instant, stop: &CancellationToken) {
        for (index, database) in shared.databases.indexed() {
            // Each of the tables of a database may be waited for, for three seconds.
            if stop.is_cancelled() {
                return;
            }
            let after = Some(next_look(now));
            let is_moving = !shared.planned(database.name()).is_empty();
            let due = self.0.entry(index).or_insert(after);
            if is_moving {
                *due = after;
            } else if due.is_some_and(|due| due <= now) {
                let _work = at_work();
                *due = if take_out(database).await { None } else { after };
            }
        }
    }
}

/// All nodes see the end of a move in the same second. They look at different times, so the later ones find nothing
/// left to do, and no table is tried by all of them at once.
pub(super) fn next_look(now: Instant) -> Instant {
    now + LOOK_AFTER.mul_f64(1.0 + dice::roll())
}

/// Takes the shards that no longer move out of the gate of one database. Returns whether that is over: they are out, or
/// the database refuses it, as it would again.
async fn take_out(database: &NodeDatabase) -> bool {
    let taken_out = async {
        if database.sql.move_guard_left().await? {
            database.sql.move_guard(&[], true).await?;
        }
        Ok::<(), Error>(())
    };
    let Err(error) = taken_out.await else { return true };
    let is_refusal = matches!(error.fault(), Fault::Data | Fault::Bug);
    let (database, error) = (database.name(), &error as &dyn std::error::Error);
    if is_refusal {
        tracing::warn!(%database, error, "shards that no longer move stay in the write gate, which costs each write of theirs");
    } else {
        tracing::debug!(%database, error, "could not take shards that no longer move out of the write gate; trying again");
    }
    is_refusal
}
