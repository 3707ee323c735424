//! Who counts as one client of those that only an address tells apart.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or the /64 network that one IPv6 subscriber has.
pub fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}
