//! Facts read from an address: those that count as one client, hosts that are this machine, and parameters of a URL.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv6Addr},
};

/// An IPv4 address, or the /64 network of one IPv6 subscriber.
pub fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Whether the host of a URL, without its port, is this machine.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The parameters in the query of a URL.
pub fn parameters(url: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let query = url.split_once('?').map_or("", |(_, rest)| rest.split('#').next().unwrap_or_default());
    form_urlencoded::parse(query.as_bytes())
}

/// libpq's parameter for the kind of server that a client wants.
pub const SESSION_ATTRS: &str = "target_session_attrs";

/// The parameters of a URL that may hold a list, one item for each host.
const LISTS: [&str; 3] = ["host", "hostaddr", "port"];

/// A mistake in the hosts of a URL, as the end of a sentence that begins with its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    #[error("has an empty host in its list; write host1:5432,host2:5432")]
    Empty,
    #[error("names the host {0} twice; remove one")]
    Twice(String),
    #[error("has a port of the host {0} that is not a number between 0 and 65535")]
    Port(String),
    #[error("lists its hosts twice, before the path and as parameters; keep one list")]
    BothForms,
    #[error("has lists of {0} and {1} items in its parameters host, hostaddr and port; they must be equally long")]
    Uneven(usize, usize),
}

/// The URLs of the single hosts in `url`, in its order: `scheme://login@a:1,b:2/path` names two. As in libpq, the
/// parameters `host`, `hostaddr` and `port` may list them as well, and one port then stands for all hosts.
pub fn each_host(url: &str) -> Result<Vec<String>, HostsError> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(vec![url.to_owned()]) };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, hosts) = authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
    let at = if login.is_empty() { "" } else { "@" };
    let lists = parameters(url).any(|(name, value)| LISTS.contains(&name.as_ref()) && value.contains(','));
    match (hosts.contains(','), lists) {
        (false, false) => Ok(vec![url.to_owned()]),
        (true, true) => Err(HostsError::BothForms),
        (true, false) => {
            let hosts: Vec<&str> = hosts.split(',').collect();
            check_hosts(&hosts)?;
            Ok(hosts.iter().map(|host| format!("{scheme}://{login}{at}{host}{tail}")).collect())
        }
        (false, true) => each_parameter(url),
    }
}

fn check_hosts(hosts: &[&str]) -> Result<(), HostsError> {
    for (index, host) in hosts.iter().enumerate() {
        // The last colon of an address in brackets belongs to the address.
        let port = host.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        if host.is_empty() || port.is_some_and(|(name, _)| name.is_empty()) {
            return Err(HostsError::Empty);
        }
        if port.is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(HostsError::Port((*host).to_owned()));
        }
        if hosts[..index].contains(host) {
            return Err(HostsError::Twice((*host).to_owned()));
        }
    }
    Ok(())
}

/// The URLs of the hosts that the parameters list.
fn each_parameter(url: &str) -> Result<Vec<String>, HostsError> {
    let lists: Vec<Vec<String>> = parameters(url)
        .filter(|(name, _)| LISTS.contains(&name.as_ref()))
        .map(|(_, value)| value.split(',').map(str::to_owned).collect())
        .collect();
    let count = lists.iter().map(Vec::len).max().unwrap_or(1);
    if let Some(other) = lists.iter().find(|list| ![1, count].contains(&list.len())) {
        return Err(HostsError::Uneven(count, other.len()));
    }
    if lists.iter().flatten().any(String::is_empty) {
        return Err(HostsError::Empty);
    }
    let single = |index: usize| {
        with_parameters(url, |name, value| {
            let items: Vec<&str> = value.split(',').collect();
            let item = items.get(index).or_else(|| items.first()).copied().unwrap_or_default();
            Some(if LISTS.contains(&name) { item.to_owned() } else { value.to_owned() })
        })
    };
    Ok((0..count).map(single).collect())
}

/// The URL with other parameters: `change` returns the new value of each, or `None` to drop it.
pub fn with_parameters(url: &str, change: impl Fn(&str, &str) -> Option<String>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters(url) {
        if let Some(value) = change(&name, &value) {
            query.append_pair(&name, &value);
        }
    }
    let (query, start) = (query.finish(), url.split(['?', '#']).next().unwrap_or_default());
    if query.is_empty() { start.to_owned() } else { format!("{start}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_of_a_list_has_a_url_of_its_own() {
        let each = |url: &str| each_host(url).expect("a list").join(" ");
        for (url, expected) in [
            ("postgres://u:p@a/x", "postgres://u:p@a/x"),
            ("postgres:///x?host=/run", "postgres:///x?host=/run"),
            (
                "postgres://u:p@a:1,b/x?sslmode=require",
                "postgres://u:p@a:1/x?sslmode=require postgres://u:p@b/x?sslmode=require",
            ),
            ("amqps://a,[::1]:2", "amqps://a amqps://[::1]:2"),
            ("postgres://u@/x?host=a,b&port=1,2", "postgres://u@/x?host=a&port=1 postgres://u@/x?host=b&port=2"),
            ("postgres://u@/x?host=a,b&port=7", "postgres://u@/x?host=a&port=7 postgres://u@/x?host=b&port=7"),
        ] {
            assert_eq!(each(url), expected, "{url}");
        }
    }

    #[test]
    fn a_malformed_list_is_refused_with_its_reason() {
        for (url, expected) in [
            ("postgres://u:p@a,,b/x", HostsError::Empty),
            ("postgres://u:p@a,/x", HostsError::Empty),
            ("postgres://u:p@:1,b/x", HostsError::Empty),
            ("postgres:///x?host=a,", HostsError::Empty),
            ("postgres://u:p@a:1,a:1/x", HostsError::Twice("a:1".to_owned())),
            ("postgres://u:p@a:http,b:1/x", HostsError::Port("a:http".to_owned())),
            ("postgres://u:p@a,b/x?port=1,2", HostsError::BothForms),
            ("postgres:///x?host=a,b&port=1,2,3", HostsError::Uneven(3, 2)),
        ] {
            assert_eq!(each_host(url), Err(expected), "{url}");
        }
    }
}
