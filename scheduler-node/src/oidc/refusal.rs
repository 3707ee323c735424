//! Why a person is not signed in.

use common::wire::Problem;

/// Why a person is not signed in, in words for that person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the identity provider cannot be reached: {0}; try again, or sign in with a token")]
    Away(String),
    #[error(
        "this sign-in has ended: it was started more than 10 minutes ago, in another browser, or again in another tab; sign in again"
    )]
    Over,
    #[error("the identity provider refused: {0}")]
    Refused(String),
    #[error("the identity provider's answer cannot be trusted: {0}")]
    Untrusted(String),
    #[error(
        "you are {who}, but no value of the claim `{claim}` in your id token has a role here; ask an operator of this cluster for one"
    )]
    NoRole { who: String, claim: String },
    #[error(
        "you are {who}, but your id token has no claim `{claim}` that is a text or a list. Some providers leave it out for a person without a role: ask for one there. If you have one, an operator of this cluster checks `roles_claim`, `scopes` and what the provider puts into id tokens"
    )]
    NoClaim { who: String, claim: String },
}

impl Refusal {
    pub fn problem(&self) -> Problem {
        let detail = self.to_string();
        match self {
            Self::Away(_) => Problem::unavailable(detail),
            Self::Over => Problem::malformed(detail),
            Self::Refused(_) | Self::Untrusted(_) | Self::NoRole { .. } | Self::NoClaim { .. } => {
                Problem::forbidden(detail)
            }
        }
    }
}
