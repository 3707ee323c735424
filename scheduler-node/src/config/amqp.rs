//! `[amqp]`: the broker that due tasks are handed to.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{complaint::Complaints, link::Link, read};

/// How RabbitMQ is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amqp {
    #[serde(deserialize_with = "read::secret")]
    pub url: SecretString,
    /// Whether reports and submissions may come by the names of their queues, past the exchange `duetime.in`.
    #[serde(default = "open")]
    pub default_door: bool,
}

const fn open() -> bool {
    true
}

impl Amqp {
    /// Where it is, fit for a log: the URL without password and options.
    pub fn place(&self) -> String {
        Link::parse(self.url.expose_secret()).map(|link| link.to_string()).unwrap_or_default()
    }

    pub(super) fn check(&self, complaints: &mut Complaints) {
        let url = self.url.expose_secret();
        if let Some(fault) = Link::fault(url, &["amqp", "amqps"]) {
            complaints.add("amqp.url", fault);
        } else if Link::parse(url).is_some_and(|link| link.host.is_empty()) {
            complaints.add("amqp.url", "names no host");
        }
    }
}
