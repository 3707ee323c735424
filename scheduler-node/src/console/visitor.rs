//! Authenticates a browser: by a token's session ([`super::session`]) or by an identity provider's ([`oidc`]). Either
//! way the browser keeps the session, sealed. Every node can open it and none stores it.
//!
//! A form is accepted only from a page of this console: the browser states the page's origin, and the form carries a
//! token that only a page made for this session has.

use std::net::SocketAddr;

use axum::{
    Extension,
    extract::{ConnectInfo, Form, FromRequest, FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::{access::Permission, wire::Problem};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::{
    Console, ROUTES,
    actor::Actor,
    form::parameter,
    frame::{Frame, PageProblem, SignInPage, Theme, cookie, show},
    oidc,
    session::SESSION_S,
    task_query::FILTERS,
};
use crate::{
    clock,
    desk::Desk,
    http::{Caller, Requirement, Route},
    internal::{self, Origin},
};

/// The cookie of a sealed session. Its value begins with a prefix that names the kind.
pub(super) const SESSION: &str = "duetime_session";

/// The prefix of a session that the identity provider opened.
pub(super) const BY_PROVIDER: &str = "oidc.";

/// The prefix of a session that a token opened.
pub(super) const BY_TOKEN: &str = "token.";

/// The field of every form that carries the form token.
const FORM_TOKEN: &str = "form_token";

/// Mixed into the form token, so that it serves no other purpose.
const FORM_PURPOSE: &[u8] = b"duetime console form";

/// The person who requests a page.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    pub(super) caller: Caller,
    /// The desk, restricted to this caller.
    pub(super) desk: Desk,
    /// The visitor has a session, so signing out is offered.
    pub(super) signed_in: bool,
    pub(super) form_token: String,
    pub(super) theme: Theme,
    /// The path and query of the request.
    pub(super) here: String,
    /// The address of the client, if known.
    pub(super) from: Option<SocketAddr>,
    /// The line of the table that matched; `None` for a path that the table does not list.
    route: Option<&'static Route>,
}

impl Visitor {
    pub(super) fn may(&self, needed: Permission) -> bool {
        self.caller.may(needed)
    }

    /// Refuses a visitor without the permission that the route needs.
    fn check_permission(&self) -> Result<(), PageProblem> {
        let Some(needed) = needed(self.route).filter(|needed| !self.may(*needed)) else { return Ok(()) };
        let detail = format!("this page needs the role {}; your role is {}", needed.roles(), self.caller.role);
        Err(PageProblem::at(self, Problem::forbidden(detail)))
    }

    /// The list filters that the visitor may use: a filter by error text needs the permission to read data.
    pub(super) fn filters(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let may = self.may(Permission::Payloads);
        FILTERS.iter().filter(move |(name, _)| may || *name != "error")
    }

    /// Records in the audit log what the visitor saw or took along.
    pub(super) fn record(&self, target: &str, outcome: Result<&str, &Problem>) {
        self.actor().record(None, target, outcome);
    }

    fn actor(&self) -> Actor<'_> {
        Actor { desk: &self.desk, caller: &self.caller, from: self.from, route: self.route }
    }

    /// `None`: there is no session, or its role does not open the console.
    fn of(parts: &Parts, console: &Console) -> Result<Option<Self>, Problem> {
        let (caller, session) = match (console.authenticator.anonymous(), cookie(&parts.headers, SESSION)) {
            (Some(anonymous), _) => (anonymous, ""),
            (None, None) => return Ok(None),
            (None, Some(session)) => match session_caller(console, session)? {
                Some(caller) => (caller, session),
                None => return Ok(None),
            },
        };
        if !caller.may(Permission::Look) {
            return Ok(None);
        }
        Ok(Some(Self {
            desk: console.desk.of(&caller),
            caller,
            signed_in: !session.is_empty(),
            form_token: form_token(session.as_bytes()),
            theme: Theme::of(&parts.headers),
            here: parts.uri.path_and_query().map_or("/console", |path| path.as_str()).to_owned(),
            from: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(from)| *from),
            route: matched(parts),
        }))
    }

    /// The visitor of any path, whatever they may see. Without a session, leads to the sign-in page.
    fn signed_in(parts: &Parts, console: &Console) -> Result<Self, Response> {
        match Self::of(parts, console) {
            Ok(Some(visitor)) => Ok(visitor),
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
}

/// The line of the table that matched.
fn matched(parts: &Parts) -> Option<&'static Route> {
    let path = parts.extensions.get::<MatchedPath>()?;
    Route::serving(ROUTES, &parts.method, path.as_str())
}

