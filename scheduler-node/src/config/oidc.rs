//! `[auth.oidc]`: the identity provider that signs people in to the console.

use std::net::IpAddr;

use common::{
    access::{Permission, Role},
    grant::{Grant, Grants, MAX_GRANTS},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{complaint::Complaints, link::Link, read, scope::scope};

/// The path that the provider sends browsers back to; there is no other.
pub const CALLBACK: &str = "/console/sign-in/oidc/callback";

/// The shortest secret. Sessions are sealed with a key derived from it, and the holder of a session can try secrets
/// on it without limit. Providers issue longer ones.
const SECRET_CHARS: usize = 24;

/// The scope without which a provider issues no id token.
const OPENID: &str = "openid";

/// How people sign in, and what they may do then.
#[derive(Clone, Debug)]
pub struct Oidc {
    /// The issuer, spelled as in its tokens.
    pub issuer: String,
    pub client_id: String,
    pub client_secret: SecretString,
    pub scopes: Vec<String>,
    /// The console's own address as the provider knows it. It is configured, because a client can write anything into
    /// the `Host` header.
    pub redirect_url: String,
    pub grants: Grants,
}

impl Oidc {
    /// Whether browsers reach the console over TLS.
    pub fn is_secure(&self) -> bool {
        self.redirect_url.starts_with("https://")
    }
}

/// The section as the file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOidc {
    issuer: String,
    client_id: String,
    #[serde(deserialize_with = "read::secret")]
    client_secret: SecretString,
    #[serde(default = "scopes", deserialize_with = "read::list")]
    scopes: Vec<String>,
    redirect_url: String,
    #[serde(default = "roles_claim")]
    roles_claim: String,
    #[serde(default)]
    role: Vec<RawRole>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRole {
    value: String,
    role: Role,
    /// Absent: all queues.
    #[serde(default, deserialize_with = "read::maybe_list")]
    queues: Option<Vec<String>>,
}

fn scopes() -> Vec<String> {
    [OPENID, "profile", "email"].map(str::to_owned).to_vec()
}

fn roles_claim() -> String {
    "groups".to_owned()
}

/// Checks the section. The result may be used only when there is no complaint.
pub(super) fn settle(raw: RawOidc, complaints: &mut Complaints) -> Oidc {
    for (key, url) in [("auth.oidc.issuer", &raw.issuer), ("auth.oidc.redirect_url", &raw.redirect_url)] {
        if let Some(fault) = fault(url) {
            complaints.add(key, fault);
        }
    }
    complaints.unless(!raw.issuer.contains('?'), "auth.oidc.issuer", "has a query; an issuer has none");
    complaints.unless(
        raw.redirect_url
            .split_once("://")
            .is_some_and(|(_, rest)| rest.find('/').is_some_and(|at| &rest[at..] == CALLBACK)),
        "auth.oidc.redirect_url",
        format!("must be the address of the console as browsers reach it, with the path {CALLBACK}"),
    );
    complaints.unless(!raw.client_id.trim().is_empty(), "auth.oidc.client_id", "is empty; the provider issues it");
    complaints.unless(
        raw.client_secret.expose_secret().len() >= SECRET_CHARS,
        "auth.oidc.client_secret",
        format!(
            "has less than {SECRET_CHARS} characters; sessions are sealed with a key derived from it, so let the \
             provider generate a random one"
        ),
    );
    complaints.unless(
        raw.scopes.iter().any(|scope| scope == OPENID),
        "auth.oidc.scopes",
        format!("lacks {OPENID:?}, which a provider requires for signing in"),
    );
    complaints.unless(!raw.roles_claim.trim().is_empty(), "auth.oidc.roles_claim", "is empty; name a claim");
    Oidc {
        issuer: raw.issuer,
        client_id: raw.client_id,
        client_secret: raw.client_secret,
        scopes: raw.scopes,
        redirect_url: raw.redirect_url,
        grants: Grants { claim: raw.roles_claim, grants: settle_roles(raw.role, complaints) },
    }
}

fn settle_roles(raw: Vec<RawRole>, complaints: &mut Complaints) -> Vec<Grant> {
    complaints.unless(
        (1..=MAX_GRANTS).contains(&raw.len()),
        "auth.oidc.role",
        format!(
            "has {} entries; it must have 1 to {MAX_GRANTS}, because people can sign in only with one: \
             [[auth.oidc.role]] with `value` and `role`",
            raw.len()
        ),
    );
    let mut grants: Vec<Grant> = Vec::with_capacity(raw.len());
    for (index, RawRole { value, role, queues }) in raw.into_iter().enumerate() {
        let key = |name: &str| format!("auth.oidc.role[{index}].{name}");
        complaints.unless(!value.trim().is_empty(), key("value"), "is empty; name a value of the claim");
        complaints.unless(
            grants.iter().all(|other| other.value != value),
            key("value"),
            format!("is {value:?}, as in another entry; write each value once"),
        );
        complaints.unless(
            Role::CONSOLE.contains(&role),
            key("role"),
            format!("is {role}, which does not open the console; choose one of {}", Permission::Look.roles()),
        );
        let queues = scope(queues, key("queues"), complaints);
        grants.push(Grant { value, role, queues });
    }
    grants
}

/// Whether no other party on the way can read or change requests to this URL.
pub fn is_safe(url: &str) -> bool {
    fault(url).is_none()
}

/// The mistake in a URL to which a browser or a secret is sent.
fn fault(url: &str) -> Option<String> {
    if let Some(fault) = Link::fault(url, &["https", "http"]) {
        return Some(fault);
    }
    let link = Link::parse(url)?;
    if link.host.is_empty() || url.contains(['@', '#', '\\']) {
        return Some("must have a host, and neither a login nor a #".to_owned());
    }
    (link.scheme == "http" && !is_loopback(&link.host))
        .then(|| "begins with http://, which others can read; use https:// except on loopback".to_owned())
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
