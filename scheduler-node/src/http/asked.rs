//! The desk as whoever asks may use it. Handlers get it from here and from nowhere else, so that none forgets who asks.

use axum::{extract::FromRequestParts, http::request::Parts};
use common::access::Caller;

use super::{Api, refusal::Refusal};
use crate::{
    desk::Desk,
    internal::{self, Origin},
    readiness::Report,
};

/// The desk behind the gate.
#[derive(Clone)]
pub(super) struct Front(Desk);

impl Front {
    pub(super) fn new(desk: Desk) -> Self {
        Self(desk)
    }

    /// For everybody.
    pub(super) fn readiness(&self) -> Report {
        self.0.readiness()
    }
}

/// Who asks, and the desk within what he may know of.
pub(super) struct Asked {
    pub(super) desk: Desk,
    pub(super) caller: Caller,
}

impl FromRequestParts<Api> for Asked {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refusal> {
        // The shell puts him there, except on routes that are for everybody.
        let nobody =
            || internal::problem(Origin::Request, None, "the request was not authenticated, and nothing was done");
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(nobody)?;
        Ok(Self { desk: api.front.0.of(&caller), caller })
    }
}
