//! `[amqp]`: the broker that receives due tasks.

use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{complaint::Complaints, link::Link, read, tls};
use crate::address::parameters;

/// How to reach RabbitMQ.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amqp {
    #[serde(deserialize_with = "read::secret")]
    pub url: SecretString,
    /// PEM of the authority that signed the broker's certificate. `None`: the system's trusted authorities.
    pub ca_file: Option<PathBuf>,
    /// PEM of the client's certificate and key: both or neither.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Whether reports and submissions may use the default exchange, by queue name, instead of the exchange
    /// `duetime.in`.
    #[serde(rename = "default_door", default = "yes")]
    pub default_exchange: bool,
}

const fn yes() -> bool {
    true
}

impl Amqp {
    /// The broker's address, fit for a log: the URL without password and options.
    pub fn place(&self) -> String {
        Link::parse(self.url.expose_secret()).map(|link| link.to_string()).unwrap_or_default()
    }

    /// A warning about settings that work but are insecure.
    pub fn warning(&self) -> Option<String> {
        let link = Link::parse(self.url.expose_secret())?;
        let is_clear = link.scheme == "amqp" && link.has_password && !link.is_loopback();
        is_clear.then(|| "`amqp.url` sends a password over the network unencrypted; use amqps://".to_owned())
    }

    pub(super) fn check(&self, complaints: &mut Complaints) {
        let url = self.url.expose_secret();
        let link = Link::parse(url);
        if let Some(fault) = Link::fault_of_list(url, &["amqp", "amqps"]) {
            complaints.add("amqp.url", fault);
        } else if link.as_ref().is_some_and(|link| link.host.is_empty()) {
            complaints.add("amqp.url", "names no host");
        } else if self.logs_in_by_certificate() && self.cert_file.is_none() {
            complaints.add("amqp.url", "has auth_mechanism=external, which requires amqp.cert_file and amqp.key_file");
        }
        let is_clear = link.is_some_and(|link| link.scheme == "amqp");
        let files = tls::Files {
            section: "amqp",
            ca: &self.ca_file,
            cert: &self.cert_file,
            key: &self.key_file,
            unusable: is_clear
                .then_some("is set, but amqp.url begins with amqp://, which uses no certificates; write amqps://"),
        };
        files.check(complaints);
    }

    fn logs_in_by_certificate(&self) -> bool {
        parameters(self.url.expose_secret())
            .any(|(name, value)| name == "auth_mechanism" && value.eq_ignore_ascii_case("external"))
    }
}