/// The permission that a page or a form needs. An unlisted route needs the rarest one, so that a forgotten route is
/// closed.
fn needed(route: Option<&Route>) -> Option<Permission> {
    match route.map(|route| route.requirement) {
        Some(Requirement::May(permission)) => Some(permission),
        Some(Requirement::Open | Requirement::AnyToken) => None,
        None => Some(Permission::Operate),
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
        let visitor = Self::signed_in(parts, console)?;
        visitor.check_permission().map_err(IntoResponse::into_response)?;
        Ok(visitor)
    }
}

/// A visitor of a path that the table does not list. They may have any role.
pub(super) struct AnyVisitor(pub(super) Visitor);

impl FromRequestParts<Console> for AnyVisitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        Visitor::signed_in(parts, console).map(Self)
    }
}

/// A form that came from a page of this console, sent by a visitor with the permission of its route.
#[derive(Debug)]
pub(super) struct PostedForm {
    pub(super) visitor: Visitor,
    fields: Vec<(String, String)>,
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

impl FromRequest<Console> for PostedForm {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Console) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let visitor = Visitor::signed_in(&parts, console)?;
        let refuse = |problem: Problem| PageProblem::at(&visitor, problem).into_response();
        if !is_from_here(&parts.headers) {
            return Err(refuse(Problem::forbidden("the form was not sent by a page of this console")));
        }
        visitor.check_permission().map_err(IntoResponse::into_response)?;
        let read = Form::<Vec<(String, String)>>::from_request(Request::from_parts(parts, body), console).await;
        let Form(fields) = read.map_err(|error| refuse(Problem::malformed(error.body_text())))?;
        let sent = fields.iter().find(|(name, _)| name == FORM_TOKEN).map_or("", |(_, token)| token.as_str());
        if !bool::from(sent.as_bytes().ct_eq(visitor.form_token.as_bytes())) {
            return Err(refuse(Problem::forbidden(
                "the form belongs to another session; go back, reload the page and send it again",
            )));
        }
        Ok(Self { visitor, fields })
    }
}

/// Whether the browser states that a page of this very origin sent the form. A client that states nothing is no
/// current browser.
pub(super) fn is_from_here(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, host)| Some(host) == text(header::HOST))
}

/// The form token of a session. Without tokens it is the same for all sessions; then only the browser's statement of
/// the origin protects.
fn form_token(key: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(FORM_PURPOSE);
    URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}

/// The caller of a session. The authenticator checks a token at every request, so revoking the token ends its
/// session.
fn session_caller(console: &Console, session: &str) -> Result<Option<Caller>, Problem> {
    if let Some(sealed) = session.strip_prefix(BY_PROVIDER) {
        return Ok(console.oidc.as_ref().and_then(|provider| provider.caller(sealed, clock::now())));
    }
    let Some(sealed) = session.strip_prefix(BY_TOKEN) else { return Ok(None) };
    let token = console.sessions.open(sealed, clock::now())?;
    Ok(token.and_then(|token| console.authenticator.caller(token.as_bytes())))
}

pub(super) fn sign_in_url(next: &str) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", next).finish();
    format!("/console/sign-in?{query}")
}

/// The path to open after signing in: never one of another site.
pub(super) fn safe_next(next: Option<&str>) -> &str {
    next.filter(|next| {
        let ours = *next == "/console" || next.starts_with("/console/") || next.starts_with("/console?");
        ours && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    })
    .unwrap_or("/console")
}

/// The path to open after signing in, from the query of the sign-in page.
pub(super) fn next_of(uri: &Uri) -> String {
    safe_next(parameter(uri, "next").as_deref()).to_owned()
}

pub(super) async fn sign_in_page(State(console): State<Console>, headers: HeaderMap, uri: Uri) -> Response {
    let next = next_of(&uri);
    if console.authenticator.anonymous().is_some() {
        return Redirect::to(&next).into_response();
    }
    ask(&console, &headers, &next, StatusCode::OK, None)
}

/// The sign-in page with the reason of the failure, where the person may try again.
pub(super) fn not_signed_in(console: &Console, headers: &HeaderMap, next: &str, problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    ask(console, headers, next, status, Some(problem.detail.clone()))
}

fn ask(console: &Console, headers: &HeaderMap, next: &str, status: StatusCode, trouble: Option<String>) -> Response {
    let frame = Frame::outside("Sign in", Theme::of(headers));
    let provider = console.oidc.as_ref().map(|provider| (provider.name().to_owned(), oidc::begin_url(next)));
    show(status, &SignInPage { frame, next: next.to_owned(), trouble, provider })
}

#[derive(Debug, serde::Deserialize)]
pub(super) struct SignIn {
    token: String,
    next: Option<String>,
}

