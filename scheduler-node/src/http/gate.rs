//! Who is let in, and to what.

use axum::http::{HeaderMap, HeaderValue, Method, header};
use common::wire::Problem;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::refusal::Refusal;
use crate::config::{Auth, Role, Token};

const CHALLENGE: &str = "Bearer realm=\"duetime\"";
const CHALLENGE_WRONG: &str = "Bearer realm=\"duetime\", error=\"invalid_token\"";

/// Who holds a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub role: Role,
}

/// The tokens that are let in. Without any, everybody is: the configuration allows that on loopback only.
#[derive(Debug)]
pub struct Gate {
    tokens: Vec<(Caller, [u8; 32])>,
}

impl Gate {
    pub fn new(auth: &Auth) -> Self {
        let caller = |token: &Token| Caller { name: token.name.clone(), role: token.role };
        Self { tokens: auth.token.iter().map(|token| (caller(token), token.sha256)).collect() }
    }

    /// Whoever comes, where no tokens are configured; `None` where they are.
    pub fn anybody(&self) -> Option<Caller> {
        self.tokens.is_empty().then(|| Caller { name: "anybody".to_owned(), role: Role::Operator })
    }

    /// Who holds that token. Takes as long for a wrong token as for a right one, whichever it is.
    pub fn caller(&self, token: &[u8]) -> Option<Caller> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut found = 0_u64;
        for (place, (_, sha256)) in (1_u64..).zip(&self.tokens) {
            let same: Choice = digest.ct_eq(sha256);
            found.conditional_assign(&place, same);
        }
        let index = usize::try_from(found).ok()?.checked_sub(1)?;
        self.tokens.get(index).map(|(caller, _)| caller.clone())
    }

    /// Refuses a caller who may not do what needs `needed`.
    pub(super) fn admit(&self, headers: &HeaderMap, needed: Role) -> Result<(), Refusal> {
        if self.tokens.is_empty() && is_from_another_site(headers) {
            let detail = "without tokens configured, pages of other sites may not use this API from a browser";
            return Err(Problem::forbidden(detail).into());
        }
        match self.role(headers)? {
            Some(role) if role >= needed => Ok(()),
            Some(role) => {
                let detail = format!("this needs a token with the role {needed}; the role of this one is {role}");
                Err(Problem::forbidden(detail).into())
            }
            None => Err(Refusal::unauthorized("send a token: `Authorization: Bearer <token>`", CHALLENGE)),
        }
    }

    /// Whether the caller may see what is only for those who were let in.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        matches!(self.role(headers), Ok(Some(_)))
    }

    /// The caller's role; `None` when no token was sent though one is needed.
    fn role(&self, headers: &HeaderMap) -> Result<Option<Role>, Refusal> {
        if self.tokens.is_empty() {
            return Ok(Some(Role::Operator));
        }
        let Some(sent) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
        let role = bearer(sent).and_then(|token| self.caller(token)).map(|caller| caller.role);
        role.map(Some).ok_or_else(|| {
            Refusal::unauthorized("the token is unknown here; send one that is configured", CHALLENGE_WRONG)
        })
    }
}

/// The token of `Bearer <token>`; the scheme in any case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let bytes = value.as_bytes();
    let (scheme, token) = bytes.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Whether a browser says that a page of another site sent this. Where nobody is asked for a token, any page that a person
/// on this machine looks at could otherwise cancel tasks.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

