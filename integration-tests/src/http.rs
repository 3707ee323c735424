//! The one HTTP client of the test bench.

use std::{sync::OnceLock, time::Duration};

/// A client for `http://` addresses. It follows no proxy settings and looks for no certificates.
pub fn plain() -> reqwest::Client {
    built(reqwest::redirect::Policy::default())
}

/// The same, which stops at a redirect.
pub fn stepwise() -> reqwest::Client {
    built(reqwest::redirect::Policy::none())
}

fn built(redirects: reqwest::redirect::Policy) -> reqwest::Client {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // reqwest wants to know whose cryptography it would use. Someone may have told rustls already: then theirs.
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    });
    reqwest::Client::builder()
        .no_proxy()
        .redirect(redirects)
        .tls_certs_only([])
        .connect_timeout(Duration::from_secs(2))
        .build()
        .expect("a client without certificates needs nothing from the system")
}
