//! SIGTERM and SIGINT: the first requests a graceful stop, the second exits at once. SIGHUP: the node reads its
//! configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{error::Error, output::complain};
use crate::supervise;

/// Exit code of a node or a relay that received a second signal.
pub(super) const STOPPED_HARD: i32 = 1;
/// Exit code of a command that received a second signal: the outcome of its requests is unknown.
const GAVE_UP: i32 = 3;

/// Returns a token that the first signal cancels.
pub fn stop_on_signal() -> std::io::Result<CancellationToken> {
    on_signals(
        |signal| tracing::info!(signal, "stopping"),
        |signal| {
            tracing::warn!(signal, "stopping at once; the next owner publishes the tasks in flight again");
            std::process::exit(STOPPED_HARD);
        },
    )
}

/// Returns two tokens for a relay: the first signal cancels one, the second the other.
pub(super) fn stop_and_cut_off_on_signals() -> Result<(CancellationToken, CancellationToken), Error> {
    let cut_off = CancellationToken::new();
    let second = cut_off.clone();
    let stop = on_signals(
        |signal| tracing::info!(signal, "stopping"),
        move |signal| {
            tracing::warn!(signal, "stopping at once; the tasks of calls under way are delivered again");
            second.cancel();
        },
    );
    Ok((stop.map_err(Error::Signals)?, cut_off))
}

/// Returns a token that the first signal cancels, for a command of many requests. It sends no more of them then, and
/// says how far it came.
pub(super) fn end_on_signal() -> Result<CancellationToken, Error> {
    let first =
        |_| complain("stopping after the requests that wait for their answers; a second signal ends it at once");
    on_signals(first, |_| std::process::exit(GAVE_UP)).map_err(Error::Signals)
}

/// Ends the process with this error. The runtime would wait for a read under way, which never ends if standard input is
/// a silent pipe.
pub(super) fn end_at_once(error: &Error) -> ! {
    complain(error.explained());
    std::process::exit(error.exit_code().into())
}

fn on_signals(
    first: impl FnOnce(&'static str) + Send + 'static,
    second: impl FnOnce(&'static str) + Send + 'static,
) -> std::io::Result<CancellationToken> {
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
        first(signal);
        second(next().await);
    });
    Ok(stop)
}

/// The signals to read the configuration again.
pub fn reload_on_signal() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}
