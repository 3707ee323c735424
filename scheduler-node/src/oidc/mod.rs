//! Speaks to an identity provider (OpenID Connect), to find who signs in to the console and what they may do.
//!
//! No node stores anything between two requests. The browser carries the state of a sign-in, and later the session,
//! sealed ([`crate::seal`]) with a key that is derived from the client's secret. That secret must not leak in any
//! case: its holder can pose as this cluster before the provider. So the browser may come back to any node.

mod discovery;
mod exchange;
mod exchange_limit;
#[cfg(any(test, feature = "failpoints"))]
pub mod fuzz;
mod id_token;
mod provider_client;
mod refusal;

use std::{net::IpAddr, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::{access::Caller, limit::TokenLimits, time::UnixMicros};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use self::refusal::Refusal;
use self::{discovery::Discovery, provider_client::ProviderClient};
use crate::{
    config::{Oidc, oidc::CALLBACK},
    seal::Seal,
};

/// How long a person may take to sign in with the provider, time for a second factor included. After that they begin
/// again.
pub const SIGN_IN_S: i64 = 10 * 60;

/// The longest session: a working day, however long the provider's token is valid.
const SESSION_S: i64 = 8 * 60 * 60;

/// The tolerated difference between the provider's clock and this node's.
const LEEWAY_S: i64 = 60;

/// The longest subject that the standard allows; it goes into the audit.
const SUBJECT_CHARS: usize = 255;

/// The longest name or address of a person from the provider; it helps people tell subjects apart.
const KNOWN_AS_CHARS: usize = 100;

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("cannot create an HTTP client for the identity provider")]
pub struct Error(#[from] reqwest::Error);

/// Where the browser goes next, and the cookie that it brings back.
#[derive(Debug)]
pub struct Begun {
    pub url: String,
    /// The sealed flow, for the browser that began and no other.
    pub flow: String,
}

/// The provider's answer, as the browser brings it.
#[derive(Debug)]
pub struct Returned {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

impl Returned {
    /// Parses the query of the browser's request.
    pub fn of(query: &str) -> Self {
        let parameter = |name: &str| {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
        };
        Self { code: parameter("code"), state: parameter("state"), error: parameter("error"), iss: parameter("iss") }
    }
}

/// A person who was let in.
#[derive(Debug)]
pub struct SignedIn {
    pub caller: Caller,
    /// The provider's name for the person beside the subject, for people to read. Empty when there is none.
    pub known_as: String,
    /// The sealed session.
    pub session: String,
    pub left_s: i64,
    /// The path that the person wanted to open.
    pub next: String,
}

/// The state of a sign-in until the browser is back.
#[derive(Debug, Serialize, Deserialize)]
struct Flow {
    state: String,
    nonce: String,
    verifier: String,
    next: String,
}

/// The identity in a session.
#[derive(Debug, Serialize, Deserialize)]
struct Session {
    subject: String,
    /// Indexes into the grants. They mean the same wherever the seal can be opened, because the key is derived from
    /// the grants too.
    held: Vec<usize>,
}

#[derive(Debug)]
pub struct Provider {
    config: Oidc,
    client: ProviderClient,
    discovery: Discovery,
    flows: Seal,
    sessions: Seal,
}

impl Provider {
    pub fn new(config: Oidc) -> Result<Self, Error> {
        let client = ProviderClient::new(&config.issuer)?;
        let secret = config.client_secret.expose_secret().as_bytes();
        let grants = config.grants.fingerprint();
        let context = [config.issuer.as_bytes(), config.client_id.as_bytes(), &grants];
        Ok(Self {
            // A flow holds no index into the grants, so it stays good while they change from node to node.
            flows: Seal::new(secret, "duetime console sign-in", &context[..2]),
            sessions: Seal::new(secret, "duetime console session", &context),
            discovery: Discovery::new(&config.issuer),
            client,
            config,
        })
    }

    /// The provider's name for people: its host.
    pub fn name(&self) -> &str {
        let rest = self.config.issuer.split_once("://").map_or("", |(_, rest)| rest);
        rest.split('/').next().unwrap_or_default()
    }

    /// The console's address as the provider knows it, without a path.
    pub fn console_origin(&self) -> &str {
        self.config.redirect_url.trim_end_matches(CALLBACK)
    }

    /// Whether the console's cookies may travel over TLS only.
    pub fn is_secure(&self) -> bool {
        self.config.is_secure()
    }

    /// Begins a sign-in: the URL at the provider, and the flow that returns to `next`.
    pub async fn begin(&self, next: &str, now: UnixMicros) -> Result<Begun, Refusal> {
        let found = self.discovery.found(&self.client, now).await?;
        let flow = Flow { state: fresh(), nonce: fresh(), verifier: fresh(), next: next.to_owned() };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&flow.verifier));
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", &self.config.redirect_url)
            .append_pair("scope", &self.config.scopes.join(" "))
            .append_pair("state", &flow.state)
            .append_pair("nonce", &flow.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256")
            .finish();
        let endpoint = &found.metadata.authorization_endpoint;
        let mark = if endpoint.contains('?') { '&' } else { '?' };
        let sealed = self.flows.close(&flow, seconds(now) + SIGN_IN_S);
        Ok(Begun { url: format!("{endpoint}{mark}{query}"), flow: sealed })
    }

    /// The path that the person wanted to open, while their sign-in may still end.
    pub fn next_of(&self, flow: &str, now: UnixMicros) -> Option<String> {
        self.flows.open(flow, seconds(now)).map(|flow: Flow| flow.next)
    }

    /// Finishes a sign-in from the provider's answer and the flow of its beginning. The provider ensures that a code
    /// is good once. A request without a flow that a node sealed, or with another state, is refused before it takes a
    /// place for an exchange.
    pub async fn finish(
        &self,
        flow: &str,
        returned: &Returned,
        from: Option<IpAddr>,
        now: UnixMicros,
    ) -> Result<SignedIn, Refusal> {
        let flow: Flow = self.flows.open(flow, seconds(now)).ok_or(Refusal::Over)?;
        let state = returned.state.as_deref().unwrap_or_default();
        if !bool::from(state.as_bytes().ct_eq(flow.state.as_bytes())) {
            return Err(Refusal::Over);
        }
        let found = self.discovery.found(&self.client, now).await?;
        let speaks = returned.iss.as_ref().map_or(!found.metadata.says_issuer, |iss| *iss == self.config.issuer);
        if !speaks {
            return Err(Refusal::Untrusted("the answer comes from another provider".to_owned()));
        }
        if let Some(error) = &returned.error {
            return Err(Refusal::Refused(provider_client::code(error)));
        }
        let code = returned.code.as_deref().ok_or_else(|| Refusal::Untrusted("the answer has no code".to_owned()))?;
        let token = exchange::exchange(&self.client, &self.config, &found.metadata, code, &flow.verifier, from).await?;
        let claims = self.verified(&token, found, &flow.nonce, now).await?;
        self.let_in(&claims, flow.next, now)
    }

    /// The holder of a session; `None` when it has ended, or was not sealed by a node with this secret and these
    /// grants.
    pub fn caller(&self, session: &str, now: UnixMicros) -> Option<Caller> {
        let Session { subject, held } = self.sessions.open(session, seconds(now))?;
        self.caller_of(&subject, &held)
    }

    /// The claims of a token that the provider signed for this sign-in. Keys rotate, so a token of another key starts a
    /// new discovery.
    async fn verified(
        &self,
        token: &str,
        found: Arc<discovery::Found>,
        nonce: &str,
        now: UnixMicros,
    ) -> Result<Value, Refusal> {
        let claims = match id_token::verified(token, &found.keys, &self.config) {
            Err(fault) if fault.may_be_of_a_newer_key() => {
                let found = self.discovery.found_anew(&self.client, now).await?;
                id_token::verified(token, &found.keys, &self.config)
            }
            known => known,
        };
        let claims = claims.map_err(|fault| Refusal::Untrusted(fault.to_string()))?;
        let nonce_of_token = claims["nonce"].as_str().unwrap_or_default();
        if !bool::from(nonce_of_token.as_bytes().ct_eq(nonce.as_bytes())) {
            return Err(Refusal::Untrusted("its token was made for another sign-in (nonce)".to_owned()));
        }
        Ok(claims)
    }

    fn let_in(&self, claims: &Value, next: String, now: UnixMicros) -> Result<SignedIn, Refusal> {
        let subject = claims["sub"].as_str().unwrap_or_default();
        if subject.is_empty() || subject.chars().count() > SUBJECT_CHARS || subject.chars().any(char::is_control) {
            return Err(Refusal::Untrusted(format!("its subject is not text of 1 to {SUBJECT_CHARS} characters")));
        }
        let held = self.config.grants.held(claims);
        let Some(caller) = self.caller_of(subject, &held) else {
            let who = format!("{}{subject}", Caller::SUBJECT);
            let claim = self.config.grants.claim.clone();
            return Err(match self.config.grants.values(claims) {
                Some(_) => Refusal::NoRole { who, claim },
                None => Refusal::NoClaim { who, claim },
            });
        };
        let now_s = seconds(now);
        // `verified` has checked that it is there.
        let vouched_s = claims["exp"].as_f64().map_or(now_s, |exp| exp as i64).saturating_add(LEEWAY_S);
        let ends_s = vouched_s.min(now_s + SESSION_S);
        let session = self.sessions.close(&Session { subject: subject.to_owned(), held }, ends_s);
        Ok(SignedIn { caller, known_as: known_as(claims), session, left_s: ends_s - now_s, next })
    }

    fn caller_of(&self, subject: &str, held: &[usize]) -> Option<Caller> {
        let (role, queues) = self.config.grants.worth(held)?;
        let name = format!("{}{subject}", Caller::SUBJECT).into();
        Some(Caller { id: None, name, role, queues, limits: TokenLimits::NONE })
    }
}

/// A readable name, because subjects are often numbers. It proves nothing: people may choose it.
fn known_as(claims: &Value) -> String {
    let name = ["email", "preferred_username", "name"].into_iter().find_map(|claim| claims[claim].as_str());
    name.unwrap_or_default().chars().filter(|c| !c.is_control()).take(KNOWN_AS_CHARS).collect()
}

/// 256 random bits, which an attacker cannot guess, in characters that a URL allows.
fn fresh() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

fn seconds(at: UnixMicros) -> i64 {
    at.millis() / 1_000
}

#[cfg(test)]
mod tests;
