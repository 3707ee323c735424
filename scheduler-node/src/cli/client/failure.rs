//! Why a request got no answer.

use std::time::Duration;

use common::wire::Problem;
use reqwest::{StatusCode, Url};

/// The longest excerpt shown of an answer that does not come from Duetime.
const SHOWN_CHARS: usize = 200;

/// The pauses, in seconds, before a node is asked again that has too many requests. A shorter one would add to them.
/// A node names a longer one where an operator has to make room, which is too long for a person at a terminal.
const SHORTEST_PAUSE_S: u32 = 1;
const LONGEST_PAUSE_S: u32 = 5;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A node refused the request. Repeating it will not help, unless [`Self::may_pass`].
    #[error("{0}")]
    Refused(Box<ProblemResponse>),
    /// A node cannot serve the request now, or failed while serving it. Its answer tells whether the request may have
    /// taken effect.
    #[error("{0}")]
    Failed(Box<ProblemResponse>),
    #[error("the outcome is unknown, the request may have taken effect: {node} did not answer: {why}")]
    Unknown { node: Url, why: String },
    /// A node was reached, but did not answer a request that only reads.
    #[error("{0}")]
    Unanswered(String),
    /// No request was sent.
    #[error("no node can be reached: {0}; is `--url` right?")]
    Unreachable(String),
    #[error("the answer of {node} cannot be read; is it a Duetime node of this version? {why}")]
    Unreadable { node: Url, why: String },
    /// The request was a look at a task by its key.
    #[error("the answer of {node} is about another task ({task}); a proxy on the way may change the path of requests")]
    OtherTask { node: Url, task: String },
}

impl Failure {
    /// Whether a node has decided, which makes asking other nodes pointless.
    pub(in crate::cli) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Whether the request does not fit what has happened meanwhile, so that repeating it never helps.
    pub(in crate::cli) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(response) if response.status == StatusCode::CONFLICT)
    }

    /// Whether the request surely took no effect. What a node that failed says about that is for a person.
    pub(in crate::cli) fn had_no_effect(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Unreachable(_) | Self::Unanswered(_))
    }

    /// Whether the same request may be answered a moment later: no node answered, or one could not serve it or had too
    /// many requests.
    pub(in crate::cli) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unanswered(_) | Self::Unknown { .. } => true,
            Self::Failed(response) => response.status.is_server_error(),
            Self::Refused(response) => response.status == StatusCode::TOO_MANY_REQUESTS,
            Self::Unreadable { .. } | Self::OtherTask { .. } => false,
        }
    }

    /// When to send the request to the same node again, which refused it because there were too many.
    pub(super) fn admitted_after(&self) -> Option<Duration> {
        let Self::Refused(response) = self else { return None };
        let problem = response.problem.as_ref().filter(|_| response.status == StatusCode::TOO_MANY_REQUESTS)?;
        let pause_s = problem.retry_after_s.filter(|pause_s| *pause_s <= LONGEST_PAUSE_S)?;
        Some(Duration::from_secs(pause_s.max(SHORTEST_PAUSE_S).into()))
    }

    /// The problem document as the node wrote it.
    pub(in crate::cli) fn problem(&self) -> Option<&str> {
        match self {
            Self::Refused(response) | Self::Failed(response) => response.problem.is_some().then_some(&response.text),
            _ => None,
        }
    }
}

/// A node's answer that reports a problem.
#[derive(Debug)]
pub struct ProblemResponse {
    pub(super) node: Url,
    pub(super) status: StatusCode,
    pub(super) problem: Option<Problem>,
    /// The body, byte for byte.
    pub(super) text: String,
}

impl std::fmt::Display for ProblemResponse {
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
pub(in crate::cli) fn sentence(problem: &Problem) -> String {
    match &problem.field {
        Some(field) if !problem.detail.contains(&format!("`{field}`")) => format!("`{field}`: {}", problem.detail),
        _ => problem.detail.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, text: &str) -> ProblemResponse {
        let status = StatusCode::from_u16(status).expect("a status");
        let node = Url::parse("http://node:1").expect("an address");
        ProblemResponse { node, status, problem: serde_json::from_str(text).ok(), text: text.to_owned() }
    }

    #[test]
    fn a_problem_is_one_line_that_names_the_field() {
        let problem = Problem::invalid_field("priority", "must be 1 to 5");
        let text = serde_json::to_string(&problem).expect("JSON");
        assert_eq!(response(422, &text).to_string(), "`priority`: must be 1 to 5");
        let problem = Problem::invalid_field("priority", "`priority` must be 1 to 5");
        assert_eq!(sentence(&problem), "`priority` must be 1 to 5");
        let text = serde_json::to_string(&Problem::unauthorized("send a token")).expect("JSON");
        assert!(response(401, &text).to_string().contains("DUETIME_TOKEN"));
    }

    #[test]
    fn a_node_is_asked_again_only_where_it_says_that_a_moment_is_enough() {
        let pause_s = |problem: &Problem| {
            let text = serde_json::to_string(problem).expect("JSON");
            let refused = Failure::Refused(Box::new(response(problem.status, &text)));
            refused.admitted_after().map(|pause| pause.as_secs())
        };
        let too_many = |after_s| Problem::too_many("later").retry_after(after_s);
        assert_eq!(
            [0, 1, 5, 6, 60].map(|after_s| pause_s(&too_many(after_s))),
            [Some(1), Some(1), Some(5), None, None]
        );
        assert_eq!(pause_s(&Problem::too_many("never")), None);
        assert_eq!(pause_s(&Problem::unauthorized("send a token").retry_after(1)), None);
        let of_others = Failure::Refused(Box::new(response(429, "slow down")));
        assert!(of_others.admitted_after().is_none() && of_others.may_pass() && of_others.had_no_effect());
    }

    #[test]
    fn what_is_no_answer_of_a_node_is_said_to_be_none() {
        let shown = response(502, "<html>bad gateway</html>").to_string();
        assert!(shown.contains("502 Bad Gateway") && shown.contains("http://node:1"), "{shown}");
        assert_eq!(Failure::Failed(Box::new(response(502, "<html>"))).problem(), None);
    }
}
