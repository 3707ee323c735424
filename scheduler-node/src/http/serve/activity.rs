//! The activity on one connection, and the deadline for more of it.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{ConnectionLimits, slots::ConnectionSlot};
use crate::http::metrics::MissedDeadline;

/// Shared by a connection's stream, its requests and the task that watches its deadline.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Requests that are being answered.
    requests: usize,
    /// When the connection opened, or its last request ended, or the next one began to arrive.
    since: Instant,
    /// Part of a head has arrived, or the first one has yet to come.
    awaits_head: bool,
    /// The connection speaks HTTP/2, whose small frames between requests are not the beginning of a head.
    multiplexed: bool,
    /// When the client stopped taking bytes, if it did.
    stuck_since: Option<Instant>,
    /// The answers whose next piece the client has to take, by the number of the request, each with the end of its
    /// time. In HTTP/2 a client that opens no window leaves nothing to write, so `stuck_since` does not show it.
    offered: BTreeMap<u64, Instant>,
    /// The number of the last request.
    last: u64,
    slot: ConnectionSlot,
}

impl State {
    /// Notes in the slot whether the connection is idle. One is not while bytes of an answer wait for the client.
    fn update_slot(&mut self) {
        self.slot.set_idle(self.requests == 0 && self.stuck_since.is_none());
    }
}

impl Activity {
    pub(super) fn new(now: Instant, slot: ConnectionSlot) -> Self {
        Self(Arc::new(Mutex::new(State {
            requests: 0,
            since: now,
            awaits_head: true,
            multiplexed: false,
            stuck_since: None,
            offered: BTreeMap::new(),
            last: 0,
            slot,
        })))
    }

    /// The next deadline, and what missing it means.
    pub(super) fn deadline(&self, limits: &ConnectionLimits) -> Option<(Instant, MissedDeadline)> {
        let state = self.0.lock();
        let waiting = match (state.requests, state.awaits_head) {
            _ if state.stuck_since.is_some() => None,
            (0, true) => Some((state.since + limits.head_within, MissedDeadline::Head)),
            (0, false) => Some((state.since + limits.idle_within, MissedDeadline::Idle)),
            _ => None,
        };
        let stuck = state.stuck_since.map(|since| (since + limits.write_within, MissedDeadline::Write));
        let offered = state.offered.values().min().map(|until| (*until, MissedDeadline::Write));
        waiting.into_iter().chain(stuck).chain(offered).min_by_key(|(at, _)| *at)
    }

    /// A request's head is complete. The request counts until the returned guard is dropped.
    pub(super) fn begin(&self, multiplexed: bool) -> Answering {
        let mut state = self.0.lock();
        state.requests += 1;
        state.awaits_head = false;
        state.multiplexed = multiplexed;
        state.last += 1;
        state.update_slot();
        Answering { activity: self.clone(), number: state.last }
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
            _ => return,
        }
        state.update_slot();
    }
}

/// A request that is being answered, until the last byte of the answer.
#[derive(Debug)]
pub(super) struct Answering {
    activity: Activity,
    number: u64,
}

impl Answering {
    /// A piece of the answer is ready: the client has to take it within this time.
    pub(super) fn offer(&self, within: Duration) {
        self.activity.0.lock().offered.insert(self.number, Instant::now() + within);
    }

    /// The client waits for the node.
    pub(super) fn is_awaited(&self) {
        self.activity.0.lock().offered.remove(&self.number);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.activity.0.lock();
        state.requests -= 1;
        state.offered.remove(&self.number);
        state.since = Instant::now();
        state.update_slot();
    }
}

/// A stream that notes when bytes arrive and when the other side takes none.
#[derive(Debug)]
pub(super) struct WatchedStream<S> {
    pub(super) stream: S,
    pub(super) activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.activity.arrived();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
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
