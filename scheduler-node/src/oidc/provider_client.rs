//! One request to the provider, with a timeout and an answer of bounded size.

use std::time::Duration;

use reqwest::{RequestBuilder, StatusCode, redirect};
use serde::de::DeserializeOwned;

use super::exchange_limit::ExchangeLimit;
use crate::{causes, failures::Failures};

/// Short, because a person waits for the answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Metadata and keys take some kilobytes; an id token with the groups of a large company takes some more.
const ANSWER_BYTES: usize = 1 << 20;

/// The longest error code that is shown to a person.
const CODE_CHARS: usize = 60;

/// A client for one provider.
#[derive(Debug)]
pub(super) struct ProviderClient {
    pub(super) http: reqwest::Client,
    /// Limits exchanges of codes. Discovery needs no place, because only one runs at a time.
    pub(super) limit: ExchangeLimit,
    /// The exchanges that the provider refuses for a reason that lies with this cluster.
    pub(super) refusals: Failures,
}

impl ProviderClient {
    pub(super) fn new(issuer: &str) -> reqwest::Result<Self> {
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("duetime/", env!("CARGO_PKG_VERSION")))
            // The secret goes to the discovered address only, never to a redirect's target.
            .redirect(redirect::Policy::none())
            .timeout(ANSWERED_WITHIN);
        if issuer.starts_with("http:") {
            // A machine without CA certificates can still use plain http.
            http = http.tls_certs_only([]);
        }
        let (limit, refusals) = (ExchangeLimit::new(ANSWERED_WITHIN), Failures::default());
        Ok(Self { http: http.build()?, limit, refusals })
    }

    /// The status and the JSON of the answer, or the reason why there is none.
    pub(super) async fn send<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<(StatusCode, T), String> {
        let mut response = request.send().await.map_err(explained)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(explained)? {
            if body.len() + chunk.len() > ANSWER_BYTES {
                return Err("its answer is too long".to_owned());
            }
            body.extend_from_slice(&chunk);
        }
        let json = serde_json::from_slice(&body);
        Ok((
            status,
            json.map_err(|error| format!("it answered {status}, but not as an OpenID provider does ({error})"))?,
        ))
    }
}

/// The part of an error code that is safe to show: any client may have written it.
pub(super) fn code(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')).take(CODE_CHARS).collect()
}

/// The error with its causes.
fn explained(error: reqwest::Error) -> String {
    causes::explained(&error.without_url())
}
