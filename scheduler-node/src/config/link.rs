//! A connection URL without its secrets.

use std::fmt;

use crate::address::{each_host, is_loopback};

/// The parts of `scheme://user:password@host:port/path?query` that are fit for a log. Display leaves out the
/// password, and the query, which may carry a password too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub scheme: String,
    pub user: Option<String>,
    pub has_password: bool,
    /// With its port, if one is given; several are separated by commas.
    pub host: String,
    /// With the leading slash; empty when there is none.
    pub path: String,
}

impl Link {
    /// `None` when the text has no scheme, or holds a character that no URL may hold.
    pub fn parse(url: &str) -> Option<Self> {
        if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return None;
        }
        let (scheme, rest) = url.split_once("://")?;
        if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') {
            return None;
        }
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (Some(user.to_owned()), password),
            None => (None, ""),
        };
        Some(Self {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(|user| !user.is_empty()),
            has_password: !password.is_empty(),
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }

    /// The mistake in `url` as one of `schemes`, as the end of a sentence that begins with its key.
    pub(super) fn fault(url: &str, schemes: &[&str]) -> Option<String> {
        let prefixes = schemes.iter().map(|scheme| format!("{scheme}://")).collect::<Vec<_>>().join(" or ");
        match Self::parse(url) {
            None => Some(format!("is not a URL; it must begin with {prefixes}")),
            Some(link) if !schemes.contains(&link.scheme.as_str()) => {
                Some(format!("begins with {}://; it must begin with {prefixes}", link.scheme))
            }
            Some(link) if link.host.split(',').filter_map(port).any(|port| port.parse::<u16>().is_err()) => {
                Some("has a port that is not a number between 0 and 65535".to_owned())
            }
            Some(_) => None,
        }
    }

    /// Like [`Self::fault`], for a URL that may list several hosts.
    pub(super) fn fault_of_list(url: &str, schemes: &[&str]) -> Option<String> {
        // The list has the better words for a wrong port.
        let fault = Self::parse(url).and_then(|_| each_host(url).err()).map(|error| error.to_string());
        fault.or_else(|| Self::fault(url, schemes))
    }

    /// Whether each host is this machine.
    pub fn is_loopback(&self) -> bool {
        self.host.split(',').all(|host| match port(host) {
            Some(port) => is_loopback(&host[..host.len() - port.len() - 1]),
            None => is_loopback(host),
        })
    }
}

fn port(host: &str) -> Option<&str> {
    // The last colon of an address in brackets belongs to the address.
    host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map(|(_, port)| port)
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}{}", self.host, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Link::parse(url).expect("a URL").to_string()
    }

    #[test]
    fn display_never_carries_the_password() {
        assert_eq!(shown("postgres://me:s3cret@db:5432/tasks?password=s3cret"), "postgres://me@db:5432/tasks");
        assert_eq!(shown("amqp://guest:p@ss@host/%2f"), "amqp://guest@host/%2f");
        assert_eq!(shown("http://[::1]:2379"), "http://[::1]:2379");
    }

    #[test]
    fn this_machine_is_recognised_with_and_without_a_port() {
        let is_loopback = |url: &str| Link::parse(url).expect("a URL").is_loopback();
        for own in
            ["amqp://u:p@127.0.0.1:5672", "amqp://LocalHost:1,[::1]:2/%2f", "http://[::1]:2379", "http://127.1.2.3"]
        {
            assert!(is_loopback(own), "{own}");
        }
        for other in [
            "amqp://u:p@mq:5672",
            "amqp://u:p@127.0.0.1,mq:5672",
            "http://10.0.0.1",
            "http://localhost.example",
            "http://[2001:db8::1]:80",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn a_wrong_scheme_or_port_is_a_fault() {
        assert!(Link::fault("mysql://db/x", &["postgres"]).is_some_and(|why| why.contains("mysql")));
        assert!(Link::fault("db:5432", &["postgres"]).is_some());
        assert!(Link::fault("http://host:port", &["http"]).is_some());
        assert_eq!(Link::fault("https://[::1]", &["http", "https"]), None);
    }
}
