//! Bodies of requests. A body is read as a whole and up to a size, while it arrives fast enough ([`super::serve`])
//! and memory is available.

use std::{str::Utf8Error, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, Request},
    http::{HeaderMap, Version, header},
};
use common::{access::Caller, wire::Problem};
use futures::{StreamExt, stream};

use super::{
    Api, answers,
    memory::{BodyMemory, Reservation},
    places::WaitPlaces,
    refusal::Refusal,
    serve::TooSlow,
};

/// The first bytes reserve this much memory. More is reserved only as it arrives, whatever size the client announces.
const FIRST_RESERVED_BYTES: usize = 1 << 20;
/// This much of a refused body is still read, so that the client sees the answer and not a broken connection.
pub(super) const DRAIN_BYTES: usize = 16 << 20;
/// The same for a client without a valid token, a quarter of it: most requests with a token that has expired fit.
pub(crate) const STRANGERS_DRAIN_BYTES: usize = 4 << 20;
const DRAIN_WITHIN: Duration = Duration::from_secs(3);

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A request's body of which nothing has been read yet.
#[derive(Debug)]
pub(crate) struct UnreadBody {
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    pub(super) memory: Arc<BodyMemory>,
    /// The memory of the answers, of which the caller's may leave room for one more. `None`: the sender is a stranger,
    /// whose answers are small.
    pub(super) answers: Option<Arc<BodyMemory>>,
    pub(super) caller: Arc<str>,
    /// Where it may wait for memory.
    pub(super) places: WaitPlaces,
}

impl FromRequest<Api> for UnreadBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        let caller =
            request.extensions().get::<Caller>().map_or_else(|| Caller::ANONYMOUS.into(), |it| it.name.clone());
        let (parts, body) = request.into_parts();
        Ok(api.shares.body(parts, body, caller))
    }
}

impl UnreadBody {
    /// Waits for the first byte, which the body keeps. `None`: it ended without one. The headers of a chunked body do
    /// not say that it is empty.
    pub(super) async fn not_empty(self) -> Option<Self> {
        let mut arriving = self.body.into_data_stream();
        loop {
            let first = arriving.next().await?;
            if !first.as_ref().is_ok_and(Bytes::is_empty) {
                let body = Body::from_stream(stream::iter([first]).chain(arriving));
                return Some(Self { body, ..self });
            }
        }
    }

    /// Reads the body as text. `Content-Type` must be JSON, or absent.
    pub(super) async fn text(self, limit_bytes: usize) -> Result<BodyText, Problem> {
        self.read(JSON, limit_bytes).await
    }

    /// Reads the body as the form of a browser, in its encoding. `Content-Type` must say so, or be absent.
    pub(crate) async fn form(self, limit_bytes: usize) -> Result<BodyText, Problem> {
        self.read(FORM, limit_bytes).await
    }

    async fn read(self, content_type: &str, limit_bytes: usize) -> Result<BodyText, Problem> {
        let announced = announced_bytes(&self.headers);
        let drained = if self.answers.is_some() { DRAIN_BYTES } else { STRANGERS_DRAIN_BYTES };
        let fits = announced.is_none_or(|announced| announced <= limit_bytes);
        let checked = check_type(&self.headers, content_type);
        if let Err(problem) = checked.and_then(|()| if fits { Ok(()) } else { Err(too_large(limit_bytes)) }) {
            drain_refused(&self.headers, self.body, drained).await;
            return Err(problem);
        }
        let reserved = Reservation::none(&self.memory, Arc::clone(&self.caller));
        let announced = announced.unwrap_or(0);
        let (bytes, reserved) = collect(self.body, announced, limit_bytes, reserved, &self.places, drained).await?;
        // Many requests may have begun while there was room, and wait with the last byte of their bodies.
        self.answers.map_or(Ok(()), |answers| answers::check(&answers, &self.caller))?;
        let text = String::from_utf8(bytes).map_err(|error| not_text(error.utf8_error()))?;
        Ok(BodyText { text, reserved })
    }
}

/// A body in UTF-8, with the memory that it has reserved.
#[derive(Debug)]
pub(crate) struct BodyText {
    text: String,
    reserved: Reservation,
}

impl BodyText {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The body; an empty one reads as an empty object, for requests whose fields are all optional.
    pub(super) fn or_empty_object(&self) -> &str {
        if self.text.trim_ascii().is_empty() { "{}" } else { &self.text }
    }

    /// The text, and the reservation for it and for what is parsed from it.
    pub(super) fn into_parts(self) -> (String, Reservation) {
        (self.text, self.reserved)
    }

    /// Keeps only the reservation, for the values that were parsed from the body and take as much memory.
    pub(crate) fn into_reserved(self) -> Reservation {
        self.reserved
    }
}

