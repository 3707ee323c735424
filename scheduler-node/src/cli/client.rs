//! Sends requests to a node over HTTP. The outcome is an answer, a refusal, or unknown; the client never guesses
//! which.

mod pieces;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use common::wire::Problem;
use reqwest::{
    Method, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use serde::de::DeserializeOwned;

use self::pieces::Pieces;

/// The client tries the next node when one has not accepted the connection within this time.
const CONNECTS_WITHIN: Duration = Duration::from_secs(3);

/// A streamed answer is bounded piece by piece; in total it may take a week.
const LONGEST_ANSWER: Duration = Duration::from_secs(7 * 86_400);

/// The longest excerpt shown of an answer that does not come from Duetime.
const SHOWN_CHARS: usize = 200;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A node refused the request: repeating it will not help.
    #[error("{0}")]
    Refused(Box<Said>),
    /// A node cannot serve the request now, or failed while serving it. Its answer tells whether the request may have
    /// taken effect.
    #[error("{0}")]
    Failed(Box<Said>),
    #[error("the outcome is unknown, the request may have taken effect: {node} did not answer: {why}")]
    Unknown { node: Url, why: String },
    /// No request was sent.
    #[error("no node can be reached: {0}; is `--url` right?")]
    Unreachable(String),
    #[error("the answer of {node} cannot be read; is it a Duetime node of this version? {why}")]
    Unreadable { node: Url, why: String },
}

impl Failure {
    /// Whether a node has decided, which makes asking other nodes pointless.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// The problem document as the node wrote it.
    pub(super) fn problem(&self) -> Option<&str> {
        match self {
            Self::Refused(said) | Self::Failed(said) => said.problem.is_some().then_some(&said.text),
            _ => None,
        }
    }
}

/// A node's answer that reports a problem.
#[derive(Debug)]
pub struct Said {
    node: Url,
    status: StatusCode,
    problem: Option<Problem>,
    /// The body, byte for byte.
    text: String,
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(problem) = &self.problem else {
            let start: String = self.text.trim().chars().take(SHOWN_CHARS).collect();
            return write!(
                f,
                "{} answered {}, which is not an answer of a Duetime node: {start}",
                self.node, self.status
            );
        };
        f.write_str(&sentence(problem))?;
        match self.status {
            StatusCode::UNAUTHORIZED => f.write_str("; give one with --token-file or DUETIME_TOKEN"),
            _ => Ok(()),
        }
    }
}