pub(super) async fn sign_in(
    State(console): State<Console>,
    route: &'static Route,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    Form(form): Form<SignIn>,
) -> Response {
    let from = from.map(|Extension(from)| from);
    if !is_from_here(&headers) {
        let frame = Frame::outside("Sign in", Theme::of(&headers));
        return PageProblem::outside(frame, Problem::forbidden("the form was not sent by a page of this console"))
            .into_response();
    }
    let (token, next) = (form.token.trim(), safe_next(form.next.as_deref()));
    let Some(caller) = console.authenticator.caller(token.as_bytes()) else {
        let trouble = "The token is unknown, revoked or expired.".to_owned();
        return ask(&console, &headers, next, StatusCode::UNAUTHORIZED, Some(trouble));
    };
    let from = from.map(|ConnectInfo(from)| from);
    let actor = Actor { desk: &console.desk, caller: &caller, from, route: Some(route) };
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

/// Redirects and sets the cookie; over https it is marked `Secure`, so that the browser never sends it in the clear.
fn with_cookie(headers: &HeaderMap, redirect: Redirect, pair: &str) -> Response {
    let says = |name: &str, start: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(start))
    };
    let cookie = cookie_value(pair, "Strict", says("origin", "https://") || says("x-forwarded-proto", "https"));
    ([(header::SET_COOKIE, cookie)], redirect).into_response()
}

/// The attributes of a cookie that scripts cannot read.
pub(super) fn cookie_value(pair: &str, same_site: &str, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{pair}; Path=/console; HttpOnly; SameSite={same_site}{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Audited;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_form_is_taken_from_a_page_of_this_origin_and_no_other() {
        for (sent, taken) in [
            (vec![("sec-fetch-site", "same-origin")], true),
            (vec![("sec-fetch-site", "same-site")], false),
            (vec![("sec-fetch-site", "cross-site"), ("origin", "http://a:1"), ("host", "a:1")], false),
            (vec![("sec-fetch-site", "none")], false),
            (vec![("origin", "http://a:1"), ("host", "a:1")], true),
            (vec![("origin", "http://a:2"), ("host", "a:1")], false),
            (vec![("origin", "null"), ("host", "a:1")], false),
            (vec![("host", "a:1")], false),
        ] {
            assert_eq!(is_from_here(&headers(&sent)), taken, "{sent:?}");
        }
    }

    #[test]
    fn nobody_is_sent_to_another_site() {
        for next in ["/console", "/console/tasks?state=dead&queue=a", "/console?x=1"] {
            assert_eq!(safe_next(Some(next)), next);
        }
        for next in ["//evil", "https://evil", "/consoles", "/v1/tasks", "/console/\\evil", "/console/a\r\nb", ""] {
            assert_eq!(safe_next(Some(next)), "/console", "{next:?}");
        }
    }

    #[test]
    fn a_form_token_is_of_its_session() {
        assert_eq!(form_token(b"a"), form_token(b"a"));
        assert_ne!(form_token(b"a"), form_token(b"b"));
    }

    #[test]
    fn each_form_and_page_needs_its_permission_and_an_unlisted_one_an_operator() {
        assert_eq!(needed(None), Some(Permission::Operate));
        for route in ROUTES {
            let changes = route.method == "POST";
            let expected = match route.path {
                path if path == "/" || path.starts_with("/console/sign-in") || path.contains("/assets/") => None,
                "/console/sign-out" | "/console/theme" => Some(Permission::Look),
                "/console/audit" | "/console/tokens" => Some(Permission::Operate),
                path if path.ends_with("/delete") => Some(Permission::Operate),
                path if changes && path.starts_with("/console/tasks") => Some(Permission::Change),
                _ if changes => Some(Permission::Operate),
                _ => Some(Permission::Look),
            };
            assert_eq!(needed(Some(route)), expected, "{} {}", route.method, route.path);
        }
    }

    #[test]
    fn the_audit_log_has_a_name_for_every_form_but_the_theme() {
        for route in ROUTES.iter().filter(|route| route.method == "POST") {
            assert_eq!(route.audited == Audited::No, route.path == "/console/theme", "{}", route.path);
        }
    }

    #[test]
    fn the_cookie_is_kept_from_scripts_other_sites_and_the_clear() {
        let cookie = |sent: &[(&'static str, &'static str)]| {
            let response = with_cookie(&headers(sent), Redirect::to("/console"), "a=b");
            response.headers()[header::SET_COOKIE].to_str().expect("text").to_owned()
        };
        assert_eq!(cookie(&[]), "a=b; Path=/console; HttpOnly; SameSite=Strict");
        assert!(cookie(&[("origin", "https://x")]).ends_with("; Secure"));
        assert!(cookie(&[("x-forwarded-proto", "https")]).ends_with("; Secure"));
    }
}
