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