/// A problem as one line: the field to blame, and what is wrong with it.
pub(super) fn sentence(problem: &Problem) -> String {
    match &problem.field {
        Some(field) if !problem.detail.contains(&format!("`{field}`")) => format!("`{field}`: {}", problem.detail),
        _ => problem.detail.clone(),
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
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&self.path);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

/// A node's successful answer.
#[derive(Debug)]
pub(super) struct Answer {
    node: Url,
    /// The body, byte for byte.
    pub(super) text: String,
}

impl Answer {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let refuse = |error: serde_json::Error| Failure::Unreadable { node: self.node.clone(), why: error.to_string() };
        serde_json::from_str(&self.text).map_err(refuse)
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
            .connect_timeout(CONNECTS_WITHIN.min(timeout))
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
    pub(super) async fn ask(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        self.in_turn(async |node| self.ask_at(node, request).await).await
    }

    /// Like `ask`, for an answer that is too long to hold in memory.
    pub(super) async fn ask_for_pieces(&self, request: &Request<'_>) -> Result<Pieces, Failure> {
        self.in_turn(async |node| {
            let sent = self.sent(node, request).timeout(LONGEST_ANSWER).send();
            let response = match tokio::time::timeout(self.timeout, sent).await {
                Ok(response) => response.map_err(|error| lost(node, &request.method, error))?,
                Err(_) => return Err(Failure::Unreachable(format!("{node}: no answer within {:?}", self.timeout))),
            };
            if response.status().is_success() {
                return Ok(Pieces::new(node.clone(), response, self.timeout));
            }
            Err(read(node, request, response).await.err().unwrap_or_else(|| Failure::Unreachable(node.to_string())))
        })
        .await
    }

    async fn in_turn<T>(&self, ask: impl AsyncFn(&Url) -> Result<T, Failure>) -> Result<T, Failure> {
        let first = self.first.load(Ordering::Relaxed);
        let mut silent: Vec<String> = Vec::new();
        for turn in 0..self.nodes.len() {
            let index = (first + turn) % self.nodes.len();
            match ask(&self.nodes[index]).await {
                Err(Failure::Unreachable(why)) => silent.push(why),
                outcome => {
                    self.first.store(index, Ordering::Relaxed);
                    return outcome;
                }
            }
        }
        Err(Failure::Unreachable(silent.join("; ")))
    }

    /// Asks this node and no other.
    pub(super) async fn ask_at(&self, node: &Url, request: &Request<'_>) -> Result<Answer, Failure> {
        let response = self.sent(node, request).send().await.map_err(|error| lost(node, &request.method, error))?;
        read(node, request, response).await
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
}

async fn read(node: &Url, request: &Request<'_>, response: reqwest::Response) -> Result<Answer, Failure> {
    let status = response.status();
    let text = response.text().await.map_err(|error| lost(node, &request.method, error))?;
    if status.is_success() {
        return Ok(Answer { node: node.clone(), text });
    }
    let problem = serde_json::from_str(&text).ok();
    let said = Box::new(Said { node: node.clone(), status, problem, text });
    // A redirect is not an answer of a node either.
    Err(if status.is_client_error() { Failure::Refused(said) } else { Failure::Failed(said) })
}

/// A read-only request has no effect, whatever happened to it, so it counts as not sent.
fn lost(node: &Url, method: &Method, error: reqwest::Error) -> Failure {
    let not_sent = error.is_connect() || error.is_builder() || method == Method::GET;
    let why = super::explained(&error.without_url());
    if not_sent { Failure::Unreachable(format!("{node}: {why}")) } else { Failure::Unknown { node: node.clone(), why } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, text: &str) -> Said {
        let status = StatusCode::from_u16(status).expect("a status");
        let node = Url::parse("http://node:1").expect("an address");
        Said { node, status, problem: serde_json::from_str(text).ok(), text: text.to_owned() }
    }

    #[test]
    fn a_path_is_put_together_from_its_parts_and_nothing_breaks_out_of_them() {
        let url =
            |node: &str, path: &[&str]| Request::get(path).url(&Url::parse(node).expect("an address")).to_string();
        assert_eq!(url("http://a:1", &["v1", "tasks"]), "http://a:1/v1/tasks");
        assert_eq!(url("http://a:1/behind/", &["v1", "tasks"]), "http://a:1/behind/v1/tasks");
        assert_eq!(url("http://a:1", &["v1", "queues", "a/b?c"]), "http://a:1/v1/queues/a%2Fb%3Fc");
        let query = Request::get(&["v1", "tasks"]).query(vec![("partition_key", "a b&c".to_owned())]);
        let url = query.url(&Url::parse("http://a:1").expect("an address"));
        assert_eq!(url.as_str(), "http://a:1/v1/tasks?partition_key=a+b%26c");
    }

    #[test]
    fn a_problem_is_one_line_that_names_the_field() {
        let problem = Problem::invalid_field("priority", "must be 1 to 5");
        let text = serde_json::to_string(&problem).expect("JSON");
        assert_eq!(said(422, &text).to_string(), "`priority`: must be 1 to 5");
        let problem = Problem::invalid_field("priority", "`priority` must be 1 to 5");
        assert_eq!(sentence(&problem), "`priority` must be 1 to 5");
        let text = serde_json::to_string(&Problem::unauthorized("send a token")).expect("JSON");
        assert!(said(401, &text).to_string().contains("DUETIME_TOKEN"));
    }

    #[test]
    fn what_is_no_answer_of_a_node_is_said_to_be_none() {
        let shown = said(502, "<html>bad gateway</html>").to_string();
        assert!(shown.contains("502 Bad Gateway") && shown.contains("http://node:1"), "{shown}");
        assert_eq!(Failure::Failed(Box::new(said(502, "<html>"))).problem(), None);
    }
}
