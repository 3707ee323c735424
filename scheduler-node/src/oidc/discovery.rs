//! Discovery of the provider's endpoints and signing keys. It runs when a person signs in, and its result is kept for
//! a while. An unreachable provider stops no node.

use std::{sync::Arc, time::Duration};

use common::time::UnixMicros;
use jsonwebtoken::jwk::Jwk;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::{provider_client::ProviderClient, refusal::Refusal};
use crate::config::oidc::is_safe;

const PATH: &str = "/.well-known/openid-configuration";

/// How long a result is valid. A key that the provider withdraws is not trusted for longer.
const KEPT_FOR: Duration = Duration::from_secs(10 * 60);

/// The pause after a failed discovery, or after one for a newer key. Sign-ins within it get the last result.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Only this many keys are considered. Providers have two or three.
const KEYS: usize = 100;

/// The fields of the provider's metadata that are used here.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    issuer: String,
    pub(super) authorization_endpoint: String,
    pub(super) token_endpoint: String,
    jwks_uri: String,
    /// The supported methods of client authentication; absent: the `Authorization` header.
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Whether the provider's answers to the browser name it.
    #[serde(default, rename = "authorization_response_iss_parameter_supported")]
    pub(super) says_issuer: bool,
}

impl Metadata {
    /// Checks that the document is the issuer's, and that its endpoints are safe for secrets.
    pub(super) fn check(&self, issuer: &str) -> Result<(), String> {
        if self.issuer != issuer {
            return Err(format!("it calls itself {:?}, but `auth.oidc.issuer` is {issuer:?}", self.issuer));
        }
        let endpoints = [&self.authorization_endpoint, &self.token_endpoint, &self.jwks_uri];
        match endpoints.into_iter().find(|endpoint| !is_safe(endpoint)) {
            Some(endpoint) => Err(format!("it names {endpoint:?}, which is not https://")),
            None => Ok(()),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Keys {
    keys: Vec<Value>,
}

impl Keys {
    /// The keys of the supported types.
    pub(super) fn known(self) -> Vec<Jwk> {
        self.keys.into_iter().take(KEYS).filter_map(|key| serde_json::from_value(key).ok()).collect()
    }
}

#[derive(Debug)]
pub(super) struct Found {
    pub(super) metadata: Metadata,
    pub(super) keys: Vec<Jwk>,
}

/// The result of the last discovery.
#[derive(Debug)]
struct Look {
    at: UnixMicros,
    came_to: Result<Arc<Found>, String>,
}

impl Look {
    /// Whether the result is valid for a sign-in of the time `now`. One from after that time is valid when the sign-in
    /// had only waited meanwhile, and not when the clock was set back.
    fn holds(&self, kept_for: Duration, now: UnixMicros) -> bool {
        let kept_for = if self.came_to.is_ok() { kept_for } else { LOOK_AGAIN };
        now.since(self.at) < kept_for && self.at.since(now) < LOOK_AGAIN
    }
}

#[derive(Debug)]
pub(super) struct Discovery {
    issuer: String,
    /// Locked during a discovery, so that concurrent sign-ins wait for the same result.
    last: Mutex<Option<Look>>,
}

impl Discovery {
    pub(super) fn new(issuer: &str) -> Self {
        Self { issuer: issuer.to_owned(), last: Mutex::default() }
    }

    pub(super) async fn found(&self, client: &ProviderClient, now: UnixMicros) -> Result<Arc<Found>, Refusal> {
        self.found_since(client, KEPT_FOR, now).await
    }

    /// Discovers again, for a caller that needs a newer result.
    pub(super) async fn found_anew(&self, client: &ProviderClient, now: UnixMicros) -> Result<Arc<Found>, Refusal> {
        self.found_since(client, LOOK_AGAIN, now).await
    }

    async fn found_since(
        &self,
        client: &ProviderClient,
        kept_for: Duration,
        now: UnixMicros,
    ) -> Result<Arc<Found>, Refusal> {
        let mut last = self.last.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.holds(kept_for, now)) {
            return look.came_to.clone().map_err(Refusal::Away);
        }
        let came_to = self.look(client).await.map(Arc::new);
        let was_away = last.as_ref().is_some_and(|look| look.came_to.is_err());
        match &came_to {
            Err(reason) if !was_away => {
                tracing::warn!(
                    issuer = self.issuer,
                    reason,
                    "the identity provider cannot be reached; signing in with it fails"
                );
            }
            Ok(_) if was_away => tracing::info!(issuer = self.issuer, "the identity provider answers again"),
            _ => {}
        }
        *last = Some(Look { at: now, came_to: came_to.clone() });
        came_to.map_err(Refusal::Away)
    }

    async fn look(&self, client: &ProviderClient) -> Result<Found, String> {
        let url = format!("{}{PATH}", self.issuer.trim_end_matches('/'));
        let (status, metadata): (_, Metadata) = client.send(client.http.get(url)).await?;
        if !status.is_success() {
            return Err(format!("it answered {status}"));
        }
        metadata.check(&self.issuer)?;
        let (status, keys): (_, Keys) = client.send(client.http.get(&metadata.jwks_uri)).await?;
        if !status.is_success() {
            return Err(format!("it answered {status} for its keys"));
        }
        Ok(Found { metadata, keys: keys.known() })
    }
}
