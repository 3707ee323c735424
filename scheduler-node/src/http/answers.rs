//! The memory of answers. An answer takes it until the last piece has gone out, because a client may open many streams
//! of HTTP/2 and no window for their answers. A whole answer takes its size; an export, which is made piece by piece,
//! takes the same however long it is.

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

/// The memory of an export: about 4 MiB that its client has not taken yet, and as much that is read after it.
const EXPORT_BYTES: usize = 8 << 20;

/// `Retry-After` of a refusal, in seconds.
const AGAIN_AFTER_S: u32 = 1;

/// Refuses a request before its handler runs when the caller's answers leave no room for another.
pub(super) fn check(memory: &BodyMemory, caller: &Arc<str>) -> Result<(), Problem> {
    if memory.has_room(caller) { Ok(()) } else { Err(refused(Shortage::Caller)) }
}

/// Reserves the memory that the answer takes until it has gone out, or refuses it where there is none. The answer to a
/// change always passes: the change has happened.
pub(super) fn reserve_answer(
    memory: &Arc<BodyMemory>,
    caller: &Caller,
    may_refuse: bool,
    answer: Response,
) -> Response {
    let bytes = answer.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let Some(bytes) = bytes.filter(|bytes| *bytes > SMALL_ANSWER_BYTES) else { return answer };
    match Reservation::at_once(memory, Arc::clone(&caller.name), bytes, may_refuse) {
        Ok(reserved) => reserved.until_sent(answer),
        Err(shortage) => Refusal::from(refused(shortage)).into_response(),
    }
}

/// Reserves the memory of an export, before anything is read for it.
pub(super) fn reserve_export(memory: &Arc<BodyMemory>, caller: &Caller) -> Result<Reservation, Problem> {
    match Reservation::at_once(memory, Arc::clone(&caller.name), EXPORT_BYTES, true) {
        Ok(reserved) if memory.has_room(&caller.name) => Ok(reserved),
        // One more export would take all that the caller has, and each other request would be refused until one ends.
        Ok(_) | Err(Shortage::Caller) => {
            let detail = "this caller has too many exports and large answers in progress on this node; wait until one \
                          has ended, or ask another node";
            Err(Problem::too_many(detail).retry_after(AGAIN_AFTER_S))
        }
        Err(shortage) => Err(refused(shortage)),
    }
}

impl Reservation {
    /// The answer, which keeps the memory until its last piece has gone out.
    pub(crate) fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| Body::new(ReservedBody { body, reserved: Arc::new(self) }))
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

/// The body of an answer. It shares the memory with its frames.
struct ReservedBody {
    body: Body,
    reserved: Arc<Reservation>,
}

/// The bytes of a frame. All pieces that are cut from them share one allocation, so the last piece keeps its memory.
struct ReservedBytes {
    bytes: Bytes,
    _reserved: Arc<Reservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for ReservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            ended => return Poll::Ready(ended),
        };
        let reserved = Arc::clone(&self.reserved);
        Poll::Ready(Some(Ok(frame.map_data(|bytes| Bytes::from_owner(ReservedBytes { bytes, _reserved: reserved })))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
