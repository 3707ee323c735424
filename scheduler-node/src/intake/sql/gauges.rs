//! The gauges of an inbox: how many rows wait in it, and for how long.

use std::time::{Duration, Instant};

use super::SqlIntake;
use crate::{
    store::{Error, inbox::InboxStatus},
    supervise::at_work,
};

/// The gauges of the inbox are kept for this long without a new measurement: a few failures in a row, as while the
/// database changes its server, make no gap in them. Then they end: their numbers may not hold any more.
const GAUGES_KEPT: Duration = Duration::from_secs(15);

impl SqlIntake {
    /// Updates the gauges of the inbox. Ends them when it fails long after the last success, at `measured`.
    pub(super) async fn measure(&self, measured: &mut Instant) -> Result<(), Error> {
        let _work = at_work();
        let source = self.source();
        let name = source.name().as_str();
        let standing = match source.glance() {
            Some(glance) if glance.inbox_oldest.is_none() => Ok(InboxStatus { waiting: 0, oldest: Duration::ZERO }),
            _ => source.inbox_standing().await,
        };
        match standing {
            Ok(InboxStatus { waiting, oldest }) => {
                *measured = Instant::now();
                self.metrics.inbox_stands(name, waiting, oldest.as_secs_f64());
                Ok(())
            }
            Err(error) => {
                if measured.elapsed() >= GAUGES_KEPT {
                    self.metrics.end_inbox(name);
                }
                Err(error)
            }
        }
    }
}
