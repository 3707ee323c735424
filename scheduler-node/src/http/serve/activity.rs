//! What happens on one connection, and until when something has to.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ConnectionLimits;
use crate::http::metrics::Ended;

/// Shared by a connection's stream, by its requests and by the task that watches its deadline.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Requests that are being answered.
    requests: usize,
    /// When the connection was opened, or its last request ended, or the next one began to arrive.
    since: Instant,
    /// Part of a head has arrived, or the first one has yet to come.
    awaits_head: bool,
    /// HTTP/2 sends small frames between requests, which are not the beginning of a head.
    multiplexed: bool,
    /// Since when the client takes nothing of what is sent to it.
    stuck_since: Option<Instant>,
}

impl Activity {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(State {
            requests: 0,
            since: now,
            awaits_head: true,
            multiplexed: false,
            stuck_since: None,
        })))
    }

    /// Until when something has to happen, and what it means if it does not.
    pub(super) fn deadline(&self, limits: &ConnectionLimits) -> Option<(Instant, Ended)> {
        let state = self.0.lock();
        let waiting = match (state.requests, state.awaits_head) {
            (0, true) => Some((state.since + limits.head_within, Ended::Head)),
            (0, false) => Some((state.since + limits.idle_within, Ended::Idle)),
            _ => None,
        };
        let stuck = state.stuck_since.map(|since| (since + limits.write_within, Ended::Write));
        waiting.into_iter().chain(stuck).min_by_key(|(at, _)| *at)
    }

    /// A request's head is complete. It counts until what is returned is dropped.
    pub(super) fn begin(&self, multiplexed: bool) -> Answering {
        let mut state = self.0.lock();
        state.requests += 1;
        state.awaits_head = false;
        state.multiplexed = multiplexed;
        Answering(self.clone())
    }

    fn arrived(&self) {
        let mut state = self.0.lock();
        if state.requests == 0 && !state.awaits_head && !state.multiplexed {
            state.awaits_head = true;
            state.since = Instant::now();
        }
    }

    fn sent<T>(&self, sent: &Poll<T>) {
        let mut state = self.0.lock();
        match (sent, state.stuck_since) {
            (Poll::Ready(_), Some(_)) => state.stuck_since = None,
            (Poll::Pending, None) => state.stuck_since = Some(Instant::now()),
            _ => {}
        }
    }
}

/// A request that is being answered, until the last byte of the answer.
#[derive(Debug)]
pub(super) struct Answering(Activity);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.requests -= 1;
        state.since = Instant::now();
    }
}

/// A stream that tells when bytes arrive and when the other side takes none.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub(super) stream: S,
    pub(super) activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.activity.arrived();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.activity.sent(&sent);
        sent
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.activity.sent(&sent);
        sent
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_flush(cx);
        self.activity.sent(&sent);
        sent
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
