//! `[auth]`: who may do what. Tokens are stored only as their SHA-256.

pub use common::access::Role;
use common::{
    access::{Caller, Scope},
    limit::TokenLimits,
    wire::token::LimitsRequest,
};
use serde::Deserialize;

use super::{
    complaint::Complaints,
    oidc::{self, Oidc},
    read,
    scope::scope,
};

/// Tokens and the identity provider. With neither, every caller is let in unauthenticated, which is allowed on
/// loopback only.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    pub token: Vec<Token>,
    /// The identity provider that signs people in to the console, beside the tokens.
    pub oidc: Option<Oidc>,
}

impl Auth {
    /// Whether there is no way to authenticate a caller.
    pub fn is_empty(&self) -> bool {
        self.token.is_empty() && self.oidc.is_none()
    }
}

/// One token. It holds 256 random bits, so a search cannot recover it from a plain hash.
#[derive(Clone, Debug)]
pub struct Token {
    pub name: String,
    pub role: Role,
    pub queues: Scope,
    pub limits: TokenLimits,
    pub sha256: [u8; 32],
}

/// The section as the file has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawAuth {
    token: Vec<RawToken>,
    oidc: Option<oidc::RawOidc>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    name: String,
    role: Role,
    /// Absent: all queues.
    #[serde(default, deserialize_with = "read::maybe_list")]
    queues: Option<Vec<String>>,
    /// Absent: no limits of its own.
    #[serde(default)]
    limits: LimitsRequest,
    sha256: String,
}

/// Checks the tokens. The result may be used only when there is no complaint.
pub(super) fn settle(raw: RawAuth, complaints: &mut Complaints) -> Auth {
    let mut token: Vec<Token> = Vec::with_capacity(raw.token.len());
    for (index, raw) in raw.token.into_iter().enumerate() {
        let key = |name: &str| format!("auth.token[{index}].{name}");
        complaints.unless(!raw.name.trim().is_empty(), key("name"), "is empty; name the holder of the token");
        complaints.unless(
            token.iter().all(|other| other.name != raw.name),
            key("name"),
            format!("is {:?}, the name of another token; give each a name of its own", raw.name),
        );
        complaints.unless(
            raw.name != Caller::ANONYMOUS,
            key("name"),
            "is the name of callers without a token; choose another name",
        );
        complaints.unless(
            !raw.name.starts_with(Caller::SUBJECT),
            key("name"),
            format!(
                "begins with {:?}, as the names of people signed in by the provider do; choose another name",
                Caller::SUBJECT
            ),
        );
        let queues = scope(raw.queues, key("queues"), complaints);
        if let Err(error) = raw.role.check_scope(&queues) {
            complaints.add(key("queues"), error.detail);
        }
        let limits = raw.limits.validate().unwrap_or_else(|error| {
            complaints.add(key(&error.field), error.detail);
            TokenLimits::NONE
        });
        match digest(&raw.sha256) {
            Some(sha256) => {
                complaints.unless(
                    token.iter().all(|other| other.sha256 != sha256),
                    key("sha256"),
                    "belongs to another token; make a token for each with `duetime token`",
                );
                complaints.unless(
                    sha256 != EMPTY,
                    key("sha256"),
                    "is the SHA-256 of an empty text; `duetime token` makes a token and prints its sha256",
                );
                token.push(Token { name: raw.name, role: raw.role, queues, limits, sha256 });
            }
            None => complaints.add(
                key("sha256"),
                "is not 64 hexadecimal digits; it is the SHA-256 of the token, not the token: `duetime token` prints both",
            ),
        }
    }
    Auth { token, oidc: raw.oidc.map(|raw| oidc::settle(raw, complaints)) }
}

/// The SHA-256 of the empty text, which a script computes when its variable was not set.
const EMPTY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41,
    0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

fn digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut bytes = [0_u8; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}
