//! Authentication, and the permissions of callers.

use std::{net::IpAddr, sync::Arc, time::Instant};

use axum::http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};
pub(crate) use common::access::Caller;
use common::{access::Permission, wire::Problem};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::{reached::is_own_origin, refusal::Refusal};
use crate::access::Access;

const CHALLENGE: &str = "Bearer realm=\"duetime\"";
const CHALLENGE_WRONG: &str = "Bearer realm=\"duetime\", error=\"invalid_token\"";

/// Seconds until a retry of a request to a node that has not read the tokens yet.
const KNOWN_AFTER_S: u32 = 1;

/// Lets in callers with a valid token. Without any tokens it lets in every caller, which the configuration allows on
/// loopback only.
#[derive(Clone, Debug)]
pub(crate) struct Authenticator {
    access: Arc<Access>,
}

impl Authenticator {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self { access }
    }

    /// The anonymous caller where there are no tokens; `None` where there are.
    pub(crate) fn anonymous(&self) -> Option<Caller> {
        self.access.is_open().then(Caller::anonymous)
    }

    /// The caller that has this token; `None` for a token that is unknown, revoked or expired. A problem while this
    /// node cannot decide, because it has not read the tokens. The comparison takes the same time for every token,
    /// valid or not.
    pub(crate) fn caller(&self, token: &[u8]) -> Result<Option<Caller>, Problem> {
        if self.access.is_open() {
            return Ok(Some(Caller::anonymous()));
        }
        let (book, configured, now) = (self.access.book(), self.access.configured(), Instant::now());
        let made = book.as_ref().map_or(&[][..], |book| &book.tokens);
        // Of two tokens with the same hash the configured one wins, because it comes last.
        let tokens = made.iter().chain(configured.iter());
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut found = 0_u32;
        for (place, token) in (1..).zip(tokens.clone()) {
            let same: Choice = digest.ct_eq(&token.sha256);
            found.conditional_assign(&place, same);
        }
        let token = usize::try_from(found).ok().and_then(|found| tokens.clone().nth(found.checked_sub(1)?));
        match token.filter(|token| !token.is_expired(now)) {
            None if book.is_none() => Err(unread()),
            token => Ok(token.map(|token| token.caller.clone())),
        }
    }

    /// Where no token is required, refuses a request whose `Host` is not this machine's own name. Another site may
    /// point its name here while a person views its page (DNS rebinding); the browser then takes that page and this
    /// node for the same site.
    pub(super) fn check_host(&self, host: Option<&str>) -> Result<(), Refusal> {
        if !self.access.is_open() || host.is_none_or(is_own) {
            return Ok(());
        }
        let detail = "without tokens configured, this node answers only to `localhost` and to IP addresses, to no \
                      other host name";
        Err(Problem::forbidden(detail).into())
    }

    /// Where no token is required, refuses what a page of another site sent.
    pub(super) fn check_site(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
        if !self.access.is_open() || !is_from_another_site(headers, uri) {
            return Ok(());
        }
        let detail = "without tokens configured, pages of other sites may not use this API from a browser; a proxy has to pass the header Host on";
        Err(Problem::forbidden(detail).into())
    }

    /// Refuses a caller without the permission that the route needs. `None`: any valid token is enough.
    pub(super) fn authorize(&self, headers: &HeaderMap, needed: Option<Permission>) -> Result<Caller, Refusal> {
        let caller = self.identify(headers)?;
        match check_permission(&caller, needed) {
            Ok(()) => Ok(caller),
            Err(problem) => Err(Refusal::from(problem).to(caller)),
        }
    }

    /// The caller, if they may look at the cluster.
    pub(super) fn looker(&self, headers: &HeaderMap) -> Option<Caller> {
        self.identify(headers).ok().filter(|caller| caller.may(Permission::Look))
    }

    /// The caller, whatever they may do.
    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        if self.access.is_open() {
            return Ok(Caller::anonymous());
        }
        let sent = headers.get(header::AUTHORIZATION);
        if let Some(token) = sent.and_then(bearer)
            && let Some(caller) = self.caller(token)?
        {
            return Ok(caller);
        }
        match sent {
            // Where no token is configured, none may be required.
            _ if self.access.book().is_none() && !self.access.is_closed() => Err(unread().into()),
            None => Err(Refusal::unauthorized("send a token: `Authorization: Bearer <token>`", CHALLENGE)),
            Some(_) => Err(Refusal::unauthorized(
                "the token is unknown, revoked or expired; send a valid one",
                CHALLENGE_WRONG,
            )),
        }
    }
}

/// Refuses a caller without the permission that the route needs. `None`: any valid token is enough.
pub(super) fn check_permission(caller: &Caller, needed: Option<Permission>) -> Result<(), Problem> {
    let Some(needed) = needed.filter(|needed| !caller.may(*needed)) else { return Ok(()) };
    let detail =
        format!("this request needs a token with the role {}; this one has the role {}", needed.roles(), caller.role);
    Err(Problem::forbidden(detail))
}

