//! A client of the HTTP API, as an application would write it.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::http;

/// The longest time for one answer, unless the client has another.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why a call did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// No request was sent: no server listens there.
    NotSent(String),
    /// The node refused, with this reason.
    Refused { status: StatusCode, problem: Value },
    /// The call may have taken effect or not: no answer, or one that does not tell (5xx).
    Unknown(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotSent(why) => write!(f, "not sent: {why}"),
            Self::Refused { status, problem } => write!(f, "refused with {status}: {problem}"),
            Self::Unknown(why) => write!(f, "outcome unknown: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// The status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.as_u16()),
            Self::NotSent(_) | Self::Unknown(_) => None,
        }
    }

    /// A text field of the problem, "" when there is none.
    pub fn problem(&self, field: &str) -> &str {
        match self {
            Self::Refused { problem, .. } => problem[field].as_str().unwrap_or_default(),
            Self::NotSent(_) | Self::Unknown(_) => "",
        }
    }
}

/// A task as the API shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Task {
    pub id: String,
    pub state: String,
    #[serde(default)]
    pub queue: String,
    #[serde(default)]
    pub duplicate: bool,
    /// All other fields.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// One answer of a batch: the id of the accepted task, or its problem.
pub type BatchAnswer = Result<String, Value>;

/// A client of one node, or of any server at its address.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    within: Duration,
}

impl Client {
    pub fn new(base: &str, token: Option<&str>) -> Self {
        Self {
            http: http::plain(),
            base: base.trim_end_matches('/').into(),
            token: token.map(Into::into),
            within: ANSWER_WITHIN,
        }
    }

    /// The base URL, without a trailing slash.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The token that is sent; empty where there is none.
    pub fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// The same address with another token, or none.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(Into::into), ..self.clone() }
    }

    /// The same client with another time for each answer.
    pub fn answered_within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    pub async fn submit(&self, task: &Value) -> Result<Task, Failure> {
        self.call(Method::POST, "/v1/tasks", Some(task)).await
    }

    /// Submits a batch; the answers are in the order of `tasks`.
    pub async fn batch(&self, tasks: &[Value]) -> Result<Vec<BatchAnswer>, Failure> {
        #[derive(Deserialize)]
        struct Body {
            results: Vec<Value>,
        }
        let body: Body = self.call(Method::POST, "/v1/tasks/batch", Some(&json!({ "tasks": tasks }))).await?;
        Ok(body
            .results
            .into_iter()
            .map(|result| match result["id"].as_str() {
                Some(id) => Ok(id.to_owned()),
                None => Err(result["error"].clone()),
            })
            .collect())
    }

    pub async fn get(&self, id: &str) -> Result<Task, Failure> {
        self.call(Method::GET, &format!("/v1/tasks/{id}"), None).await
    }

    /// Cancels a task; returns the outcome: `cancelled` or `no_further_attempts`.
    pub async fn cancel(&self, id: &str) -> Result<String, Failure> {
        let answer: Value = self.call(Method::DELETE, &format!("/v1/tasks/{id}"), None).await?;
        Ok(answer["outcome"].as_str().unwrap_or_default().to_owned())
    }

    pub async fn change(&self, id: &str, change: &Value) -> Result<Task, Failure> {
        self.call(Method::PATCH, &format!("/v1/tasks/{id}"), Some(change)).await
    }

    pub async fn run(&self, id: &str) -> Result<Value, Failure> {
        self.call(Method::POST, &format!("/v1/tasks/{id}/run"), None).await
    }

    pub async fn retry(&self, id: &str) -> Result<Value, Failure> {
        self.call(Method::POST, &format!("/v1/tasks/{id}/retry"), None).await
    }

    pub async fn report(&self, id: &str, result: &Value) -> Result<Value, Failure> {
        self.call(Method::POST, &format!("/v1/tasks/{id}/result"), Some(result)).await
    }

    /// Lists tasks. `query` is the URL's query without the question mark.
    pub async fn list(&self, query: &str) -> Result<Vec<Task>, Failure> {
        #[derive(Deserialize)]
        struct Body {
            tasks: Vec<Task>,
        }
        let body: Body = self.call(Method::GET, &format!("/v1/tasks?{query}"), None).await?;
        Ok(body.tasks)
    }

    pub async fn put_queue(&self, queue: &str, policy: &Value) -> Result<Value, Failure> {
        self.call(Method::PUT, &format!("/v1/queues/{queue}"), Some(policy)).await
    }

    pub async fn queue(&self, queue: &str) -> Result<Value, Failure> {
        self.call(Method::GET, &format!("/v1/queues/{queue}"), None).await
    }

    pub async fn cluster(&self) -> Result<Value, Failure> {
        self.call(Method::GET, "/v1/cluster", None).await
    }

    /// Whether the node is ready, and its report.
    pub async fn readiness(&self) -> Result<(bool, String), Failure> {
        let answer = self.send(Method::GET, "/readyz", None).await?;
        let ready = answer.status().is_success();
        let text = answer.text().await.map_err(|error| Failure::Unknown(error.to_string()))?;
        Ok((ready, text))
    }

    /// The sum of all series of one metric; `None` when there is no such series.
    pub async fn metric(&self, name: &str) -> Result<Option<f64>, Failure> {
        let answer = self.send(Method::GET, "/metrics", None).await?;
        let text = answer.text().await.map_err(|error| Failure::Unknown(error.to_string()))?;
        Ok(sum_of(&text, name))
    }

    /// Calls any route, for those without a method of their own here.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let body = body.map(|value| value.to_string().into_bytes());
        let answer = self.send(method, path, body).await?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| Failure::Unknown(error.to_string()))?;
        if status.is_success() {
            serde_json::from_str(&text).map_err(|error| Failure::Unknown(format!("{status} with {text}: {error}")))
        } else if status.is_server_error() {
            Err(Failure::Unknown(format!("{status} {text}")))
        } else {
            let problem = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Err(Failure::Refused { status, problem })
        }
    }

    /// Sends `body` byte for byte; it need not even be JSON.
    pub async fn send(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<reqwest::Response, Failure> {
        let mut request = self.http.request(method, format!("{}{path}", self.base)).timeout(self.within);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        request.send().await.map_err(|error| {
            if error.is_connect() { Failure::NotSent(error.to_string()) } else { Failure::Unknown(error.to_string()) }
        })
    }
}

fn sum_of(exposition: &str, name: &str) -> Option<f64> {
    let values: Vec<f64> = exposition
        .lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with([' ', '{']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse().ok())
        .collect();
    if values.is_empty() { None } else { Some(values.iter().sum()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_series_and_of_no_longer_names() {
        let text = "# HELP a help\na{x=\"1\"} 2\na{x=\"2\"} 3\na_total 50\nb 7\n";
        assert_eq!(sum_of(text, "a"), Some(5.0));
        assert_eq!(sum_of(text, "b"), Some(7.0));
        assert_eq!(sum_of(text, "c"), None);
    }
}
