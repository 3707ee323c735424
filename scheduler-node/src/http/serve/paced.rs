//! The body of a request, which must arrive fast enough, and the body of an answer, which counts until it is sent.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::Sleep;

use super::{AnswerPace, BodyPace, activity::Answering};

/// A body that fails with [`TooSlow`] when it arrives more slowly than [`BodyPace`] requires.
#[derive(Debug)]
pub(super) struct PacedBody {
    body: Incoming,
    pace: BodyPace,
    received: u64,
    /// How long the node has waited for the client so far.
    waited: Duration,
    waiting: Option<ClientWait>,
}

#[derive(Debug)]
struct ClientWait {
    since: Instant,
    until: Pin<Box<Sleep>>,
}

/// The client sends its request's body too slowly.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body arrived too slowly")
    }
}

impl std::error::Error for TooSlow {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl PacedBody {
    pub(super) fn new(body: Incoming, pace: BodyPace) -> Self {
        Self { body, pace, received: 0, waited: Duration::ZERO, waiting: None }
    }

    /// How much longer the node waits for the next piece.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.received / self.pace.bytes_per_second.max(1));
        (self.pace.grace + earned).saturating_sub(self.waited).min(self.pace.pause)
    }
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some(waiting) = self.waiting.take() {
                    self.waited += waiting.since.elapsed();
                }
                if let Some(Ok(frame)) = &frame {
                    self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let patience = self.patience();
                let waiting = self.waiting.get_or_insert_with(|| ClientWait {
                    since: Instant::now(),
                    until: Box::pin(tokio::time::sleep(patience)),
                });
                ready!(waiting.until.as_mut().poll(cx));
                Poll::Ready(Some(Err(TooSlow.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The largest piece of an answer that is handed over at a time. For each HTTP/2 request, hyper takes one piece before
/// the client has opened a window for it. It asks for the next one when a window has opened, and keeps what the client
/// does not take.
const PIECE_BYTES: usize = 64 << 10;

/// The body of an answer. Its request counts as being answered until the body is dropped.
#[derive(Debug)]
pub(super) struct CountedBody<B> {
    body: B,
    /// What is left of the last frame.
    rest: Bytes,
    answering: Answering,
    pace: AnswerPace,
}

impl<B> CountedBody<B> {
    pub(super) fn new(body: B, answering: Answering, pace: AnswerPace) -> Self {
        answering.offer(pace.within(0));
        Self { body, rest: Bytes::new(), answering, pace }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            let Poll::Ready(Some(Ok(frame))) = polled else {
                self.answering.is_awaited();
                return polled;
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
            self.answering.offer(self.pace.within(self.rest.len() as u64));
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
