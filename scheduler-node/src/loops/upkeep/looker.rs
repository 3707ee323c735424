//! Glances at a database again and again, for all loops that follow something in it: the readers of copies, the firer,
//! the mover, the intake of SQL and the prober. If it stops, each of them reads for itself.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{store::Database, supervise::at_work};

/// The interval of the glances. Every node is to know a change of the queues or the tokens within half a second, and
/// after a second it must be in force everywhere.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Looks until `stop`. The prober says what is wrong with a database that does not answer.
pub async fn run(database: Arc<Database>, stop: CancellationToken) {
    loop {
        let work = at_work();
        if let Err(error) = database.look().await {
            tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "could not look at a database");
        }
        drop(work);
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}
