//! The listener: accepts connections until it is stopped, then lets the requests in flight finish.
//!
//! A connection takes a slot, of which there is a limited number in all and for each address. It keeps the slot
//! while it makes progress: a head, a body or an answer that stalls for too long ends the connection. An idle
//! connection gives its slot to a new one when no slot is free.

mod activity;
mod connection;
mod paced;
mod slots;
#[cfg(test)]
mod tests;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(super) use self::paced::TooSlow;
pub(crate) use self::tls::{Certificate, CertificateFiles};
use self::{connection::ConnectionHandler, slots::ConnectionSlots};
use super::ConnectionMetrics;
use crate::supervise::at_work;

/// Once the node stops, requests that take longer than this to finish are cut off. Everything they had accepted is
/// durable.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The pause after an `accept` that failed for lack of memory or file descriptors; an immediate retry would fail
/// again.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// A failed `accept` this long after the last one begins a new trouble, which is logged. Within one, each connection
/// that ends lets another one in.
const TROUBLE_OVER: Duration = Duration::from_secs(60);

/// Limits on clients' use of a node's connections and time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Most open connections.
    pub(crate) all: usize,
    /// Most open connections from one address; they count towards `all` too.
    pub(crate) per_address: usize,
    /// A request's head must be complete within this time after its first byte, and the first head after the
    /// connection opened.
    pub(crate) head_within: Duration,
    /// How long a connection may stay open without a request. It exceeds the 60 s of common load balancers, so that
    /// the balancer closes first. A balancer then never sends a request into a connection that the node is closing.
    pub(crate) idle_within: Duration,
    /// The client must take some part of what is written within this time.
    pub(crate) write_within: Duration,
    pub(crate) body: BodyPace,
    pub(crate) answer: AnswerPace,
}

/// How fast a request's body must arrive. Time counts only while the node waits for the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPace {
    /// Every body has this much time.
    pub(crate) grace: Duration,
    /// A body gets a second more for each of this many bytes that have arrived.
    pub(crate) bytes_per_second: u64,
    /// The longest pause between two pieces.
    pub(crate) pause: Duration,
}

/// How fast a client must take each piece of an answer that is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerPace {
    /// Every piece has this much time.
    pub(crate) grace: Duration,
    /// A piece gets a second more for each of this many bytes.
    pub(crate) bytes_per_second: u64,
}

impl AnswerPace {
    fn within(self, bytes: u64) -> Duration {
        self.grace + Duration::from_secs(bytes / self.bytes_per_second.max(1))
    }
}

impl ConnectionLimits {
    pub(crate) fn new(all: usize, per_address: usize) -> Self {
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
            // A piece is a whole answer, up to some megabytes, and shares the connection with 63 others.
            answer: AnswerPace { grace: Duration::from_secs(60), bytes_per_second: 64 << 10 },
        }
    }

    /// The limits of a connection that ends as soon as it has no request.
    fn without_idling(self) -> Self {
        Self { head_within: Duration::ZERO, idle_within: Duration::ZERO, ..self }
    }
}

/// Everything that a listener needs beside its router.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) limits: ConnectionLimits,
    pub(crate) metrics: ConnectionMetrics,
    /// `None`: plain HTTP.
    pub(crate) certificate: Option<Arc<Certificate>>,
}

impl Server {
    /// Serves until `stop` is cancelled and the requests in flight at that time are finished.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken) {
        self.serve_to_the_end(router, stop, FINISH_WITHIN).await;
    }

    async fn serve_to_the_end(self, router: Router, stop: CancellationToken, within: Duration) {
        let Self { listener, limits, metrics, certificate } = self;
        let connections = TaskTracker::new();
        let slots = Arc::new(ConnectionSlots::new(limits.all, limits.per_address, metrics.clone()));
        let handler = Arc::new(ConnectionHandler::new(router, limits, metrics, stop.clone()));
        let mut last_failed = None;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let _work = at_work();
            let Some((stream, from)) = accepted_or_pause(accepted, &mut last_failed).await else { continue };
            // Without a slot that is free or idle the connection is dropped here, which closes it.
            let Some(slot) = ConnectionSlots::take(&slots, from.ip()) else { continue };
            let handler = Arc::clone(&handler);
            let acceptor = certificate.as_ref().map(|certificate| certificate.acceptor());
            connections.spawn(async move {
                match acceptor {
                    Some(acceptor) => handler.handle_encrypted(acceptor, stream, from, slot).await,
                    None => handler.handle(stream, from, None, slot).await,
                }
            });
        }
        drop(listener);
        connections.close();
        if tokio::time::timeout(within, connections.wait()).await.is_err() {
            tracing::warn!("requests that were unanswered at the stop were cut off");
        }
    }
}

async fn accepted_or_pause(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    last_failed: &mut Option<Instant>,
) -> Option<(TcpStream, SocketAddr)> {
    match accepted {
        Ok((stream, from)) => {
            // Answers are small and complete: waiting to fill a packet would only delay them.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            Some((stream, from))
        }
        // The client closed the connection before it was accepted.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
            ) =>
        {
            None
        }
        Err(error) => {
            let now = Instant::now();
            if last_failed.replace(now).is_none_or(|last| now - last >= TROUBLE_OVER) {
                tracing::error!(%error, "cannot accept connections; retrying");
            } else {
                tracing::debug!(%error, "the next accept failed too; retrying");
            }
            tokio::time::sleep(ACCEPT_AGAIN).await;
            None
        }
    }
}
