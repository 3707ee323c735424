//! Signing in with a token, and signing out.

use std::{net::SocketAddr, time::Instant};

use askama::Template;
use axum::{
    Extension,
    body::Body,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use common::{access::Permission, wire::Problem};

use super::{
    Console,
    actor::Actor,
    browser::{
        BY_TOKEN, SESSION, Theme, is_from_another_site, is_from_here, next_of, parameter, safe_next, sign_in_url,
        with_cookie,
    },
    extract::PostedForm,
    frame::{Frame, PageProblem, show, with_retry_after},
    session::SESSION_S,
    visitor::Visitor,
};
use crate::{
    clock,
    http::{PageNote, Route},
};

/// A token takes a fraction of it; the rest is for the path to return to.
const SIGN_IN_BYTES: usize = 8 << 10;

/// Marks a URL of the sign-in to which this console has led itself, so that it does so once.
pub(super) const FROM_HERE: &str = "from_here";

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    frame: Frame,
    next: String,
    /// Why the last sign-in failed.
    trouble: Option<String>,
    /// The identity provider's name, and the URL where signing in with it begins.
    provider: Option<(String, String)>,
}

/// The URL where signing in with the provider begins.
pub(super) fn begin_url(next: &str) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", next).finish();
    format!("/console/sign-in/oidc?{query}")
}

/// A visitor with a session needs no form. A link on another site brings no session, because its cookie is `Strict`.
/// So such a visitor first gets a page that leads here again: that request comes from this origin. It happens once, as
/// the URL says, even for a browser that names the other site again.
pub(super) async fn sign_in_page(State(console): State<Console>, parts: Parts) -> Response {
    let (headers, next) = (&parts.headers, next_of(&parts.uri));
    match Visitor::of(&parts, &console) {
        Ok(Some(_)) => Redirect::to(&next).into_response(),
        Ok(None) if is_from_another_site(headers) && parameter(&parts.uri, FROM_HERE).is_none() => {
            onward("The console", headers, &format!("{}&{FROM_HERE}=yes", sign_in_url(&next)))
        }
        Ok(None) => ask(&console, headers, &next, StatusCode::OK, None),
        Err(problem) => not_signed_in(&console, headers, &next, &problem),
    }
}

#[derive(Template)]
#[template(path = "onward.html")]
struct OnwardPage<'a> {
    frame: Frame,
    next: &'a str,
}

/// A page that leads on to `next` without a redirect, which would be a request of the site that led here.
pub(super) fn onward(title: &str, headers: &HeaderMap, next: &str) -> Response {
    let page = OnwardPage { frame: Frame::outside(title, Theme::of(headers)), next };
    ([(header::REFRESH, format!("0; url={next}"))], show(StatusCode::OK, &page)).into_response()
}

/// The sign-in page with the reason of the failure, where the person may try again.
pub(super) fn not_signed_in(console: &Console, headers: &HeaderMap, next: &str, problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let page = ask(console, headers, next, status, Some(problem.detail.clone()));
    with_retry_after(page, problem.retry_after_s)
}

fn ask(console: &Console, headers: &HeaderMap, next: &str, status: StatusCode, trouble: Option<String>) -> Response {
    let frame = Frame::outside("Sign in", Theme::of(headers));
    let provider = console.oidc.as_ref().map(|provider| (provider.name().to_owned(), begin_url(next)));
    show(status, &SignInPage { frame, next: next.to_owned(), trouble, provider })
}

pub(super) async fn sign_in(
    State(console): State<Console>,
    route: &'static Route,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    Extension(note): Extension<PageNote>,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Response {
    let from = from.map(|Extension(ConnectInfo(from))| from);
    if !is_from_here(&headers, &uri) {
        let frame = Frame::outside("Sign in", Theme::of(&headers));
        return PageProblem::outside(frame, Problem::forbidden("the form was not sent by a page of this console"))
            .into_response();
    }
    let form = console.shares.sign_in(headers.clone(), body, from.map(|from| from.ip()));
    let form = match form.form(SIGN_IN_BYTES).await {
        Ok(form) => form,
        Err(problem) => return not_signed_in(&console, &headers, "/console", &problem),
    };
    let field = |name: &str| {
        let mut fields = form_urlencoded::parse(form.as_str().as_bytes());
        fields.find(|(field, _)| field == name).map(|(_, text)| text.into_owned())
    };
    let (token, next) = (field("token").unwrap_or_default(), field("next"));
    let (token, next) = (token.trim(), safe_next(next.as_deref()));
    let caller = match console.authenticator.caller(token.as_bytes()) {
        Ok(Some(caller)) => caller,
        Ok(None) => {
            let trouble = "The token is unknown, revoked or expired.".to_owned();
            return ask(&console, &headers, next, StatusCode::UNAUTHORIZED, Some(trouble));
        }
        Err(problem) => return not_signed_in(&console, &headers, next, &problem),
    };
    if let Err(problem) = console.shares.check_rate(&caller, Instant::now()) {
        return not_signed_in(&console, &headers, next, &problem);
    }
    let actor = Actor { desk: &console.desk, caller: &caller, from, route: Some(route), note: &note };
    if !caller.may(Permission::Look) {
        let problem = Problem::forbidden(format!(
            "the console needs a token with the role {}; this one has the role {}",
            Permission::Look.roles(),
            caller.role
        ));
        actor.record(None, "console", Err(&problem));
        return not_signed_in(&console, &headers, next, &problem);
    }
    let sealed = match console.sessions.close(token, clock::now()) {
        Ok(sealed) => sealed,
        Err(problem) => return not_signed_in(&console, &headers, next, &problem),
    };
    actor.record(None, "console", Ok("signed in"));
    with_cookie(&headers, Redirect::to(next), &format!("{SESSION}={BY_TOKEN}{sealed}; Max-Age={SESSION_S}"))
}

pub(super) async fn sign_out(headers: HeaderMap, posted: PostedForm) -> Response {
    posted.record("console", Ok("signed out"));
    with_cookie(&headers, Redirect::to("/console/sign-in"), &format!("{SESSION}=; Max-Age=0"))
}
