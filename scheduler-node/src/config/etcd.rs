//! `[etcd]`: where the cluster keeps its members, its master and the assignment of shards.

use std::{path::PathBuf, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{complaint::Complaints, link::Link, read, tls};

/// How to reach etcd, and how long its leases last.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Etcd {
    #[serde(deserialize_with = "read::list")]
    pub endpoints: Vec<String>,
    /// The prefix of every key of this cluster. It begins with a slash and does not end with one.
    pub prefix: String,
    /// A node counts as gone after this much silence. Whole seconds.
    pub lease_ttl_ms: u64,
    pub username: Option<String>,
    #[serde(deserialize_with = "read::maybe_secret")]
    pub password: Option<SecretString>,
    /// PEM of the authority that signed the servers' certificates. `None`: the system's trusted authorities.
    pub ca_file: Option<PathBuf>,
    /// PEM of the client's certificate and key: both or neither.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

impl Default for Etcd {
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            prefix: "/duetime".to_owned(),
            lease_ttl_ms: 10_000,
            username: None,
            password: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
        }
    }
}

impl Etcd {
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_millis(self.lease_ttl_ms)
    }

    pub(super) fn check(&self, complaints: &mut Complaints) {
        self.check_endpoints(complaints);
        let plain = self.prefix.bytes().all(|byte| byte.is_ascii_graphic());
        complaints.unless(
            self.prefix.len() > 1 && self.prefix.starts_with('/') && !self.prefix.ends_with('/') && plain,
            "etcd.prefix",
            format!("is {:?}; it must begin with a slash, not end with one, and hold no spaces", self.prefix),
        );
        complaints.unless(
            self.lease_ttl_ms.is_multiple_of(1_000) && (2_000..=600_000).contains(&self.lease_ttl_ms),
            "etcd.lease_ttl_ms",
            format!("is {}; it must be whole seconds between 2000 and 600000", self.lease_ttl_ms),
        );
        self.check_login(complaints);
        self.check_files(complaints);
    }

    fn check_endpoints(&self, complaints: &mut Complaints) {
        complaints.unless(!self.endpoints.is_empty(), "etcd.endpoints", "is empty; name at least one endpoint");
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let key = format!("etcd.endpoints[{index}]");
            if let Some(fault) = Link::fault(endpoint, &["http", "https"]) {
                complaints.add(key, fault);
            } else if self.endpoints[..index].contains(endpoint) {
                complaints.add(key, "is given twice; remove one");
            } else if Link::parse(endpoint).is_some_and(|link| link.user.is_some() || link.has_password) {
                complaints.add(key, "contains a login; use etcd.username and etcd.password");
            } else if Link::parse(endpoint).is_some_and(|link| link.host.is_empty()) {
                complaints.add(key, "names no host");
            }
        }
    }

    fn check_login(&self, complaints: &mut Complaints) {
        let given = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
        match (given(self.username.as_deref()), given(self.password.as_ref().map(ExposeSecret::expose_secret))) {
            (true, false) => {
                complaints.add("etcd.username", "is set without etcd.password; set that, or etcd.password_file")
            }
            (false, true) => complaints.add("etcd.password", "is set without etcd.username; set both or neither"),
            _ => {}
        }
    }

    fn check_files(&self, complaints: &mut Complaints) {
        let is_clear = self.endpoints.iter().any(|endpoint| endpoint.starts_with("http://"));
        let files = tls::Files {
            section: "etcd",
            ca: &self.ca_file,
            cert: &self.cert_file,
            key: &self.key_file,
            unusable: is_clear
                .then_some("is set, but an endpoint begins with http://, which uses no certificates; write https://"),
        };
        files.check(complaints);
    }
}
