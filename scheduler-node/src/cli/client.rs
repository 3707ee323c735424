//! Sends requests to a node over HTTP. The outcome is an answer, a refusal, or unknown; the client never guesses
//! which.

mod failure;
mod pieces;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    Method, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use serde::de::DeserializeOwned;

use self::failure::ProblemResponse;
pub(super) use self::failure::{Failure, sentence};
use self::pieces::Pieces;
use crate::causes::explained;

/// The client tries the next node when one has not accepted the connection within this time, or half the time for an
/// answer. With the whole of it, the request would time out first, and one that was never sent would count as unknown.
const CONNECTS_WITHIN: Duration = Duration::from_secs(3);

/// A streamed answer is bounded piece by piece; in total it may take a week.
const LONGEST_ANSWER: Duration = Duration::from_secs(7 * 86_400);

/// The bytes of a segment that are percent-encoded: all but the unreserved ones of RFC 3986. `Url` would drop tabs and
/// line breaks, so it gets none of them as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A name that becomes one segment of a path. Refuses `.` and `..`: in a URL's path they mean this folder and the one
/// above.
pub(super) fn path_part(name: &str) -> Result<String, String> {
    match name {
        "" => Err("a name must not be empty".to_owned()),
        "." | ".." => Err("a name must not be `.` or `..`".to_owned()),
        _ => Ok(name.to_owned()),
    }
}

/// One HTTP request.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    method: Method,
    /// The segments of the path.
    path: Vec<&'a str>,
    query: Vec<(&'static str, String)>,
    body: Option<String>,
}

impl<'a> Request<'a> {
    pub(super) fn new(method: Method, path: &[&'a str]) -> Self {
        Self { method, path: path.to_vec(), query: Vec::new(), body: None }
    }

    pub(super) fn get(path: &[&'a str]) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn post(path: &[&'a str]) -> Self {
        Self::new(Method::POST, path)
    }

    pub(super) fn query(self, query: Vec<(&'static str, String)>) -> Self {
        Self { query, ..self }
    }

    /// Sets a JSON body.
    pub(super) fn body(self, body: String) -> Self {
        Self { body: Some(body), ..self }
    }

    fn url(&self, node: &Url) -> Url {
        let mut url = node.clone();
        let mut path = url.path().strip_suffix('/').unwrap_or_else(|| url.path()).to_owned();
        for part in &self.path {
            path.push('/');
            path.extend(utf8_percent_encode(part, ENCODED));
        }
        url.set_path(&path);
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

/// A node's successful response.
#[derive(Debug)]
pub(super) struct Response {
    node: Url,
    /// The body, byte for byte.
    pub(super) text: String,
}

impl Response {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.text).map_err(|error| self.unreadable(error.to_string()))
    }

    fn unreadable(&self, why: String) -> Failure {
        Failure::Unreadable { node: self.node.clone(), why }
    }

    /// The failure that this is about another task than the one with the requested key.
    pub(super) fn of_other_task(&self, task: String) -> Failure {
        Failure::OtherTask { node: self.node.clone(), task }
    }
}

/// Sends each request to one node at a time. It tries the next node only if the one before has not received the
/// request.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    nodes: Vec<Url>,
    authorization: Option<HeaderValue>,
    /// The index of the node that was reached last; it is tried first.
    first: AtomicUsize,
    /// The limit for a whole answer, or for each piece of a streamed one.
    timeout: Duration,
}

impl Client {
    pub(super) fn new(nodes: Vec<Url>, authorization: Option<HeaderValue>, timeout: Duration) -> reqwest::Result<Self> {
        let mut http = reqwest::Client::builder()
            // The token goes only to the addresses that the caller named, never to a redirect's target.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECTS_WITHIN.min(timeout / 2))
            .timeout(timeout);
        if nodes.iter().all(|node| node.scheme() == "http") {
            // A machine without CA certificates can still use plain http.
            http = http.tls_certs_only([]);
        }
        Ok(Self { http: http.build()?, nodes, authorization, first: AtomicUsize::new(0), timeout })
    }

    pub(super) fn nodes(&self) -> &[Url] {
        &self.nodes
    }

    pub(super) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// Asks the nodes in turn until one answers or may have carried out the request.
    pub(super) async fn send(&self, request: &Request<'_>) -> Result<Response, Failure> {
        self.in_turn(async |node| self.send_to(node, request).await).await
    }

