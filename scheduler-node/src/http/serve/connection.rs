//! One connection, from its first byte to its last.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::{Pin, pin},
    task::Poll,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::ConnectInfo, http::Version, response::Response};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{
    ConnectionLimits,
    activity::{Activity, WatchedStream},
    paced::{CountedBody, PacedBody},
    slots::ConnectionSlot,
};
use crate::http::{
    metrics::{ConnectionMetrics, MissedDeadline},
    places::WaitPlaces,
    reached::Encrypted,
};

/// Most requests of one HTTP/2 connection that are answered at one time.
const STREAMS: u32 = 64;
/// The largest head of a request in HTTP/2, as HPACK counts it. A token, a trace and a few proxies' headers take 4
/// KiB.
const HEAD_BYTES: u32 = 32 << 10;
/// The largest head of a request in HTTP/1, with the bytes read beyond it.
const READ_BYTES: usize = 64 << 10;
/// Streams that a client may open and reset before the node handles them; one more ends the connection. The value is
/// h2's own proposal against "rapid reset".
const RESETS_UNSEEN: usize = 20;
/// The pause between two looks at a connection whose request is under way and has no deadline.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Streams that the node may reset because of a client's mistakes; one more ends the connection.
const RESETS_OWN: usize = 128;
/// Bytes that an HTTP/2 client may send ahead of the reader, for each request and for each connection. No share of
/// memory counts them, and a stranger may leave a body half sent. Over a way of 100 ms a body still comes ten times as
/// fast as its pace asks for.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Bodies of one HTTP/2 connection that may wait for memory at one time. Each of them may have its window full of bytes
/// that are not read meanwhile. The window of one more stays open for all others of the connection.
const WAITING_BODIES: usize = (CONNECTION_WINDOW / STREAM_WINDOW - 1) as usize;
/// Bytes that may wait to be sent on each HTTP/2 stream.
const SEND_BYTES: usize = 64 << 10;

/// Speaks HTTP on connections.
#[derive(Debug)]
pub(super) struct ConnectionHandler {
    router: Router,
    builder: auto::Builder<TokioExecutor>,
    limits: ConnectionLimits,
    metrics: ConnectionMetrics,
    stop: CancellationToken,
}

impl ConnectionHandler {
    pub(super) fn new(
        router: Router,
        limits: ConnectionLimits,
        metrics: ConnectionMetrics,
        stop: CancellationToken,
    ) -> Self {
        Self { router, builder: builder(), limits, metrics, stop }
    }

    /// Like [`Self::handle`], after the TLS handshake, which has as much time as a head.
    pub(super) async fn handle_encrypted(
        &self,
        acceptor: TlsAcceptor,
        stream: TcpStream,
        from: SocketAddr,
        slot: ConnectionSlot,
    ) {
        let replaced = slot.replaced();
        let accepted = tokio::time::timeout(self.limits.head_within, acceptor.accept(stream));
        match replaced.run_until_cancelled(accepted).await {
            Some(Ok(Ok(stream))) => self.handle(stream, from, Some(Encrypted), slot).await,
            Some(Ok(Err(error))) => tracing::debug!(%error, %from, "TLS handshake failed"),
            Some(Err(_)) => self.metrics.ended(MissedDeadline::Head),
            None => {}
        }
    }

    /// Answers the requests of a connection until it ends, stalls, or another one takes its slot.
    pub(super) async fn handle<S>(
        &self,
        stream: S,
        from: SocketAddr,
        encrypted: Option<Encrypted>,
        slot: ConnectionSlot,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let replaced = slot.replaced();
        let activity = Activity::new(Instant::now(), slot);
        let places = WaitPlaces::of_connection(WAITING_BODIES);
        let service = service_fn(|request| self.answer(request, &activity, &places, from, encrypted));
        let io = TokioIo::new(WatchedStream { stream, activity: activity.clone() });
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let mut watch = DeadlineWatch::new(&activity, &self.limits);
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, %from, "connection ended with an error");
                }
                return;
            }
            ended = poll_fn(|cx| watch.poll(cx)) => {
                self.metrics.ended(ended);
                tracing::debug!(reason = ended.text(), %from, "connection closed because it stalled");
                return;
            }
            () = replaced.cancelled() => tracing::debug!(%from, "idle connection closed for a new one"),
            () = self.stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        // Once its slot is another's, the connection ends with the requests that came meanwhile.
        let limits = if replaced.is_cancelled() { self.limits.without_idling() } else { self.limits };
        let mut watch = DeadlineWatch::new(&activity, &limits);
        tokio::select! {
            biased;
            _ = connection => {}
            _ = poll_fn(|cx| watch.poll(cx)) => {}
        }
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        activity: &Activity,
        places: &WaitPlaces,
        from: SocketAddr,
        encrypted: Option<Encrypted>,
    ) -> impl Future<Output = Result<Response<CountedBody<Body>>, Infallible>> + Send + use<> {
        let multiplexed = request.version() == Version::HTTP_2;
        let answering = activity.begin(multiplexed);
        let (of_request, pace) = (self.limits.body, self.limits.answer);
        let mut request = request.map(|body| Body::new(PacedBody::new(body, of_request)));
        request.extensions_mut().insert(ConnectInfo(from));
        if multiplexed {
            request.extensions_mut().insert(places.clone());
        }
        if let Some(encrypted) = encrypted {
            request.extensions_mut().insert(encrypted);
        }
        let router = self.router.clone();
        async move {
            let response = router.oneshot(request).await?;
            Ok(response.map(|body| CountedBody::new(body, answering, pace)))
        }
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // This module watches the time for heads, for both protocols and from before the protocol is known.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(READ_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES)
        .max_pending_accept_reset_streams(RESETS_UNSEEN)
        .max_local_error_reset_streams(RESETS_OWN)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BYTES);
    builder
}

/// A future that is ready once a connection has stalled for too long.
struct DeadlineWatch<'a> {
    activity: &'a Activity,
    limits: &'a ConnectionLimits,
    armed: Pin<Box<Sleep>>,
}

impl<'a> DeadlineWatch<'a> {
    fn new(activity: &'a Activity, limits: &'a ConnectionLimits) -> Self {
        Self { activity, limits, armed: Box::pin(tokio::time::sleep(limits.head_within)) }
    }

    /// Polled after the connection itself, whose progress may have moved the deadline. The timer only moves forward,
    /// and when it fires the deadline is read again, so most requests cost it nothing.
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<MissedDeadline> {
        loop {
            let deadline = self.activity.deadline(self.limits);
            let at = deadline.map(|(at, _)| at.into());
            if at.is_some_and(|at| at < self.armed.deadline()) {
                self.armed.as_mut().reset(at.expect("looked up"));
            }
            if self.armed.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            match deadline {
                Some((at, ended)) if at <= now => return Poll::Ready(ended),
                Some((at, _)) => self.armed.as_mut().reset(at.into()),
                None => self.armed.as_mut().reset((now + LOOK_EVERY).into()),
            }
        }
    }
}