fn unread() -> Problem {
    let detail = "this node has not reached the first database since it started, so it cannot check tokens yet";
    Problem::unavailable(detail).retry_after(KNOWN_AFTER_S)
}

/// The token of `Bearer <token>`; the scheme is case-insensitive.
pub(super) fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let bytes = value.as_bytes();
    let (scheme, token) = bytes.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Whether the browser states that a page of another site sent this. Where no token is required, any page that a
/// person on this machine views could otherwise cancel tasks. Older browsers state only the origin of the page.
fn is_from_another_site(headers: &HeaderMap, uri: &Uri) -> bool {
    match headers.get("sec-fetch-site") {
        Some(site) => site != "same-origin" && site != "none",
        None => is_own_origin(headers, uri) == Some(false),
    }
}

/// Whether no other site can point such a name here: an address, or `localhost`, with or without a port.
pub(super) fn is_own(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    is_address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderName;
    use common::access::{Role, Scope};

    use super::*;
    use crate::{
        access::{Token, TokenBook},
        config::{self, Auth},
    };

    fn of(auth: &Auth) -> Authenticator {
        let access = Access::new(auth);
        access.put_in_force(TokenBook::default());
        Authenticator::new(Arc::new(access))
    }

    fn configured() -> Auth {
        let token = |role: Role| config::Token {
            name: role.text().to_owned(),
            role,
            queues: Scope::ALL,
            limits: Default::default(),
            sha256: Sha256::digest(role.text()).into(),
        };
        Auth { token: Role::ALL.map(token).to_vec(), oidc: None }
    }

    fn authenticator() -> Authenticator {
        of(&configured())
    }

    /// A token book with one token made over the API, which expires after `left`.
    fn made(name: &str, left: Option<Duration>) -> TokenBook {
        let caller = Caller {
            id: Some(1),
            name: name.into(),
            role: Role::Producer,
            queues: Scope::ALL,
            limits: Default::default(),
        };
        let token = Token::new(caller, Sha256::digest(name).into(), Instant::now(), left);
        TokenBook { revision: 1, tokens: vec![token] }
    }

    fn sent(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(authorization).expect("a header"))])
    }

    fn status(answer: Result<Caller, Refusal>) -> u16 {
        answer.map_or_else(|refusal| refusal.problem().status, |_| 200)
    }

    #[test]
    fn each_role_is_let_in_where_it_has_the_permission() {
        for role in Role::ALL {
            for needed in Permission::ALL {
                let expected = if role.may(needed) { 200 } else { 403 };
                let answer = authenticator().authorize(&sent(&format!("Bearer {role}")), Some(needed));
                assert_eq!(status(answer), expected, "{role} for {needed:?}");
            }
            assert_eq!(status(authenticator().authorize(&sent(&format!("Bearer {role}")), None)), 200, "{role}");
        }
    }

    #[test]
    fn a_refused_role_is_told_which_roles_may() {
        let refusal = authenticator().authorize(&sent("bearer viewer"), Some(Permission::Change)).expect_err("refused");
        assert!(refusal.problem().detail.contains("producer or operator"), "{}", refusal.problem());
    }

    #[test]
    fn only_who_may_look_reads_why_a_node_is_not_ready() {
        for role in Role::ALL {
            assert_eq!(
                authenticator().looker(&sent(&format!("Bearer {role}"))).is_some(),
                role.may(Permission::Look),
                "{role}"
            );
        }
    }

    #[test]
    fn no_token_and_a_wrong_one_are_both_401() {
        for headers in
            [HeaderMap::new(), sent("Bearer unknown"), sent("Bearer "), sent("Basic b3BlcmF0b3I="), sent("operator")]
        {
            assert_eq!(status(authenticator().authorize(&headers, Some(Permission::Look))), 401, "{headers:?}");
            assert_eq!(authenticator().looker(&headers), None);
        }
    }

    #[test]
    fn without_tokens_everybody_is_let_in() {
        let open = of(&Auth::default());
        assert_eq!(status(open.authorize(&HeaderMap::new(), Some(Permission::Operate))), 200);
        assert_eq!(status(open.authorize(&sent("Bearer anything"), Some(Permission::Operate))), 200);
        assert!(open.looker(&HeaderMap::new()).is_some());
    }

    #[test]
    fn a_token_made_over_the_api_is_let_in_until_it_is_gone_or_has_expired() {
        let authenticator = authenticator();
        let ask = || status(authenticator.authorize(&sent("Bearer shop"), Some(Permission::Change)));
        assert_eq!(ask(), 401);
        authenticator.access.put_in_force(made("shop", Some(Duration::from_secs(60))));
        assert_eq!(ask(), 200);
        assert_eq!(authenticator.caller(b"shop").expect("read").expect("let in").name.as_ref(), "shop");
        assert_eq!(
            status(authenticator.authorize(&sent("Bearer operator"), Some(Permission::Operate))),
            200,
            "beside it"
        );
        authenticator.access.put_in_force(made("shop", Some(Duration::ZERO)));
        assert_eq!(ask(), 401);
    }

    #[test]
    fn a_reload_takes_tokens_in_and_out_and_never_opens_a_node() {
        let authenticator = authenticator();
        let ask =
            |token: &str, needed| status(authenticator.authorize(&sent(&format!("Bearer {token}")), Some(needed)));
        let mut tokens = configured().token;
        tokens.retain(|token| token.role == Role::Viewer);
        authenticator.access.configure(&tokens);
        assert_eq!((ask("viewer", Permission::Look), ask("operator", Permission::Look)), (200, 401));
        tokens[0].role = Role::Operator;
        authenticator.access.configure(&tokens);
        assert_eq!(ask("viewer", Permission::Operate), 200, "it has its new role");
        authenticator.access.configure(&[]);
        assert_eq!(ask("viewer", Permission::Look), 401);
        assert_eq!(status(authenticator.authorize(&HeaderMap::new(), Some(Permission::Look))), 401, "it stays closed");

        let open = of(&Auth::default());
        assert_eq!(status(open.authorize(&HeaderMap::new(), Some(Permission::Look))), 200);
        open.access.configure(&tokens);
        assert_eq!(status(open.authorize(&HeaderMap::new(), Some(Permission::Look))), 401);
    }

    #[test]
    fn a_node_without_configured_tokens_is_open_only_when_it_knows_that_there_never_were_any() {
        let authenticator = Authenticator::new(Arc::new(Access::new(&Auth::default())));
        assert_eq!(status(authenticator.authorize(&HeaderMap::new(), Some(Permission::Look))), 503);
        authenticator.access.put_in_force(made("shop", Some(Duration::ZERO)));
        assert_eq!(
            status(authenticator.authorize(&HeaderMap::new(), Some(Permission::Look))),
            401,
            "an expired token is refused"
        );
        authenticator.access.put_in_force(TokenBook { revision: 2, tokens: Vec::new() });
        assert_eq!(
            status(authenticator.authorize(&HeaderMap::new(), Some(Permission::Look))),
            401,
            "the token check stays on after the last revocation"
        );
        authenticator.access.put_in_force(TokenBook::default());
        assert_eq!(status(authenticator.authorize(&HeaderMap::new(), Some(Permission::Look))), 200);
    }

    #[test]
    fn until_the_tokens_are_known_an_unknown_one_is_not_called_wrong() {
        let authenticator = Authenticator::new(Arc::new(Access::new(&configured())));
        assert_eq!(status(authenticator.authorize(&sent("Bearer operator"), Some(Permission::Operate))), 200);
        assert_eq!(status(authenticator.authorize(&sent("Bearer shop"), Some(Permission::Look))), 503);
        assert_eq!(status(authenticator.authorize(&HeaderMap::new(), Some(Permission::Look))), 401);
    }

    #[test]
    fn without_tokens_pages_of_other_sites_are_kept_out() {
        let (open, closed) = (of(&Auth::default()), authenticator());
        let uri = Uri::from_static("/v1/tasks");
        for (site, origin, is_taken) in [
            (Some("cross-site"), None, false),
            (Some("same-site"), None, false),
            (Some("same-origin"), Some("http://127.0.0.1:8080"), true),
            (Some("none"), None, true),
            (None, None, true),
            (None, Some("http://127.0.0.1:8080"), true),
            (None, Some("http://evil.example"), false),
            (None, Some("null"), false),
        ] {
            let stated = [("host", Some("127.0.0.1:8080")), ("sec-fetch-site", site), ("origin", origin)];
            let pair = |(name, value): (&'static str, Option<&'static str>)| {
                Some((HeaderName::from_static(name), HeaderValue::from_static(value?)))
            };
            let headers: HeaderMap = stated.into_iter().filter_map(pair).collect();
            assert_eq!(open.check_site(&headers, &uri).is_ok(), is_taken, "{site:?} {origin:?}");
            assert!(closed.check_site(&headers, &uri).is_ok(), "a page without a token is refused");
        }
    }

    #[test]
    fn without_tokens_only_names_are_answered_that_nobody_else_can_have_lead_here() {
        let open = of(&Auth::default());
        for own in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "192.0.2.7"] {
            assert!(open.check_host(Some(own)).is_ok(), "{own}");
        }
        for name in ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"]
        {
            assert!(open.check_host(Some(name)).is_err(), "{name}");
            assert!(authenticator().check_host(Some(name)).is_ok(), "a page without a token is refused: {name}");
        }
        assert!(open.check_host(None).is_ok(), "every browser sends it");
    }
}
