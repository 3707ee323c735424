//! What a browser sends with a request, and the cookies that it keeps.

use axum::{
    http::{HeaderMap, Uri, header},
    response::{IntoResponse, Redirect, Response},
};

use crate::http::is_own_origin;

/// The cookie of a sealed session. Its value begins with a prefix that names the kind.
pub(super) const SESSION: &str = "duetime_session";

/// The prefix of a session that the identity provider opened.
pub(super) const BY_PROVIDER: &str = "oidc.";

/// The prefix of a session that a token opened.
pub(super) const BY_TOKEN: &str = "token.";

/// The cookie of the theme.
pub(super) const THEME: &str = "duetime_theme";

/// The colours of the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Theme {
    /// As the browser prefers.
    #[default]
    Auto,
    Dark,
    Light,
}

impl Theme {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match cookie(headers, THEME) {
            Some("dark") => Self::Dark,
            Some("light") => Self::Light,
            _ => Self::Auto,
        }
    }

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Dark => "dark",
            Self::Light => "light",
        }
    }

    /// The theme that the switch selects next.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Auto => Self::Dark,
            Self::Dark => Self::Light,
            Self::Light => Self::Auto,
        }
    }
}

/// The value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let pairs = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    pairs
        .flat_map(|pairs| pairs.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// Redirects and sets the cookie; over https it is marked `Secure`, so that the browser never sends it in the clear.
pub(super) fn with_cookie(headers: &HeaderMap, redirect: Redirect, pair: &str) -> Response {
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

/// Whether the browser states that a page of this very origin sent the form. A client that states nothing is no
/// current browser.
pub(super) fn is_from_here(headers: &HeaderMap, uri: &Uri) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    is_own_origin(headers, uri) == Some(true)
}

/// Whether the browser states that another site led to this request. Cookies that are `Strict` do not come with it.
pub(super) fn is_from_another_site(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site")
}

/// A parameter of the page's URL, when it is present and not empty.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .find(|(found, value)| found == name && !value.is_empty())
        .map(|(_, value)| value.into_owned())
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

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

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
            assert_eq!(is_from_here(&headers(&sent), &Uri::from_static("/console")), taken, "{sent:?}");
        }
        // HTTP/2 has the host in the URI.
        let uri = Uri::from_static("https://a:1/console");
        assert!(is_from_here(&headers(&[("origin", "https://a:1")]), &uri));
        assert!(!is_from_here(&headers(&[("origin", "https://b:1")]), &uri));
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
