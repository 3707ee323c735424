//! The address by which a client reached this node, as its request tells.

use axum::http::{HeaderMap, Uri, header, request::Parts};

/// Marks a request that came over this node's own TLS, in the request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encrypted;

/// The host with its port: from `Host`, or from the URI, where HTTP/2 has it. A value that is not text names no host.
pub(crate) fn authority<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let sent = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    sent.or_else(|| uri.authority().map(|authority| authority.as_str()))
}

/// Whether the page that a browser names in `Origin` is of this very host. `None`: no page is named.
pub(crate) fn is_own_origin(headers: &HeaderMap, uri: &Uri) -> Option<bool> {
    let origin = headers.get(header::ORIGIN)?.to_str().ok().and_then(|origin| origin.split_once("://"));
    Some(origin.is_some_and(|(_, host)| Some(host) == authority(headers, uri)))
}

/// Whether the client's own connection is encrypted: to this node, or to the proxy in front of it.
pub(crate) fn is_encrypted(parts: &Parts) -> bool {
    let by_proxy = || parts.headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    parts.extensions.get::<Encrypted>().is_some() || by_proxy()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn the_host_is_that_of_the_header_or_else_of_the_uri() {
        for (uri, host, expected) in [
            ("/console", Some("a:1"), Some("a:1")),
            ("https://b:2/console", None, Some("b:2")),
            ("http://b:2/console", Some("a:1"), Some("a:1")),
            ("/console", Some("\u{e4}"), Some("")),
            ("/console", None, None),
        ] {
            let mut request = Request::builder().uri(uri);
            if let Some(host) = host {
                request = request.header(header::HOST, host.as_bytes());
            }
            let parts = request.body(()).expect("a request").into_parts().0;
            assert_eq!(authority(&parts.headers, &parts.uri), expected, "{uri} {host:?}");
        }
    }

    #[test]
    fn a_connection_is_encrypted_by_this_node_or_by_its_proxy() {
        let parts = |request: Request<()>| request.into_parts().0;
        assert!(!is_encrypted(&parts(Request::new(()))));
        let by_proxy = Request::builder().header("x-forwarded-proto", "https").body(()).expect("a request");
        assert!(is_encrypted(&parts(by_proxy)));
        let by_node = Request::builder().extension(Encrypted).body(()).expect("a request");
        assert!(is_encrypted(&parts(by_node)));
    }
}
