//! Speaks to the hosts of other nodes: whether a node's port takes a connection.

use std::{io, net::SocketAddr, time::Duration};

use common::cluster::suspicion::Sign;
use hyper::Uri;
use tokio::net::{TcpStream, lookup_host};

/// The longest wait for a host. One on the same network answers or refuses within milliseconds.
const KNOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// The most addresses of one name that are tried: one of each family, twice.
const ADDRESSES_MOST: usize = 4;

/// The port on which a node said that it listens.
#[derive(Clone, Debug)]
pub struct Port {
    /// Host and port, as one text.
    authority: Option<String>,
    /// The address that took a connection. Later connections go to it: the name of a pod that is not ready may lead
    /// nowhere.
    address: Option<SocketAddr>,
}

impl Port {
    /// `url`: the URL that the node advertises. Without a host in it no connection is tried.
    pub fn of(url: Option<&str>) -> Self {
        Self { authority: url.and_then(authority), address: None }
    }

    /// Opens a connection and closes it again. `Ended`: the host refuses the port at the address that took a connection
    /// before, or at every address of the name.
    pub async fn knock(&mut self) -> Sign {
        tokio::time::timeout(KNOCK_TIMEOUT, self.try_addresses()).await.unwrap_or(Sign::Unknown)
    }

    async fn try_addresses(&mut self) -> Sign {
        if let Some(address) = self.address {
            return sign(&TcpStream::connect(address).await);
        }
        let Some(authority) = &self.authority else { return Sign::Unknown };
        let Ok(addresses) = lookup_host(authority).await else { return Sign::Unknown };
        let mut last = Sign::Unknown;
        for address in addresses.take(ADDRESSES_MOST) {
            match sign(&TcpStream::connect(address).await) {
                Sign::Alive => {
                    self.address = Some(address);
                    return Sign::Alive;
                }
                Sign::Unknown => return Sign::Unknown,
                Sign::Ended => last = Sign::Ended,
            }
        }
        last
    }
}

fn authority(url: &str) -> Option<String> {
    let url: Uri = url.parse().ok()?;
    let port = url.port_u16().or_else(|| match url.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    });
    Some(format!("{}:{}", url.host()?, port?))
}

/// Only a refusal says that no process listens. A silent host may be frozen, cut off or without power.
fn sign<T>(connected: &io::Result<T>) -> Sign {
    match connected {
        Ok(_) => Sign::Alive,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Sign::Ended,
        Err(_) => Sign::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_port_is_alive_while_a_process_listens_and_ended_when_the_host_refuses_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut port = Port::of(Some(&format!("http://localhost:{}", listener.local_addr().unwrap().port())));
        assert_eq!(port.knock().await, Sign::Alive);
        drop(listener);
        assert_eq!(port.knock().await, Sign::Ended);
    }

    #[tokio::test]
    async fn a_host_that_cannot_be_asked_says_nothing() {
        for url in [None, Some("not a url"), Some("http://no-such-host.invalid:80"), Some("node-1")] {
            assert_eq!(Port::of(url).knock().await, Sign::Unknown, "{url:?}");
        }
    }

    #[test]
    fn the_port_of_a_url_without_one_is_that_of_its_scheme() {
        for (url, expected) in
            [("https://a.example/", "a.example:443"), ("http://a", "a:80"), ("http://[::1]:8080/x", "[::1]:8080")]
        {
            assert_eq!(authority(url).as_deref(), Some(expected));
        }
    }
}
