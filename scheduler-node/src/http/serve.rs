//! The listener: takes connections until told to stop, then lets the requests at hand finish.

use std::{io, time::Duration};

use axum::{Router, serve::ListenerExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Requests that take longer to finish once the node stops are cut off. What they had accepted is durable.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Serves until `stop` is cancelled and what is being answered then is finished.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let listener = listener.tap_io(|connection| {
        // Answers are small and complete: waiting to fill a packet would only make them late.
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    });
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(FINISH_WITHIN).await;
    };
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        ended = served => ended,
        () = late => {
            tracing::warn!("requests still unanswered at the stop were cut off");
            Ok(())
        }
    }
}
