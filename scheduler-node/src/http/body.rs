//! Bodies of requests: taken whole, up to a size, within a time.

use std::{str::Utf8Error, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use common::wire::Problem;
use futures::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A client that has not sent its body after this has gone away, or never meant to.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);
/// Room is made for this much at once; for more only as it arrives, whatever the client says will come.
const FIRST_ROOM_BYTES: usize = 1 << 20;
/// So much of a body that is too large is still taken, so that the client reads the answer and not a broken connection.
const DRAIN_BYTES: usize = 16 << 20;
const DRAIN_WITHIN: Duration = Duration::from_secs(3);

/// The body as text. `Content-Type` must be JSON, or absent.
pub(super) async fn text(headers: &HeaderMap, body: Body, limit_bytes: usize) -> Result<Text, Problem> {
    text_within(ARRIVES_WITHIN, headers, body, limit_bytes).await
}

async fn text_within(within: Duration, headers: &HeaderMap, body: Body, limit_bytes: usize) -> Result<Text, Problem> {
    check_type(headers)?;
    let said = said_bytes(headers);
    if said.is_some_and(|said| said > limit_bytes) {
        drain(body.into_data_stream()).await;
        return Err(too_large(limit_bytes));
    }
    let collected = tokio::time::timeout(within, collect(body, said.unwrap_or(0), limit_bytes)).await;
    Text::new(collected.map_err(|_| too_slow(within))??)
}

/// A body that is UTF-8.
#[derive(Debug)]
pub(super) struct Text(String);

impl Text {
    fn new(bytes: Vec<u8>) -> Result<Self, Problem> {
        String::from_utf8(bytes).map(Self).map_err(|error| not_text(error.utf8_error()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The body; an empty one as an empty object, for requests in which everything may be left out.
    pub(super) fn or_empty_object(&self) -> &str {
        if self.0.trim_ascii().is_empty() { "{}" } else { &self.0 }
    }
}

fn not_text(error: Utf8Error) -> Problem {
    Problem::malformed(format!("the body is not UTF-8 after byte {}", error.valid_up_to()))
}

/// How much memory large bodies may take together. What does not fit waits its turn.
#[derive(Debug)]
pub(super) struct Room {
    units: Semaphore,
    free_within: Duration,
}

impl Room {
    const UNIT_BYTES: usize = 1 << 10;

    pub(super) fn new(bytes: usize) -> Self {
        Self { units: Semaphore::new(bytes / Self::UNIT_BYTES), free_within: ARRIVES_WITHIN }
    }

    /// Room for the body these `headers` announce, or for the largest there may be where they announce none.
    pub(super) async fn take(&self, headers: &HeaderMap, limit_bytes: usize) -> Result<Taken<'_>, Problem> {
        let bytes = said_bytes(headers).unwrap_or(limit_bytes).min(limit_bytes);
        let units = u32::try_from(bytes.div_ceil(Self::UNIT_BYTES)).unwrap_or(u32::MAX);
        match tokio::time::timeout(self.free_within, self.units.acquire_many(units)).await {
            Ok(Ok(permit)) => Ok(Taken(permit)),
            _ => Err(Problem::unavailable("too many large requests at once; nothing of this one was accepted")
                .retry_after(1)),
        }
    }
}

/// Room that was taken; given back when dropped.
#[derive(Debug)]
pub(super) struct Taken<'a>(SemaphorePermit<'a>);

impl Taken<'_> {
    /// Gives back what a body of `bytes` does not need.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let needless = self.0.num_permits().saturating_sub(bytes.div_ceil(Room::UNIT_BYTES));
        drop(self.0.split(needless));
    }
}

async fn collect(body: Body, said: usize, limit_bytes: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::with_capacity(said.min(FIRST_ROOM_BYTES));
    let mut arriving = body.into_data_stream();
    while let Some(chunk) = arriving.next().await {
        let chunk = chunk.map_err(|error| Problem::malformed(format!("the body ended early: {error}")))?;
        if bytes.len() + chunk.len() > limit_bytes {
            drop(bytes);
            drain(arriving).await;
            return Err(too_large(limit_bytes));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn drain(mut arriving: impl futures::Stream<Item = Result<Bytes, axum::Error>> + Unpin) {
    let mut left = DRAIN_BYTES;
    let take = async {
        while let Some(Ok(chunk)) = arriving.next().await {
            let Some(still) = left.checked_sub(chunk.len()) else { break };
            left = still;
        }
    };
    // Whether it came to its end or not, the answer is the same.
    let _ = tokio::time::timeout(DRAIN_WITHIN, take).await;
}

fn said_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Problem::unsupported_media_type("send the body as it is, without Content-Encoding"));
    }
    let Some(sent) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = sent.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::unsupported_media_type(format!("the body must be application/json, not {essence:?}")))
}

fn too_large(limit_bytes: usize) -> Problem {
    Problem::payload_too_large(format!("the body has more than the {limit_bytes} bytes that are taken here"))
}

fn too_slow(within: Duration) -> Problem {
    Problem { status: 408, ..Problem::malformed(format!("the body did not arrive within {within:?}")) }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).expect("a header"))).collect()
    }

    fn chunked(chunks: Vec<&'static str>) -> Body {
        Body::from_stream(futures::stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>)))
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
    async fn a_body_that_never_comes_is_408() {
        let body = Body::from_stream(futures::stream::pending::<Result<&'static str, std::io::Error>>());
        let problem = text_within(Duration::from_millis(1), &HeaderMap::new(), body, 10).await.expect_err("refused");
        assert_eq!(problem.status, 408);
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

    #[tokio::test]
    async fn large_bodies_wait_for_room_and_are_told_when_there_is_none() {
        let room = Room { free_within: Duration::from_millis(1), ..Room::new(100 << 10) };
        let large = headers(&[(header::CONTENT_LENGTH, "65536")]);
        let first = room.take(&large, 1 << 20).await.expect("room");
        assert_eq!(room.take(&large, 1 << 20).await.map(drop).expect_err("no room").status, 503);
        drop(first);
        let mut first = room.take(&large, 1 << 20).await.expect("room again");
        first.shrink_to(1_000);
        assert!(room.take(&large, 1 << 20).await.is_ok(), "what the first does not need is free");
    }
}
