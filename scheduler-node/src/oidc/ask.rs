//! One request to the provider, answered soon, with an answer of bounded size.

use std::time::Duration;

use reqwest::{RequestBuilder, StatusCode, redirect};
use serde::de::DeserializeOwned;

use super::room::Room;
use crate::causes;

/// A person waits for it.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Metadata and keys have some kilobytes; an id token with the groups of a large company some more.
const ANSWER_BYTES: usize = 1 << 20;

/// Of what an error code may be, to show it to a person.
const CODE_CHARS: usize = 60;

/// A client for one provider.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) http: reqwest::Client,
    /// For exchanges of codes. What the provider says of itself is asked one at a time, and needs no place.
    pub(super) room: Room,
}

impl Asker {
    pub(super) fn new(issuer: &str) -> reqwest::Result<Self> {
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("duetime/", env!("CARGO_PKG_VERSION")))
            // The secret goes to the address that was discovered and to no other.
            .redirect(redirect::Policy::none())
            .timeout(ANSWERED_WITHIN);
        if issuer.starts_with("http:") {
            // A machine without certificates can speak http all the same.
            http = http.tls_certs_only([]);
        }
        Ok(Self { http: http.build()?, room: Room::new() })
    }

    /// The status and the JSON that came with it; why there is none, otherwise.
    pub(super) async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<(StatusCode, T), String> {
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
            json.map_err(|error| format!("it answered {status}, and not as an OpenID provider does ({error})"))?,
        ))
    }
}

/// An error code as far as it can be one: somebody else may have written it.
pub(super) fn code(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')).take(CODE_CHARS).collect()
}

/// With its causes.
fn explained(error: reqwest::Error) -> String {
    causes::explained(&error.without_url())
}
