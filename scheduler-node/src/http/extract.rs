//! Refuses input that a route does not take. Its sender expects an effect that it would not have, so the problem names
//! the first parameter or field.

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::request::Parts,
};
use common::wire::read;
use serde::Deserialize;

use super::{
    AROUND_PAYLOAD_BYTES, Api,
    body::{DRAIN_BYTES, UnreadBody, drain_request},
    query,
    refusal::Refusal,
};

/// A query or an object that may be there without a name in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// No parameters. For reads: the body of a GET has no meaning and is not read.
pub(super) struct NoQuery;

/// A body, and no parameters beside it.
pub(super) struct BodyAlone(pub(super) UnreadBody);

/// A body without fields: none, `{}`, or `null`, which some clients send for none.
pub(super) struct NoFields;

/// Neither parameters nor fields: the path says all.
pub(super) struct NoInput;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Nothing {} = query::parameters(&parts.uri)?;
        Ok(Self)
    }
}

/// Refuses parameters, with the body drained: a client that is still sending it would not see the answer.
pub(super) async fn without_query(request: Request) -> Result<Request, Refusal> {
    let read = query::parameters::<Nothing>(request.uri());
    let Err(problem) = read else { return Ok(request) };
    drain_request(request, DRAIN_BYTES).await;
    Err(problem.into())
}

impl FromRequest<Api> for BodyAlone {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        UnreadBody::from_request(without_query(request).await?, api).await.map(Self)
    }
}

impl FromRequest<Api> for NoFields {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        // Some clients name a type although they send no body.
        if let Some(body) = UnreadBody::from_request(request, api).await?.not_empty().await {
            let text = body.text(AROUND_PAYLOAD_BYTES).await?;
            let _: Option<Nothing> = read::object(text.or_empty_object())?;
        }
        Ok(Self)
    }
}

impl FromRequest<Api> for NoInput {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        let NoFields = NoFields::from_request(without_query(request).await?, api).await?;
        Ok(Self)
    }
}
