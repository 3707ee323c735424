//! Streamed answers, too long to hold in memory.

use std::time::Duration;

use reqwest::Url;

use super::failure::Failure;
use crate::causes::explained;

/// A streamed answer. Each piece is bounded in time, the whole is not.
#[derive(Debug)]
pub(in crate::cli) struct Pieces {
    node: Url,
    response: reqwest::Response,
    timeout: Duration,
}

impl Pieces {
    pub(super) const fn new(node: Url, response: reqwest::Response, timeout: Duration) -> Self {
        Self { node, response, timeout }
    }

    /// The next piece; `None` after the node has marked the end.
    pub(in crate::cli) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let unreadable = |why: String| Failure::Unanswered(format!("the answer of {} broke off: {why}", self.node));
        match tokio::time::timeout(self.timeout, self.response.chunk()).await {
            Ok(Ok(piece)) => Ok(piece.map(Vec::from)),
            Ok(Err(error)) => Err(unreadable(explained(&error.without_url()))),
            Err(_) => Err(unreadable(format!("no data arrived for {:?}", self.timeout))),
        }
    }
}
