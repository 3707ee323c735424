//! Verifies an id token: the provider's signature, this client as its audience, and its time.

use jsonwebtoken::{
    Algorithm, DecodingKey, Header, Validation, decode, decode_header,
    errors::ErrorKind,
    jwk::{Jwk, PublicKeyUse},
};
use serde_json::Value;

use super::LEEWAY_S;
use crate::config::Oidc;

/// Signature algorithms that only the provider can use. Algorithms with a shared secret are excluded: an attacker
/// could sign with a public key as that secret.
const SIGNED: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Why a token is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("its token is signed with a key that it does not publish")]
    UnknownKey,
    #[error("its token has a wrong signature")]
    WrongSignature,
    #[error("its token {0}")]
    Bad(String),
}

impl Fault {
    fn of(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidSignature => Self::WrongSignature,
            other => Self::Bad(reason(other)),
        }
    }

    /// Whether keys that the provider has published since may verify the token. A new key may have the id of the one
    /// before it, or none.
    pub(super) fn may_be_of_a_newer_key(&self) -> bool {
        matches!(self, Self::UnknownKey | Self::WrongSignature)
    }
}

/// The claims of a token that one of `keys` signed, from the issuer, for this client, and not expired.
pub(super) fn verified(token: &str, keys: &[Jwk], config: &Oidc) -> Result<Value, Fault> {
    let header = decode_header(token).map_err(|_| Fault::Bad("is not a signed token".to_owned()))?;
    if !SIGNED.contains(&header.alg) {
        return Err(Fault::Bad(format!("is signed with {:?}, which is not accepted", header.alg)));
    }
    let mut validation = Validation::new(header.alg);
    validation.set_issuer(&[&config.issuer]);
    validation.set_audience(&[&config.client_id]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.leeway = LEEWAY_S.unsigned_abs();
    validation.validate_nbf = true;
    let mut fault = Fault::UnknownKey;
    let keys = keys.iter().filter(|key| fits(key, &header)).filter_map(|key| DecodingKey::from_jwk(key).ok());
    // A key of another type cannot have signed the token, and its fault would hide that of a key that can.
    for key in keys.filter(|key| key.family() == header.alg.family()) {
        match decode::<Value>(token, &key, &validation) {
            Ok(decoded) => return for_us(decoded.claims, config),
            Err(error) => fault = Fault::of(error.kind()),
        }
    }
    Err(fault)
}

/// Whether this key may have signed the token. A token without a key id may be signed with any key of its algorithm.
fn fits(key: &Jwk, header: &Header) -> bool {
    let named = header.kid.is_none() || header.kid == key.common.key_id;
    let for_it = key.common.key_algorithm.is_none_or(|algorithm| algorithm.to_string() == format!("{:?}", header.alg));
    named && for_it && key.common.public_key_use != Some(PublicKeyUse::Encryption)
}

/// Checks that a token for several audiences was issued to this client.
fn for_us(claims: Value, config: &Oidc) -> Result<Value, Fault> {
    let has_several = claims["aud"].as_array().is_some_and(|audience| audience.len() > 1);
    let authorized_party = claims.get("azp").and_then(Value::as_str);
    if authorized_party.map_or(has_several, |party| party != config.client_id) {
        return Err(Fault::Bad("was given to another client".to_owned()));
    }
    Ok(claims)
}

/// The reason in words, without any content of the token.
fn reason(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::InvalidIssuer => "is from another issuer".to_owned(),
        ErrorKind::InvalidAudience => "is for another client".to_owned(),
        ErrorKind::ExpiredSignature => {
            format!("has expired, even if clocks differ by {LEEWAY_S} s; compare this node's clock with the provider's")
        }
        ErrorKind::ImmatureSignature => {
            format!(
                "is not valid yet, even if clocks differ by {LEEWAY_S} s; compare this node's clock with the provider's"
            )
        }
        ErrorKind::MissingRequiredClaim(claim) => format!("lacks the claim `{claim}`"),
        other => format!("cannot be read ({other:?})"),
    }
}
