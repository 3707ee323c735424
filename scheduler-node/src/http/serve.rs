//! The listener: takes connections until told to stop, then lets the requests at hand finish.
//!
//! A connection has a place, of which there are only so many in all and for each address. It keeps the place while it makes
//! progress: a head, a body or an answer that stands still for too long ends it.

mod activity;
mod connection;
mod paced;
mod places;
#[cfg(test)]
mod tests;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(super) use self::paced::TooSlow;
pub use self::tls::{Certificate, CertificateFiles};
use self::{connection::Speaker, places::Places};
use super::ConnectionMetrics;
use crate::supervise::at_work;

/// Requests that take longer to finish once the node stops are cut off. What they had accepted is durable.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The pause after an `accept` that failed for want of memory or file descriptors; at once it would fail again.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// What clients may take of a node's connections and time.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections open at one time.
    pub all: usize,
    /// Of these, connections from one address.
    pub per_address: usize,
    /// A request's head is complete so soon after its first byte; so is the first head after the connection was opened.
    pub head_within: Duration,
    /// A connection stays open so long without a request. Longer than the 60 s for which load balancers keep theirs, so
    /// that the balancer closes first and never sends a request into a connection that the node is closing.
    pub idle_within: Duration,
    /// The client takes some part of an answer within this time.
    pub write_within: Duration,
    pub body: BodyPace,
}

/// How fast a request's body must arrive. Time counts only while the node waits for the client.
#[derive(Clone, Copy, Debug)]
pub struct BodyPace {
    /// Every body has this much time,
    pub grace: Duration,
    /// and a second more for each of these many bytes that have arrived.
    pub bytes_per_second: u64,
    /// No pause between two pieces is longer.
    pub pause: Duration,
}

impl ConnectionLimits {
    pub fn new(all: usize, per_address: usize) -> Self {
        Self {
            all,
            per_address,
            head_within: Duration::from_secs(10),
            idle_within: Duration::from_secs(75),
            write_within: Duration::from_secs(60),
            // 64 KiB/s is a slow mobile connection; the largest batch (64 MiB) may take 17 minutes.
            body: BodyPace {
                grace: Duration::from_secs(20),
                bytes_per_second: 64 << 10,
                pause: Duration::from_secs(10),
            },
        }
    }
}

/// Everything that a listener needs beside its router.
#[derive(Debug)]
pub struct Server {
    pub listener: TcpListener,
    pub limits: ConnectionLimits,
    pub metrics: ConnectionMetrics,
    /// `None`: clients speak in the clear.
    pub certificate: Option<Arc<Certificate>>,
}

impl Server {
    /// Serves until `stop` is cancelled and the requests at hand then are finished.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        self.serve_to_the_end(router, stop, FINISH_WITHIN).await;
    }

    async fn serve_to_the_end(self, router: Router, stop: CancellationToken, within: Duration) {
        let Self { listener, limits, metrics, certificate } = self;
        let connections = TaskTracker::new();
        let places = Arc::new(Places::new(limits.all, limits.per_address, metrics.clone()));
        let speaker = Arc::new(Speaker::new(router, limits, metrics, stop.clone()));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let _work = at_work();
            let Some((stream, from)) = accepted_or_pause(accepted).await else { continue };
            // Without a place the connection is closed here.
            let Some(place) = Places::take(&places, from.ip()) else { continue };
            let speaker = Arc::clone(&speaker);
            let acceptor = certificate.as_ref().map(|certificate| certificate.acceptor());
            connections.spawn(async move {
                match acceptor {
                    Some(acceptor) => speaker.speak_encrypted(acceptor, stream, from).await,
                    None => speaker.speak(stream, from).await,
                }
                drop(place);
            });
        }
        drop(listener);
        connections.close();
        if tokio::time::timeout(within, connections.wait()).await.is_err() {
            tracing::warn!("requests still unanswered at the stop were cut off");
        }
    }
}

async fn accepted_or_pause(accepted: io::Result<(TcpStream, SocketAddr)>) -> Option<(TcpStream, SocketAddr)> {
    match accepted {
        Ok((stream, from)) => {
            // Answers are small and complete: waiting to fill a packet would only make them late.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot switch off delayed sending");
            }
            Some((stream, from))
        }
        // The client has gone again before its connection was accepted.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
            ) =>
        {
            None
        }
        Err(error) => {
            tracing::error!(%error, "cannot accept connections; trying again");
            tokio::time::sleep(ACCEPT_AGAIN).await;
            None
        }
    }
}
