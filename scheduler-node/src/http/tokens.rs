//! Tokens: create, list, revoke.

use axum::{
    Extension, Json,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use common::wire::{TokenList, TokenRequest, TokenView};

use super::{AROUND_PAYLOAD_BYTES, Asked, Named, audit::AuditDetails, body::Sent, query, refusal::Refusal};

pub(super) async fn add(asked: Asked, sent: Sent) -> Result<Response, Refusal> {
    let text = sent.text(AROUND_PAYLOAD_BYTES).await?;
    let made = asked.desk.token_add(TokenRequest::parse(text.as_str())?, &asked.caller.name).await?;
    let queues = made.queues.as_ref().map_or_else(|| "all queues".to_owned(), |queues| queues.join(", "));
    let details = AuditDetails { target: made.name.clone(), detail: Some(format!("{}, {queues}", made.role)) };
    Ok((StatusCode::CREATED, Extension(details), Json(made)).into_response())
}

pub(super) async fn list(asked: Asked, uri: Uri) -> Result<Json<TokenList>, Refusal> {
    Ok(Json(asked.desk.token_list(query::token_page(&uri)?).await?))
}

pub(super) async fn revoke(asked: Asked, Named(name): Named) -> Result<Json<TokenView>, Refusal> {
    Ok(Json(asked.desk.token_revoke(&name, &asked.caller.name).await?))
}
