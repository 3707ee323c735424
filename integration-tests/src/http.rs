//! The HTTP clients of the test bench.

use std::{sync::OnceLock, time::Duration};

/// A client for `http://` addresses. It ignores proxy settings and needs no certificates.
pub fn plain() -> reqwest::Client {
    built(reqwest::redirect::Policy::default())
}

/// Like `plain`, but it does not follow redirects.
pub fn stepwise() -> reqwest::Client {
    built(reqwest::redirect::Policy::none())
}

fn built(redirects: reqwest::redirect::Policy) -> reqwest::Client {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // reqwest requires a default cryptography provider for rustls. One that is installed already stays.
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