fn not_text(error: Utf8Error) -> Problem {
    Problem::malformed(format!("the body is not UTF-8 after byte {}", error.valid_up_to()))
}

/// `drained`: how much of a refused body is still read.
async fn collect(
    body: Body,
    announced: usize,
    limit_bytes: usize,
    mut reserved: Reservation,
    places: &WaitPlaces,
    drained: usize,
) -> Result<(Vec<u8>, Reservation), Problem> {
    let (mut bytes, unbounded) = (Vec::new(), WaitPlaces::default());
    let mut arriving = body.into_data_stream();
    while let Some(chunk) = arriving.next().await {
        let chunk = chunk.map_err(|error| broken_off(&error))?;
        let needed = bytes.len() + chunk.len();
        if needed > limit_bytes {
            drop((bytes, reserved));
            drain(arriving, drained).await;
            return Err(too_large(limit_bytes));
        }
        if needed > bytes.capacity() {
            // The buffer doubles as bytes arrive, or grows to the announced size if that is less than double.
            let wanted = needed.max(bytes.capacity() * 2).max(announced.min(FIRST_RESERVED_BYTES)).min(limit_bytes);
            let wanted = if (needed..wanted).contains(&announced) { announced } else { wanted };
            // One that has arrived as a whole leaves nothing unread while it waits.
            let places = if needed == announced { &unbounded } else { places };
            if let Err(problem) = reserved.grow_while_arriving(wanted, places).await {
                drop((chunk, bytes, reserved));
                drain(arriving, drained).await;
                return Err(problem);
            }
            bytes.reserve_exact(wanted - bytes.len());
        }
        bytes.extend_from_slice(&chunk);
    }
    reserved.shrink_to(bytes.capacity());
    Ok((bytes, reserved))
}

fn broken_off(error: &axum::Error) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<TooSlow>() {
            return Problem::request_timeout("the body arrived too slowly; nothing was accepted");
        }
        cause = error.source();
    }
    Problem::malformed(format!("the body ended early: {error}"))
}

/// Reads and drops up to `most` bytes of a request that is refused before its handler runs. A stream of HTTP/2 ends
/// without harm; a connection of HTTP/1.1 that ends with unread bytes is reset, and the answer may be lost.
pub(crate) async fn drain_request(request: Request, most: usize) {
    let (parts, body) = request.into_parts();
    if parts.version != Version::HTTP_2 {
        drain_refused(&parts.headers, body, most).await;
    }
}

/// A client that expects `100 Continue` waits for a word before it sends the body, and a read would invite the body.
async fn drain_refused(headers: &HeaderMap, body: Body, most: usize) {
    if !headers.contains_key(header::EXPECT) {
        drain(body.into_data_stream(), most).await;
    }
}

async fn drain(mut arriving: impl futures::Stream<Item = Result<Bytes, axum::Error>> + Unpin, most: usize) {
    let mut left = most;
    let take = async {
        while let Some(Ok(chunk)) = arriving.next().await {
            let Some(still) = left.checked_sub(chunk.len()) else { break };
            left = still;
        }
    };
    // The answer is the same whether the rest was read or not.
    let _ = tokio::time::timeout(DRAIN_WITHIN, take).await;
}

fn announced_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_type(headers: &HeaderMap, expected: &str) -> Result<(), Problem> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Problem::unsupported_media_type("send the body uncompressed, without Content-Encoding"));
    }
    let Some(sent) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = sent.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(Problem::unsupported_media_type(format!("the body must be {expected}, not {essence:?}")))
}

