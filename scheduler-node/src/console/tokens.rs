//! The page of tokens: list, create, revoke.

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Role,
    time::UnixMicros,
    wire::{
        Problem, TokenList, TokenPage, TokenRequest, TokenView,
        token::{LimitsRequest, TokenSource},
    },
};

use super::{
    browser::parameter,
    extract::PostedForm,
    format::{When, when},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};
use crate::http::AuditDetails;

/// Tokens on one page.
const PAGE: u32 = 100;
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

#[derive(Template)]
#[template(path = "tokens.html")]
struct TokensPage {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    /// A new token: its name and its secret, shown this once.
    made: Option<(String, String)>,
    /// The reason why a page with a new token lists no others.
    unlisted: Option<String>,
    /// The roles that the form offers.
    roles: [Role; 7],
}

struct Row {
    id: String,
    name: String,
    role: Role,
    queues: String,
    limits: String,
    configured: bool,
    created: Option<(When, String)>,
    expires: Option<When>,
    revoked: Option<(When, String)>,
}

pub(super) async fn list(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    page(&visitor, parameter(&uri, "cursor"), None).await
}

/// Only the answer to the form that created a token shows its secret, so there is no redirect.
pub(super) async fn act(posted: PostedForm) -> Result<Response, PageProblem> {
    let visitor = &posted.visitor;
    let action = posted.field("action").unwrap_or_default();
    let name = posted.field("name").unwrap_or_default().trim();
    let done = match action {
        "create" => create(&posted, name).await,
        "revoke" => revoke(&posted, name).await,
        _ => Err(Problem::invalid_field("action", "choose an action: create or revoke")),
    };
    let granted =
        done.as_ref().ok().filter(|_| action == "create").and_then(|made| AuditDetails::of_token(made).detail);
    posted.record(name, done.as_ref().map(|_| granted.as_deref().unwrap_or("done")));
    let view = done.map_err(|problem| PageProblem::at(visitor, problem))?;
    match view.token {
        Some(token) => page(visitor, None, Some((view.name, token))).await,
        None => Ok(Redirect::to("/console/tokens").into_response()),
    }
}

async fn create(posted: &PostedForm, name: &str) -> Result<TokenView, Problem> {
    let role = posted.field("role").and_then(Role::parse);
    let days = match posted.field("days") {
        Some(text) => Some(text.trim().parse::<i64>().map_err(|_| not_days())?),
        None => None,
    };
    let names = posted.field("queues").unwrap_or_default().split(',').map(|name| name.trim().to_owned());
    let queues: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    let request = TokenRequest {
        name: name.to_owned(),
        role: role.ok_or_else(|| Problem::invalid_field("role", "choose a role"))?,
        queues: (!queues.is_empty()).then_some(queues),
        expires_at: None,
        expires_after_ms: days.map(|days| days.checked_mul(DAY_MS).ok_or_else(not_days)).transpose()?,
        limits: limits(posted)?,
    };
    posted.visitor.desk.token_add(request, &posted.visitor.caller.name).await
}

/// Revokes the token that the page showed. A page of a node of an earlier version tells only its name.
async fn revoke(posted: &PostedForm, name: &str) -> Result<TokenView, Problem> {
    let Visitor { desk, caller, .. } = &posted.visitor;
    match posted.field("id").map(str::parse::<i64>) {
        Some(Ok(id)) => desk.token_revoke_seen(id, name, &caller.name).await,
        Some(Err(_)) => Err(Problem::invalid_field("id", "this is not the id of a token")),
        None => desk.token_revoke(name, &caller.name).await,
    }
}

/// Reads the limits; an empty field means no limit.
fn limits(posted: &PostedForm) -> Result<LimitsRequest, Problem> {
    let number = |field: &'static str| match posted.field(field) {
        Some(text) => match text.trim().parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Problem::invalid_field(field, "a limit must be a whole number")),
        },
        None => Ok(None),
    };
    let rate = number("limits.requests_per_second")?;
    Ok(LimitsRequest {
        requests_per_second: rate.map(|rate| u32::try_from(rate).unwrap_or(u32::MAX)),
        pending: number("limits.pending")?,
        pending_bytes: number("limits.pending_bytes")?,
        queues: number("limits.queues")?,
        schedules: number("limits.schedules")?,
    })
}

fn not_days() -> Problem {
    Problem::invalid_field("days", "a token's expiry must be a whole number of days from now")
}

async fn page(
    visitor: &Visitor,
    cursor: Option<String>,
    made: Option<(String, String)>,
) -> Result<Response, PageProblem> {
    let as_page = |problem| PageProblem::at(visitor, problem);
    let cursor = cursor.map(|text| serde_json::from_value(text.into())).transpose();
    let cursor = cursor.map_err(|error| as_page(Problem::invalid_field("cursor", error.to_string())))?;
    let listed = visitor.desk.token_list(TokenPage { limit: Some(PAGE), cursor }).await;
    let (listed, unlisted) = match (listed, &made) {
        (Ok(listed), _) => (listed, None),
        // The token is stored and its secret is not, so an error page would lose it.
        (Err(problem), Some(_)) => (TokenList { tokens: Vec::new(), next_cursor: None }, Some(problem.detail)),
        (Err(problem), None) => return Err(as_page(problem)),
    };
    let now = visitor.desk.now();
    let page = TokensPage {
        frame: Frame::new("Tokens", visitor),
        rows: listed.tokens.into_iter().map(|view| row(view, now)).collect(),
        next: listed.next_cursor.map(|cursor| format!("/console/tokens?cursor={}", cursor.0)),
        made,
        unlisted,
        roles: Role::ALL,
    };
    Ok(show(StatusCode::OK, &page))
}

fn row(view: TokenView, now: UnixMicros) -> Row {
    let by = |name: Option<String>| name.unwrap_or_default();
    Row {
        id: view.id.map_or_else(|| "–".to_owned(), |id| id.to_string()),
        name: view.name,
        role: view.role,
        queues: view.queues.map_or_else(|| "all".to_owned(), |queues| queues.join(", ")),
        limits: view.limits.unwrap_or_default().to_string(),
        configured: view.source == TokenSource::Configuration,
        created: view.created_at.map(|at| (when(at, now), by(view.created_by))),
        expires: view.expires_at.map(|at| when(at, now)),
        revoked: view.revoked_at.map(|at| (when(at, now), by(view.revoked_by))),
    }
}
