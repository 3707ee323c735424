//! What a handler takes from a request: the visitor, and the form that they sent.
//!
//! A form is accepted only from a page of this console: the browser states the page's origin, and the form carries a
//! token that only a page made for this session has.

use std::{borrow::Cow, sync::Arc, time::Instant};

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::request::Parts,
    response::{IntoResponse, Redirect, Response},
};
use common::wire::Problem;
use subtle::ConstantTimeEq;

use super::{
    Console,
    browser::{Theme, is_from_here, sign_in_url},
    frame::{Frame, PageProblem},
    visitor::{Visitor, matched},
};
use crate::{
    http::{Reservation, Route, STRANGERS_DRAIN_BYTES, drain_request},
    internal::{self, Origin},
};

/// The field of every form that carries the form token.
const FORM_TOKEN: &str = "form_token";

/// The largest form without a [`FormLimit`] of its own is a page of selected ids with a filter.
const FORM_BYTES: usize = 64 << 10;

/// The limit of a route whose form may be larger, in the route's extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormLimit(pub(super) usize);

/// The path that has no rate: a person may always leave.
const SIGN_OUT: &str = "/console/sign-out";

/// The visitor of any path, whatever they may see, within their rate. Without a session, leads to the sign-in page.
fn signed_in(parts: &Parts, console: &Console) -> Result<Visitor, Response> {
    match Visitor::of(parts, console) {
        Ok(Some(visitor)) if parts.uri.path() == SIGN_OUT => Ok(visitor),
        Ok(Some(visitor)) => {
            let rate = console.shares.check_rate(&visitor.caller, Instant::now());
            match rate.and_then(|()| console.shares.check_answers(&visitor.caller)) {
                Ok(()) => Ok(visitor),
                Err(problem) => Err(PageProblem::at(&visitor, problem).into_response()),
            }
        }
        Ok(None) => {
            // The content of a form is lost, so the person returns to the page where they can start again.
            let here =
                parts.uri.path_and_query().filter(|_| parts.method.is_safe()).map_or("/console", |at| at.as_str());
            Err(Redirect::to(&sign_in_url(here)).into_response())
        }
        Err(problem) => {
            let frame = Frame::outside(problem.title.to_string(), Theme::of(&parts.headers));
            Err(PageProblem::outside(frame, problem).into_response())
        }
    }
}

impl FromRequestParts<Console> for &'static Route {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _console: &Console) -> Result<Self, Response> {
        matched(parts).ok_or_else(|| {
            let problem = internal::problem(Origin::Request, None, "this route is not in the console's table");
            let frame = Frame::outside(problem.title.to_string(), Theme::of(&parts.headers));
            PageProblem::outside(frame, problem).into_response()
        })
    }
}

impl FromRequestParts<Console> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        let visitor = signed_in(parts, console)?;
        visitor.check_permission().map_err(|problem| PageProblem::at(&visitor, problem).into_response())?;
        Ok(visitor)
    }
}

/// A visitor of a path that the table does not list. They may have any role.
pub(super) struct AnyVisitor(pub(super) Visitor);

impl FromRequestParts<Console> for AnyVisitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        signed_in(parts, console).map(Self)
    }
}

/// A form that came from a page of this console, sent by a visitor with the permission of its route.
#[derive(Debug)]
pub(super) struct PostedForm {
    pub(super) visitor: Visitor,
    fields: Vec<(String, String)>,
    /// The memory of the fields, until the form is answered.
    _reserved: Reservation,
}

impl PostedForm {
    /// The field, when it is present and not empty.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, text)| field == name && !text.is_empty()).map(|(_, text)| text.as_str())
    }

    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(field, _)| field == name).map(|(_, text)| text.as_str())
    }

    pub(super) fn fields(&self) -> &[(String, String)] {
        &self.fields
    }

    /// Records in the audit log what the form did.
    pub(super) fn record(&self, target: &str, outcome: Result<&str, &Problem>) {
        self.visitor.actor().record(self.field("action"), target, outcome);
    }
}

/// The visitor who sent a form, as far as its head tells.
fn sender(parts: &Parts, console: &Console) -> Result<Visitor, Response> {
    let visitor = signed_in(parts, console)?;
    let checked = if is_from_here(&parts.headers, &parts.uri) {
        visitor.check_permission()
    } else {
        Err(Problem::forbidden("the form was not sent by a page of this console"))
    };
    checked.map_err(|problem| PageProblem::at(&visitor, problem).into_response())?;
    Ok(visitor)
}

impl FromRequest<Console> for PostedForm {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Console) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let visitor = match sender(&parts, console) {
            Ok(visitor) => visitor,
            Err(refusal) => {
                drain_request(Request::from_parts(parts, body), STRANGERS_DRAIN_BYTES).await;
                return Err(refusal);
            }
        };
        let refuse = |problem: Problem| PageProblem::at(&visitor, problem).into_response();
        let limit_bytes = parts.extensions.get::<FormLimit>().map_or(FORM_BYTES, |limit| limit.0);
        let form = console.shares.body(parts, body, Arc::clone(&visitor.caller.name));
        let form = form.form(limit_bytes).await.map_err(refuse)?;
        // Browsers send each line break as CR LF.
        let field = |(name, text): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), text.replace("\r\n", "\n"));
        let fields: Vec<_> = form_urlencoded::parse(form.as_str().as_bytes()).map(field).collect();
        let sent = fields.iter().find(|(name, _)| name == FORM_TOKEN).map_or("", |(_, token)| token.as_str());
        if !bool::from(sent.as_bytes().ct_eq(visitor.form_token.as_bytes())) {
            return Err(refuse(Problem::forbidden(
                "the form belongs to another session; go back, reload the page and send it again",
            )));
        }
        Ok(Self { visitor, fields, _reserved: form.into_reserved() })
    }
}
