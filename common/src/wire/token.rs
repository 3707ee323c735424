//! Tokens in requests and answers. Only the answer that creates a token contains its secret.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    access::{Caller, Role, Scope},
    field::FieldError,
    json,
    limit::TokenLimits,
    queue::MAX_NAME_CHARS,
    time::UnixMicros,
    wire::{
        Problem, check,
        list::{DEFAULT_LIMIT, MAX_LIMIT, number},
        read,
    },
};

/// A token in a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    pub name: String,
    pub role: Role,
    /// Names of queues, or prefixes of names followed by `*`. Absent: all queues.
    pub queues: Option<Vec<String>>,
    #[serde(default, deserialize_with = "super::list::moment")]
    pub expires_at: Option<UnixMicros>,
    #[serde(default, deserialize_with = "json::whole")]
    pub expires_after_ms: Option<i64>,
    /// Absent: no limits of its own.
    #[serde(default, deserialize_with = "json::object_or_default")]
    pub limits: LimitsRequest,
}

/// The limits in a request for a token. An absent or null field is no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsRequest {
    #[serde(deserialize_with = "json::whole")]
    pub requests_per_second: Option<u32>,
    #[serde(deserialize_with = "json::whole")]
    pub pending: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub pending_bytes: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub queues: Option<i64>,
    #[serde(deserialize_with = "json::whole")]
    pub schedules: Option<i64>,
}

impl LimitsRequest {
    /// The requested limits, checked; the error names the field.
    pub fn validate(self) -> Result<TokenLimits, FieldError> {
        let Self { requests_per_second, pending, pending_bytes, queues, schedules } = self;
        let limits = TokenLimits { requests_per_second, pending, pending_bytes, queues, schedules };
        limits.validate().map(|()| limits)
    }
}

/// A checked token request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidToken {
    pub name: String,
    pub role: Role,
    pub queues: Scope,
    pub expires_at: Option<UnixMicros>,
    pub limits: TokenLimits,
}

impl TokenRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }

    /// Refuses values that no token may have; the problem names the field.
    pub fn validate(self, now: UnixMicros) -> Result<ValidToken, Problem> {
        check_name(&self.name)?;
        if self.name == Caller::ANONYMOUS {
            let detail = format!("`{}` is the name of callers without a token; choose another name", self.name);
            return Err(Problem::invalid_field("name", detail));
        }
        FieldError::path_part("name", &self.name)?;
        let queues = Scope::of(self.queues)?;
        self.role.check_scope(&queues)?;
        let expires_at = check::expiry(self.expires_at, self.expires_after_ms, now)?;
        if expires_at.is_some_and(|expires_at| expires_at <= now) {
            let field = if self.expires_at.is_some() { "expires_at" } else { "expires_after_ms" };
            return Err(Problem::invalid_field(field, format!("`{field}` is in the past")));
        }
        let limits = self.limits.validate()?;
        Ok(ValidToken { name: self.name, role: self.role, queues, expires_at, limits })
    }
}

/// Checks that `name` can name a token.
pub fn check_name(name: &str) -> Result<(), FieldError> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(FieldError::new("name", "a token's name must be 1 to 128 of the characters A-Z a-z 0-9 . _ -"))
}

/// The place where a token is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// Made over the API, and valid on every node.
    Api,
    /// Listed in the configuration of the node that answers.
    Configuration,
}

/// The current state of a token. Fields that do not apply are left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenView {
    /// The id of a token that was made over the API; the audit shows it beside the name.
    pub id: Option<i64>,
    pub name: String,
    pub role: Role,
    /// Absent: all queues.
    pub queues: Option<Vec<String>>,
    pub source: TokenSource,
    pub created_at: Option<UnixMicros>,
    pub created_by: Option<String>,
    pub expires_at: Option<UnixMicros>,
    pub revoked_at: Option<UnixMicros>,
    pub revoked_by: Option<String>,
    /// Absent: no limits of its own.
    pub limits: Option<TokenLimits>,
    /// The secret, only in the answer that creates the token.
    pub token: Option<String>,
}

/// The page of tokens to show.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenPage {
    #[serde(deserialize_with = "number")]
    pub limit: Option<u32>,
    pub cursor: Option<TokenCursor>,
}

impl TokenPage {
    pub fn validate(&self) -> Result<(), FieldError> {
        FieldError::within("limit", self.limit(), 1, MAX_LIMIT)
    }

    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }
}

/// The id of the last token of the previous page; the next page has older ones. Opaque to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCursor(pub i64);

impl Serialize for TokenCursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TokenCursor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let not_one =
            |_| serde::de::Error::custom("the cursor is not valid; use the `next_cursor` of the previous page");
        text.parse().map(Self).map_err(not_one)
    }
}

/// One page, newest first. The first page begins with the tokens of the configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenList {
    pub tokens: Vec<TokenView>,
    pub next_cursor: Option<TokenCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(json: &str) -> Result<ValidToken, Problem> {
        TokenRequest::parse(json)?.validate(UnixMicros::new(1_000_000))
    }

    #[test]
    fn a_token_needs_a_name_and_a_role_and_may_end() {
        let token = valid(r#"{"name":"shop","role":"producer","queues":["shop.*"],"expires_after_ms":1000}"#).unwrap();
        assert_eq!((token.role, token.expires_at), (Role::Producer, Some(UnixMicros::new(2_000_000))));
        assert!(!token.queues.is_all());
        let ops = valid(r#"{"name":"ops","role":"operator","limits":null}"#).unwrap();
        assert!(ops.queues.is_all() && ops.limits.is_none());
        let limited = valid(r#"{"name":"a","role":"viewer","limits":{"pending":5,"queues":null}}"#).unwrap();
        assert_eq!(limited.limits, TokenLimits { pending: Some(5), ..TokenLimits::NONE });
    }

    #[test]
    fn what_can_be_no_token_is_refused_by_name() {
        for (json, field) in [
            (r#"{"name":"a b","role":"viewer"}"#, "name"),
            (r#"{"name":"anonymous","role":"viewer"}"#, "name"),
            (r#"{"name":"..","role":"viewer"}"#, "name"),
            (r#"{"name":"a","role":"root"}"#, "role"),
            (r#"{"name":"a"}"#, "role"),
            (r#"{"name":"a","role":"viewer","queues":[]}"#, "queues"),
            (r#"{"name":"a","role":"metrics","queues":["mail"]}"#, "queues"),
            (r#"{"name":"a","role":"viewer","expires_after_ms":0}"#, "expires_after_ms"),
            (r#"{"name":"a","role":"viewer","expires_at":1}"#, "expires_at"),
            (r#"{"name":"a","role":"viewer","limits":{"pending":-1}}"#, "limits.pending"),
            (r#"{"name":"a","role":"viewer","limits":{"colour":1}}"#, "limits.colour"),
            (r#"{"name":"a","role":"viewer","token":"x"}"#, "token"),
        ] {
            assert_eq!(valid(json).unwrap_err().field.as_deref(), Some(field), "{json}");
        }
    }
}
