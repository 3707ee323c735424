//! The desk as the caller of a request may use it. Handlers get a desk from here and from nowhere else, so that none
//! forgets to restrict it.

use axum::{extract::FromRequestParts, http::request::Parts};
use common::access::Caller;

use super::{Api, refusal::Refusal};
use crate::{
    desk::Desk,
    internal::{self, Origin},
    readiness::Report,
};

/// The unrestricted desk behind the authenticator; handlers cannot take it out.
#[derive(Clone)]
pub(super) struct UnrestrictedDesk(Desk);

impl UnrestrictedDesk {
    pub(super) fn new(desk: Desk) -> Self {
        Self(desk)
    }

    /// The readiness report, which every caller may have. `caller`: restricts it to what they may read.
    pub(super) fn readiness(&self, caller: Option<&Caller>) -> Report {
        caller.map_or_else(|| self.0.readiness(), |caller| self.0.of(caller).readiness())
    }
}

/// The caller of a request, and the desk restricted to the caller's queues.
pub(super) struct Scoped {
    pub(super) desk: Desk,
    pub(super) caller: Caller,
}

impl FromRequestParts<Api> for Scoped {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refusal> {
        // The shell puts the caller there, except on routes that are open to all.
        let unauthenticated =
            || internal::problem(Origin::Request, None, "the request was not authenticated; nothing was changed");
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(unauthenticated)?;
        Ok(Self { desk: api.desk.0.of(&caller), caller })
    }
}
