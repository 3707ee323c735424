//! The memory of whole answers. An answer takes it until the last piece has gone out, because a client may open many
//! streams of HTTP/2 and no window for their answers. Streams such as exports are made piece by piece and take none.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use common::{access::Caller, wire::Problem};
use hyper::body::{Frame, SizeHint};

use super::{
    memory::{BodyMemory, Reservation, Shortage},
    refusal::Refusal,
};

/// An answer of up to this size takes no memory worth counting, compared with its request, and always passes.
const SMALL_ANSWER_BYTES: usize = 4 << 10;

/// `Retry-After` of a refusal, in seconds.
const AGAIN_AFTER_S: u32 = 1;

/// Refuses a request before its handler runs when the caller's answers leave no room for another.
pub(super) fn check(memory: &BodyMemory, caller: &Arc<str>) -> Result<(), Problem> {
    if memory.has_room(caller) { Ok(()) } else { Err(refused(Shortage::Caller)) }
}

/// The answer with the memory that it takes, or a refusal where there is none. The answer to a change always passes:
/// the change has happened.
pub(super) fn hold(memory: &Arc<BodyMemory>, caller: &Caller, may_refuse: bool, answer: Response) -> Response {
    let bytes = answer.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let Some(bytes) = bytes.filter(|bytes| *bytes > SMALL_ANSWER_BYTES) else { return answer };
    match Reservation::at_once(memory, Arc::clone(&caller.name), bytes, may_refuse) {
        Ok(held) => answer.map(|body| Body::new(HeldBody { body, held: Some(held) })),
        Err(shortage) => Refusal::from(refused(shortage)).into_response(),
    }
}

fn refused(shortage: Shortage) -> Problem {
    let problem = match shortage {
        Shortage::Caller => Problem::too_many(
            "the answers to the caller's other requests are too large together; read them, then send this one again",
        ),
        Shortage::Total => Problem::unavailable("too many large answers wait for their clients at the moment"),
    };
    problem.retry_after(AGAIN_AFTER_S)
}

/// The body of a whole answer. Its first frame takes the memory over.
struct HeldBody {
    body: Body,
    held: Option<Reservation>,
}

/// The bytes of an answer. All pieces that are cut from them share one allocation, so the last piece keeps its memory.
struct HeldBytes {
    bytes: Bytes,
    _held: Reservation,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            ended => return Poll::Ready(ended),
        };
        let held = self.held.take();
        Poll::Ready(Some(Ok(frame.map_data(|bytes| match held {
            Some(held) => Bytes::from_owner(HeldBytes { bytes, _held: held }),
            None => bytes,
        }))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