    /// Like [`Self::send`], for an answer that is too long to hold in memory.
    pub(super) async fn stream(&self, request: &Request<'_>) -> Result<Pieces, Failure> {
        self.in_turn(async |node| {
            let sent = self.sent(node, request).timeout(LONGEST_ANSWER).send();
            let response = match tokio::time::timeout(self.timeout, sent).await {
                Ok(response) => response.map_err(|error| self.lost(node, &request.method, error))?,
                Err(_) => return Err(self.unanswered(node)),
            };
            if response.status().is_success() {
                return Ok(Pieces::new(node.clone(), response, self.timeout));
            }
            Err(self.read(node, request, response).await.err().unwrap_or_else(|| self.unanswered(node)))
        })
        .await
    }

    async fn in_turn<T>(&self, ask: impl AsyncFn(&Url) -> Result<T, Failure>) -> Result<T, Failure> {
        let first = self.first.load(Ordering::Relaxed);
        let (mut silent, mut is_reached): (Vec<String>, bool) = (Vec::new(), false);
        for turn in 0..self.nodes.len() {
            let index = (first + turn) % self.nodes.len();
            match self.admitted(&self.nodes[index], &ask).await {
                Err(Failure::Unreachable(why)) => silent.push(why),
                Err(Failure::Unanswered(why)) => {
                    silent.push(why);
                    is_reached = true;
                }
                outcome => {
                    self.first.store(index, Ordering::Relaxed);
                    return outcome;
                }
            }
        }
        let why = silent.join("; ");
        Err(if is_reached { Failure::Unanswered(why) } else { Failure::Unreachable(why) })
    }

    /// Asks a node again while it has too many requests of this caller or of its token, for as long as an answer may
    /// take: what it refused for that had no effect.
    async fn admitted<T>(&self, node: &Url, ask: &impl AsyncFn(&Url) -> Result<T, Failure>) -> Result<T, Failure> {
        let since = Instant::now();
        loop {
            let answer = ask(node).await;
            match answer.as_ref().err().and_then(Failure::admitted_after) {
                Some(pause) if since.elapsed() + pause < self.timeout => tokio::time::sleep(pause).await,
                _ => return answer,
            }
        }
    }

    /// Asks this node and no other.
    pub(super) async fn send_to(&self, node: &Url, request: &Request<'_>) -> Result<Response, Failure> {
        let sent = self.sent(node, request).send().await;
        let response = sent.map_err(|error| self.lost(node, &request.method, error))?;
        self.read(node, request, response).await
    }

    fn sent(&self, node: &Url, request: &Request<'_>) -> reqwest::RequestBuilder {
        let mut sent = self.http.request(request.method.clone(), request.url(node));
        if let Some(authorization) = &self.authorization {
            sent = sent.header(AUTHORIZATION, authorization);
        }
        if let Some(body) = &request.body {
            sent = sent.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        sent
    }

    async fn read(&self, node: &Url, request: &Request<'_>, response: reqwest::Response) -> Result<Response, Failure> {
        let status = response.status();
        let text = response.text().await.map_err(|error| self.lost(node, &request.method, error))?;
        if status.is_success() {
            return Ok(Response { node: node.clone(), text });
        }
        let problem = serde_json::from_str(&text).ok();
        let answer = Box::new(ProblemResponse { node: node.clone(), status, problem, text });
        // A redirect is not an answer of a node either.
        Err(if status.is_client_error() { Failure::Refused(answer) } else { Failure::Failed(answer) })
    }

    /// A read-only request has no effect, whatever happened to it, so another node may be asked.
    fn lost(&self, node: &Url, method: &Method, error: reqwest::Error) -> Failure {
        let (is_sent, is_late) = (!error.is_connect() && !error.is_builder(), error.is_timeout());
        let why = explained(&error.without_url());
        match *method {
            _ if !is_sent => Failure::Unreachable(format!("{node}: {why}")),
            Method::GET if is_late => self.unanswered(node),
            Method::GET => Failure::Unanswered(format!("{node} did not answer: {why}")),
            _ => Failure::Unknown { node: node.clone(), why },
        }
    }

    fn unanswered(&self, node: &Url) -> Failure {
        Failure::Unanswered(format!("{node} did not answer within {:?}", self.timeout))
    }
}

#[cfg(test)]
pub(super) mod tests;
