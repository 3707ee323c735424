//! `[http]`: where clients reach this node.

use std::{net::SocketAddr, path::PathBuf};

use serde::Deserialize;

use super::{auth::Auth, complaint::Complaints, link::Link, read, tls};

/// The address that the API listens on, and the URL that others use.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Port 0 picks a free one.
    #[serde(deserialize_with = "read::address")]
    pub listen: SocketAddr,
    /// Base URL without a trailing slash, as other nodes and people see it.
    pub advertise: Option<String>,
    /// Most open connections.
    pub max_connections: usize,
    /// Most open connections from one address; they count towards `max_connections` too.
    pub max_connections_per_address: usize,
    /// Most requests a second of each caller on each node; 0: no limit.
    pub max_requests_per_second: u32,
    /// PEM of the node's certificate with its chain. With `key_file`, the API and the console speak TLS only.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            advertise: None,
            max_connections: 4_096,
            // A proxy in front of all clients keeps several hundred connections open.
            max_connections_per_address: 1_024,
            max_requests_per_second: 0,
            cert_file: None,
            key_file: None,
        }
    }
}

/// More connections than this need more memory than a node has.
const CONNECTIONS_MAX: usize = 100_000;

impl Http {
    /// The base URL for others, once the listener is `bound`.
    pub fn advertised(&self, bound: SocketAddr, host: &str) -> String {
        match &self.advertise {
            Some(url) => url.trim_end_matches('/').to_owned(),
            // An unspecified address names no host, so the host's own name is the best there is.
            None if bound.ip().is_unspecified() => format!("{}://{host}:{}", self.scheme(), bound.port()),
            None => format!("{}://{bound}", self.scheme()),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.cert_file.is_some() { "https" } else { "http" }
    }

    fn check_files(&self, complaints: &mut Complaints) {
        let files =
            tls::Files { section: "http", ca: &None, cert: &self.cert_file, key: &self.key_file, unusable: None };
        files.check(complaints);
    }

    pub(super) fn check(&self, auth: &Auth, complaints: &mut Complaints) {
        complaints.unless(
            self.listen.ip().is_loopback() || !auth.is_empty() || seeded!(OpenWithoutToken),
            "http.listen",
            format!(
                "is {}, which other machines can reach, but no [[auth.token]] is configured; make one with `duetime \
                 token`, or listen on 127.0.0.1",
                self.listen
            ),
        );
        complaints.limit_and_part(
            ("http.max_connections", self.max_connections),
            1..=CONNECTIONS_MAX,
            ("http.max_connections_per_address", self.max_connections_per_address),
        );
        self.check_files(complaints);
        let Some(url) = &self.advertise else { return };
        if let Some(fault) = Link::fault(url, &["http", "https"]) {
            complaints.add("http.advertise", fault);
        } else if Link::parse(url).is_some_and(|link| link.host.is_empty() || link.user.is_some()) {
            complaints.add(
                "http.advertise",
                "must be a base URL with a host and without a login, such as http://node-1:8080",
            );
        }
    }
}