/// The role that a request needs; `None`: nobody is asked. `route` is the pattern that matched, if one did.
///
/// What is not listed needs the highest role, so that a route forgotten here is closed and not open.
pub(super) fn needed(method: &Method, route: Option<&str>) -> Option<Role> {
    let looks = [Method::GET, Method::HEAD].contains(method);
    match route {
        Some("/healthz" | "/readyz") => None,
        // The console asks for the token itself, because a browser sends none of its own accord.
        Some(route) if route == "/" || route.starts_with("/console") => None,
        // There is nothing behind it; which paths exist is not told to strangers all the same.
        None => Some(Role::Viewer),
        Some(_) if looks => Some(Role::Viewer),
        Some(route) if route.starts_with("/v1/tasks") => Some(Role::Producer),
        Some(_) => Some(Role::Operator),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        let token =
            |role: Role| Token { name: role.text().to_owned(), role, sha256: Sha256::digest(role.text()).into() };
        Gate::new(&Auth { token: Role::ALL.map(token).to_vec() })
    }

    fn sent(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(authorization).expect("a header"))])
    }

    fn status(answer: Result<(), Refusal>) -> u16 {
        answer.map_or_else(|refusal| refusal.problem().status, |()| 200)
    }

    #[test]
    fn each_role_is_let_in_to_its_own_routes_and_those_below() {
        for (rank, role) in Role::ALL.into_iter().enumerate() {
            for (needed_rank, needed) in Role::ALL.into_iter().enumerate() {
                let expected = if rank >= needed_rank { 200 } else { 403 };
                assert_eq!(
                    status(gate().admit(&sent(&format!("Bearer {role}")), needed)),
                    expected,
                    "{role} for {needed}"
                );
            }
        }
    }

    #[test]
    fn a_refused_role_is_told_which_it_needs() {
        let refusal = gate().admit(&sent("bearer viewer"), Role::Operator).expect_err("refused");
        assert!(refusal.problem().detail.contains("operator"), "{}", refusal.problem());
    }

    #[test]
    fn no_token_and_a_wrong_one_are_both_401() {
        for headers in
            [HeaderMap::new(), sent("Bearer nobody"), sent("Bearer "), sent("Basic b3BlcmF0b3I="), sent("operator")]
        {
            assert_eq!(status(gate().admit(&headers, Role::Viewer)), 401, "{headers:?}");
            assert!(!gate().knows(&headers));
        }
    }

    #[test]
    fn without_tokens_everybody_is_let_in() {
        let open = Gate::new(&Auth::default());
        assert_eq!(status(open.admit(&HeaderMap::new(), Role::Operator)), 200);
        assert_eq!(status(open.admit(&sent("Bearer anything"), Role::Operator)), 200);
        assert!(open.knows(&HeaderMap::new()));
    }

    #[test]
    fn without_tokens_pages_of_other_sites_are_kept_out() {
        let from = |site: &'static str| {
            HeaderMap::from_iter([("sec-fetch-site".parse().expect("a name"), HeaderValue::from_static(site))])
        };
        let open = Gate::new(&Auth::default());
        for (site, expected) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
            assert_eq!(status(open.admit(&from(site), Role::Viewer)), expected, "{site}");
        }
    }

    #[test]
    fn what_changes_the_cluster_needs_an_operator_and_what_changes_a_task_a_producer() {
        let cases = [
            (Method::GET, Some("/v1/tasks"), Some(Role::Viewer)),
            (Method::HEAD, Some("/v1/tasks/{id}"), Some(Role::Viewer)),
            (Method::GET, Some("/v1/cluster"), Some(Role::Viewer)),
            (Method::GET, Some("/metrics"), Some(Role::Viewer)),
            (Method::POST, Some("/v1/tasks"), Some(Role::Producer)),
            (Method::POST, Some("/v1/tasks/batch"), Some(Role::Producer)),
            (Method::DELETE, Some("/v1/tasks/{id}"), Some(Role::Producer)),
            (Method::POST, Some("/v1/tasks/{id}/result"), Some(Role::Producer)),
            (Method::PUT, Some("/v1/queues/{queue}"), Some(Role::Operator)),
            (Method::DELETE, Some("/v1/queues/{queue}"), Some(Role::Operator)),
            (Method::POST, Some("/v1/queues/{queue}/pause"), Some(Role::Operator)),
            (Method::POST, Some("/metrics"), Some(Role::Operator)),
            (Method::GET, Some("/healthz"), None),
            (Method::GET, Some("/readyz"), None),
            (Method::GET, Some("/"), None),
            (Method::POST, Some("/console/sign-in"), None),
            (Method::POST, None, Some(Role::Viewer)),
        ];
        for (method, route, role) in cases {
            assert_eq!(needed(&method, route), role, "{method} {route:?}");
        }
    }
}
