//! Signing in with an identity provider: the redirect to it, and the way back.
//!
//! Another site causes the request of the way back, so the browser sends only a cookie without `SameSite=Strict`. The
//! cookie of the flow identifies the browser that began: it lives for minutes, is sealed, and opens nothing. The
//! session's own cookie stays strict. That is why the way back ends with a page of this console that leads on, and
//! not with a redirect.

use std::net::SocketAddr;

use axum::{
    Extension,
    extract::{ConnectInfo, State},
    http::{HeaderMap, HeaderValue, Uri, header, uri::Authority},
    response::{AppendHeaders, IntoResponse, Redirect, Response},
};
use common::{
    access::{Caller, Role, Scope},
    limit::TokenLimits,
};

use super::{
    Console,
    actor::Actor,
    browser::{BY_PROVIDER, SESSION, cookie, cookie_value, next_of, parameter, sign_in_url},
    sign_in::{FROM_HERE, begin_url, not_signed_in, onward},
};
use crate::{
    clock,
    http::{PageNote, Route, authority},
    oidc::{Provider, Refusal, Returned, SIGN_IN_S, SignedIn},
};

/// The cookie that identifies the browser that began the sign-in.
const FLOW: &str = "duetime_sign_in";

/// The longest path to return to that fits into that cookie with the rest. A longer one is replaced by the overview.
const NEXT_BYTES: usize = 2_000;

/// Begins a sign-in. The provider sends the browser back to the configured host, where it has the cookies of that host
/// alone. So a browser at another host is led there first: once, because a proxy in front may name another host always.
pub(super) async fn begin(State(console): State<Console>, headers: HeaderMap, uri: Uri) -> Response {
    let next = next_of(&uri);
    let Some(provider) = &console.oidc else { return Redirect::to(&sign_in_url(&next)).into_response() };
    let next = if next.len() > NEXT_BYTES { "/console" } else { next.as_str() };
    let origin = provider.console_origin();
    if parameter(&uri, FROM_HERE).is_none() && is_at_another_host(authority(&headers, &uri), origin) {
        return Redirect::to(&format!("{origin}{}&{FROM_HERE}=yes", begin_url(next))).into_response();
    }
    match provider.begin(next, clock::now()).await {
        Ok(begun) => {
            let flow =
                cookie_value(&format!("{FLOW}={}; Max-Age={SIGN_IN_S}", begun.flow), "Lax", provider.is_secure());
            ([(header::SET_COOKIE, flow)], Redirect::to(&begun.url)).into_response()
        }
        Err(refusal) => not_signed_in(&console, &headers, next, &refusal.problem()),
    }
}

/// Whether a request reached this node at another host than that of `origin`. A port makes no difference to cookies.
fn is_at_another_host(reached: Option<&str>, origin: &str) -> bool {
    let (reached, origin) = (reached.and_then(|host| host.parse::<Authority>().ok()), origin.parse::<Uri>().ok());
    match (&reached, origin.as_ref().and_then(Uri::host)) {
        (Some(reached), Some(host)) => !reached.host().eq_ignore_ascii_case(host),
        // What names no host may be the right one.
        _ => false,
    }
}

pub(super) async fn callback(
    State(console): State<Console>,
    route: &'static Route,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    Extension(note): Extension<PageNote>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let Some(provider) = &console.oidc else { return Redirect::to(&sign_in_url("/console")).into_response() };
    let from = from.map(|Extension(ConnectInfo(from))| from);
    let flow = cookie(&headers, FLOW).unwrap_or_default();
    let returned = Returned::of(uri.query().unwrap_or_default());
    let finished = provider.finish(flow, &returned, from.map(|from| from.ip()), clock::now()).await;
    let mut response = match &finished {
        Ok(signed_in) => {
            let said = format!("signed in with {} as {:?}", provider.name(), signed_in.known_as);
            let actor = Actor { desk: &console.desk, caller: &signed_in.caller, from, route: Some(route), note: &note };
            actor.record(None, "console", Ok(&said));
            signed_in_page(provider, &headers, signed_in)
        }
        Err(refusal) => {
            if let Refusal::NoRole { who, .. } | Refusal::NoClaim { who, .. } = refusal {
                // The person has no permission; the audit notes only their name.
                let name = who.as_str().into();
                let caller =
                    Caller { id: None, name, role: Role::Viewer, queues: Scope::ALL, limits: TokenLimits::NONE };
                let actor = Actor { desk: &console.desk, caller: &caller, from, route: Some(route), note: &note };
                actor.record(None, "console", Err(&refusal.problem()));
            }
            let next = provider.next_of(flow, clock::now());
            not_signed_in(&console, &headers, next.as_deref().unwrap_or("/console"), &refusal.problem())
        }
    };
    // This sign-in is over once it was answered. Before that, the browser may come back with the same answer, and
    // another sign-in may be in progress in it.
    if !matches!(finished, Err(Refusal::Over | Refusal::Away(_))) {
        let over = cookie_value(&format!("{FLOW}=; Max-Age=0"), "Lax", provider.is_secure());
        response.headers_mut().append(header::SET_COOKIE, HeaderValue::try_from(over).expect("it is all ASCII"));
    }
    response
}

fn signed_in_page(provider: &Provider, headers: &HeaderMap, signed_in: &SignedIn) -> Response {
    let SignedIn { session, left_s, next, .. } = signed_in;
    let session =
        cookie_value(&format!("{SESSION}={BY_PROVIDER}{session}; Max-Age={left_s}"), "Strict", provider.is_secure());
    (AppendHeaders([(header::SET_COOKIE, session)]), onward("Signed in", headers, next)).into_response()
}
