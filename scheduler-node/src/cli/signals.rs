//! SIGTERM and SIGINT: the first requests a graceful stop, the second exits at once. SIGHUP: the node reads its
//! configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::supervise;

/// Exit code of a node that received a second signal.
const STOPPED_HARD: i32 = 1;

/// Returns a token that the first signal cancels.
pub fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = stop.clone();
    supervise::spawn_child(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let signal = next().await;
        token.cancel();
        tracing::info!(signal, "stopping");
        let signal = next().await;
        tracing::warn!(signal, "stopping at once; the next owner publishes the tasks in flight again");
        std::process::exit(STOPPED_HARD);
    });
    Ok(stop)
}

/// The signals to read the configuration again.
pub fn reload_on_signal() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}
