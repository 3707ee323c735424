//! How a node ends: why, and in which order.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Node;
use crate::loops::dispatch::publisher::longest_hold;

/// How long requests that have begun may take to finish.
const INTAKE_END: Duration = Duration::from_secs(8);

/// How long claimed tasks may take to be published, confirmed and settled. The next owner publishes the rest again.
const WORK_END: Duration = Duration::from_secs(15);

/// How long taking the registration back may take.
const CLUSTER_END: Duration = Duration::from_secs(5);

impl Node {
    /// Waits for the signal to stop, or for something that makes going on impossible.
    pub(super) async fn until_end(&mut self, shutdown: &CancellationToken) -> anyhow::Result<()> {
        loop {
            let broken = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(misfit) = self.misfits.recv() => return Err(misfit.into()),
                Some(newcomer) = self.newcomers.next() => {
                    self.join(newcomer);
                    continue;
                }
                Some(reading) = self.readings.recv() => {
                    self.reload(reading);
                    continue;
                }
                end = self.crews.intake.first_end() => end,
                end = self.crews.work.first_end() => end,
                end = self.crews.cluster.first_end() => end,
            };
            anyhow::bail!(broken)
        }
    }

    /// In order: what comes in, what goes out, the registration, the broker.
    ///
    /// A node that `is_broken` has handed nothing over, and no other node claims from its shards before its lease is
    /// revoked. So it claims nothing more, and takes two thirds of the lease at most until then.
    pub(super) async fn stop(self, is_broken: bool) {
        let Self { mut shared, loops, mut crews, .. } = self;
        let (stop, broker) = (shared.stop.clone(), loops.broker.clone());
        let ttl = loops.coordination.lease_ttl();
        // After the hold, a message that is left would be published only once its row has been read again.
        let (intake_end, work_end) =
            if is_broken { (INTAKE_END.min(ttl / 6), longest_hold(ttl)) } else { (INTAKE_END, WORK_END) };
        // The publisher and the settlers end with the last way into them.
        drop(loops);
        stop.leaving.cancel();
        stop.intake.cancel();
        if is_broken {
            stop.work.cancel();
        }
        if !crews.intake.all_end(intake_end).await {
            tracing::warn!("unanswered requests were cut off");
        }
        // Dispatchers end, then the publisher has no more to come, then the settlers: each finishes what it was given.
        stop.work.cancel();
        if !crews.work.all_end(work_end).await {
            tracing::warn!("some claimed tasks could not be settled; the next owner publishes them again");
            stop.patience.cancel();
        }
        stop.cluster.cancel();
        broker.close().await;
        if !crews.cluster.all_end(CLUSTER_END).await {
            tracing::warn!("the registration was not deleted; its lease expires by itself");
        }
        tracing::info!(me = %shared.me, "stopped");
        let writer = shared.writer.take();
        // The last recorders go with the node's parts.
        drop(shared);
        if let Some(writer) = writer {
            writer.end().await;
        }
    }
}
