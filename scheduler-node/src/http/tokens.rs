//! Tokens: create, list, revoke.

use axum::{
    Extension, Json,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use common::wire::{TokenList, TokenRequest, TokenView};

use super::{
    AROUND_PAYLOAD_BYTES, PathPart, Scoped,
    audit::AuditDetails,
    extract::{BodyAlone, NoInput},
    query,
    refusal::Refusal,
};

pub(super) async fn add(scoped: Scoped, BodyAlone(body): BodyAlone) -> Result<Response, Refusal> {
    let text = body.text(AROUND_PAYLOAD_BYTES).await?;
    let made = scoped.desk.token_add(TokenRequest::parse(text.as_str())?, &scoped.caller.name).await?;
    Ok((StatusCode::CREATED, Extension(AuditDetails::of_token(&made)), Json(made)).into_response())
}

pub(super) async fn list(scoped: Scoped, uri: Uri) -> Result<Json<TokenList>, Refusal> {
    Ok(Json(scoped.desk.token_list(query::token_page(&uri)?).await?))
}

pub(super) async fn revoke(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<TokenView>, Refusal> {
    Ok(Json(scoped.desk.token_revoke(&name, &scoped.caller.name).await?))
}
