//! Every unsuccessful answer is a problem, and never anything else.

use axum::{
    Json,
    extract::rejection::{PathRejection, RawPathParamsRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use common::{
    access::Caller,
    wire::{Problem, problem},
};

/// A problem on its way to the client. The `Err` of every handler.
#[derive(Debug)]
pub(super) struct Refusal {
    // Boxed to keep every handler's `Result` small.
    problem: Box<Problem>,
    /// The authentication scheme to offer, if credentials are missing.
    challenge: Option<&'static str>,
    /// The caller who was refused, if known.
    caller: Option<Box<Caller>>,
}

impl Refusal {
    /// Credentials are missing or wrong; `challenge` names the scheme to use.
    pub(super) fn unauthorized(detail: &str, challenge: &'static str) -> Self {
        Self { problem: Box::new(Problem::unauthorized(detail)), challenge: Some(challenge), caller: None }
    }

    /// Attaches the caller who was refused.
    pub(super) fn to(self, caller: Caller) -> Self {
        Self { caller: Some(Box::new(caller)), ..self }
    }

    pub(super) fn caller(&self) -> Option<&Caller> {
        self.caller.as_deref()
    }

    #[cfg(test)]
    pub(super) fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), challenge: None, caller: None }
    }
}

impl From<PathRejection> for Refusal {
    fn from(rejection: PathRejection) -> Self {
        Problem::not_found(format!("the path cannot be read: {}", rejection.body_text())).into()
    }
}

impl From<RawPathParamsRejection> for Refusal {
    fn from(rejection: RawPathParamsRejection) -> Self {
        Problem::not_found(format!("the path cannot be read: {}", rejection.body_text())).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after_s = self.problem.retry_after_s;
        let mut response = (status, Json(&self.problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE));
        if let Some(seconds) = retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(challenge) = self.challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}