fn too_large(limit_bytes: usize) -> Problem {
    Problem::payload_too_large(format!("the body has more than the {limit_bytes} bytes allowed here"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).expect("a header"))).collect()
    }

    fn chunked(chunks: Vec<&'static str>) -> Body {
        Body::from_stream(futures::stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>)))
    }

    fn unread(headers: &HeaderMap, body: Body, memory: &Arc<BodyMemory>) -> UnreadBody {
        let (headers, memory, places) = (headers.clone(), Arc::clone(memory), WaitPlaces::default());
        UnreadBody { headers, body, memory, answers: None, caller: "ops".into(), places }
    }

    async fn text(headers: &HeaderMap, body: Body, limit_bytes: usize) -> Result<BodyText, Problem> {
        unread(headers, body, &Arc::new(BodyMemory::new(1 << 20))).text(limit_bytes).await
    }

    #[tokio::test]
    async fn a_body_comes_whole_whatever_its_chunks() {
        let body = text(&HeaderMap::new(), chunked(vec!["{\"a\"", ":1}"]), 100).await.expect("taken");
        assert_eq!(body.as_str(), "{\"a\":1}");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_413_announced_or_not() {
        let announced = headers(&[(header::CONTENT_LENGTH, "11")]);
        assert_eq!(text(&announced, Body::from("01234567890"), 10).await.expect_err("refused").status, 413);
        assert_eq!(
            text(&HeaderMap::new(), chunked(vec!["012345", "67890"]), 10).await.expect_err("refused").status,
            413
        );
        assert!(text(&HeaderMap::new(), chunked(vec!["012345", "6789"]), 10).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_came_too_slowly_is_408_and_one_that_broke_off_is_400() {
        let cases: [(Box<dyn std::error::Error + Send + Sync>, u16); 2] =
            [(TooSlow.into(), 408), ("reset".into(), 400)];
        for (error, status) in cases {
            let body = Body::from_stream(futures::stream::iter([Ok("{"), Err(error)]));
            assert_eq!(text(&HeaderMap::new(), body, 10).await.expect_err("refused").status, status);
        }
    }

    #[tokio::test]
    async fn the_first_byte_shows_that_a_body_is_not_empty_and_is_kept() {
        let unread = |body| unread(&HeaderMap::new(), body, &Arc::new(BodyMemory::new(1 << 20)));
        for empty in [vec![], vec![""], vec!["", ""]] {
            assert!(unread(chunked(empty)).not_empty().await.is_none());
        }
        let body = unread(chunked(vec!["", "a", "b"])).not_empty().await.expect("it has bytes");
        assert_eq!(body.text(10).await.expect("taken").as_str(), "ab");
        let slow = Body::from_stream(stream::iter([Err::<&str, _>(TooSlow)]));
        let body = unread(slow).not_empty().await.expect("it may have bytes");
        assert_eq!(body.text(10).await.expect_err("refused").status, 408);
    }

    #[tokio::test]
    async fn an_announced_body_takes_no_room_before_it_comes() {
        let memory = Arc::new(BodyMemory::new(1 << 20));
        let sent = |headers: &HeaderMap, body| unread(headers, body, &memory);
        let announced = headers(&[(header::CONTENT_LENGTH, "500000")]);
        let never = || Body::from_stream(futures::stream::pending::<Result<&'static str, std::io::Error>>());
        let mut waiting: Vec<_> = (0..6).map(|_| Box::pin(sent(&announced, never()).text(500_000))).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        let large = Body::from("x".repeat(500_000));
        let taken = sent(&HeaderMap::new(), large).text(500_000).await.expect("there is room");
        assert_eq!(taken.as_str().len(), 500_000);
    }

    #[tokio::test]
    async fn a_body_without_room_is_read_to_its_end_so_that_its_client_sees_the_answer() {
        let memory = Arc::new(BodyMemory::of_sign_ins());
        let mut others = Reservation::none(&memory, "ops".into());
        others.grow_to(4 << 20).await.expect("the caller's share");
        let read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&read);
        let chunks = stream::iter(["a", "b", "c"].map(Ok::<_, std::io::Error>));
        let body = Body::from_stream(chunks.inspect(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let sent = unread(&HeaderMap::new(), body, &memory);
        assert_eq!(sent.text(10).await.expect_err("refused").status, 429);
        assert_eq!(read.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn of_a_refused_body_a_stranger_has_less_read_than_a_caller() {
        let answers = || Some(Arc::new(BodyMemory::new(64 << 20)));
        let piece = Bytes::from(vec![b'x'; 1 << 16]);
        for (answers, most) in [(None, STRANGERS_DRAIN_BYTES), (answers(), DRAIN_BYTES)] {
            let read = Arc::new(AtomicUsize::new(0));
            let (counted, piece) = (Arc::clone(&read), piece.clone());
            let pieces = stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone()));
            let body = Body::from_stream(pieces.take(1_000).inspect(move |_| {
                counted.fetch_add(1 << 16, Ordering::Relaxed);
            }));
            let sent = unread(&HeaderMap::new(), body, &Arc::new(BodyMemory::of_sign_ins()));
            let sent = UnreadBody { answers, ..sent };
            assert_eq!(sent.text(10).await.expect_err("refused").status, 413);
            // The piece that is too much was read, and the first one before the rest.
            assert_eq!(read.load(Ordering::Relaxed), most + (2 << 16));
        }
    }

    #[tokio::test]
    async fn only_json_in_utf8_is_taken() {
        let sent_as = |content_type: &str| headers(&[(header::CONTENT_TYPE, content_type)]);
        let plain = text(&sent_as("text/plain"), Body::from("x"), 10).await.expect_err("refused");
        assert_eq!(plain.status, 415);
        let packed = headers(&[(header::CONTENT_ENCODING, "gzip")]);
        assert_eq!(text(&packed, Body::from("x"), 10).await.expect_err("refused").status, 415);
        assert!(text(&sent_as("Application/JSON; charset=utf-8"), Body::from("x"), 10).await.is_ok());
        assert_eq!(text(&HeaderMap::new(), Body::from(vec![b'x', 0xff]), 10).await.expect_err("refused").status, 400);
    }
}
