//! The person behind a request: by a token's session ([`super::session`]) or by an identity provider's
//! ([`super::oidc`]). Either way the browser keeps the session, sealed. Every node can open it and none stores it.

use std::{collections::BTreeSet, net::SocketAddr};

use axum::{
    extract::{ConnectInfo, MatchedPath},
    http::{HeaderMap, request::Parts},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::{access::Permission, wire::Problem};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::{
    Console, ROUTES,
    actor::Actor,
    browser::{BY_PROVIDER, BY_TOKEN, SESSION, Theme, cookie},
    task_query::{FILTERS, TaskQuery},
};
use crate::{
    clock,
    desk::Desk,
    http::{Caller, PageNote, Requirement, Route},
};

/// The most queues offered to choose from: a longer list takes longer to read than a name to type.
const OFFERED_QUEUES: usize = 1_000;

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
    note: PageNote,
}

impl Visitor {
    pub(super) fn may(&self, needed: Permission) -> bool {
        self.caller.may(needed)
    }

    /// Refuses a visitor without the permission that the route needs.
    pub(super) fn check_permission(&self) -> Result<(), Problem> {
        let Some(needed) = needed(self.route).filter(|needed| !self.may(*needed)) else { return Ok(()) };
        let detail = format!("this page needs the role {}; your role is {}", needed.roles(), self.caller.role);
        Err(Problem::forbidden(detail))
    }

    /// The list filters that the visitor may use: a filter by error text needs the permission to read data.
    pub(super) fn filters(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let may = self.may(Permission::Payloads);
        FILTERS.iter().filter(move |(name, _)| may || *name != "error")
    }

    /// The filter that a page shows: a visitor with one queue need not name it.
    pub(super) fn completed(&self, query: TaskQuery) -> TaskQuery {
        match self.caller.queues.patterns() {
            Some([only]) if !only.ends_with('*') && query.get("queue").is_none() => {
                query.with("queue", Some(only.as_str()))
            }
            _ => query,
        }
    }

    /// Whether the filter names no queue, and the visitor may not see the tasks of all.
    pub(super) fn must_choose_queue(&self, query: &TaskQuery) -> bool {
        query.get("queue").is_none() && !self.caller.queues.is_all()
    }

    /// The queues offered to a visitor who has some: those that their token names, and those that exist.
    pub(super) fn offered_queues(&self) -> BTreeSet<String> {
        self.desk.own_queues(OFFERED_QUEUES).unwrap_or_default()
    }

    /// Records in the audit log what the visitor saw or took along.
    pub(super) fn record(&self, target: &str, outcome: Result<&str, &Problem>) {
        self.actor().record(None, target, outcome);
    }

    pub(super) fn actor(&self) -> Actor<'_> {
        Actor { desk: &self.desk, caller: &self.caller, from: self.from, route: self.route, note: &self.note }
    }

    /// `None`: there is no session, or its role does not open the console.
    pub(super) fn of(parts: &Parts, console: &Console) -> Result<Option<Self>, Problem> {
        let Some((caller, session)) = caller(&parts.headers, console)? else { return Ok(None) };
        if !caller.may(Permission::Look) {
            return Ok(None);
        }
        let note = parts.extensions.get::<PageNote>().cloned().unwrap_or_default();
        note.set_caller(&caller);
        Ok(Some(Self {
            desk: console.desk.of(&caller),
            caller,
            signed_in: !session.is_empty(),
            form_token: form_token(session.as_bytes()),
            theme: Theme::of(&parts.headers),
            here: parts.uri.path_and_query().map_or("/console", |path| path.as_str()).to_owned(),
            from: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(from)| *from),
            route: matched(parts),
            note,
        }))
    }
}

/// The line of the table that matched.
pub(super) fn matched(parts: &Parts) -> Option<&'static Route> {
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

/// The form token of a session. Without tokens it is the same for all sessions; then only the browser's statement of
/// the origin protects.
fn form_token(key: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(FORM_PURPOSE);
    URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}

/// The caller of a request, and their session. A node without tokens has no sessions: it is empty then.
pub(super) fn caller<'a>(headers: &'a HeaderMap, console: &Console) -> Result<Option<(Caller, &'a str)>, Problem> {
    match (console.authenticator.anonymous(), cookie(headers, SESSION)) {
        (Some(anonymous), _) => Ok(Some((anonymous, ""))),
        (None, None) => Ok(None),
        (None, Some(session)) => Ok(session_caller(console, session)?.map(|caller| (caller, session))),
    }
}

/// The caller of a session. The authenticator checks a token at every request, so revoking the token ends its
/// session.
fn session_caller(console: &Console, session: &str) -> Result<Option<Caller>, Problem> {
    if let Some(sealed) = session.strip_prefix(BY_PROVIDER) {
        return Ok(console.oidc.as_ref().and_then(|provider| provider.caller(sealed, clock::now())));
    }
    let Some(sealed) = session.strip_prefix(BY_TOKEN) else { return Ok(None) };
    match console.sessions.open(sealed, clock::now())? {
        Some(token) => console.authenticator.caller(token.as_bytes()),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Audited;

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
}
