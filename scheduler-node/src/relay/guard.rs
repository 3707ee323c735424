//! The addresses that a callback may call: public ones, and those that an operator has allowed.
//!
//! The guard is the only resolver of names, and the client connects only to the addresses that it returns. A
//! name that changes its address between a check and a connect therefore gains nothing.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Networks without public hosts: RFC 6890 and its registry.
const SPECIAL_V4: [(Ipv4Addr, u8); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local; the metadata of every cloud is behind 169.254.169.254.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // Azure's own services for each machine. The address lies among public ones.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast, reserved and broadcast.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// Global unicast: everything else is special.
const GLOBAL_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
/// The special networks among the global ones: protocol assignments with Teredo, documentation, and 6to4, which
/// has an IPv4 address inside.
const SPECIAL_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

#[derive(Clone, Debug)]
pub(super) struct Guard {
    allowed: Arc<[IpNet]>,
}

/// A call refused before anything was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} is at {address}, which is not public; to call it, allow it with `--allow-network`")]
pub(super) struct Refused {
    host: String,
    address: IpAddr,
}

impl Guard {
    pub(super) fn new(allowed: Vec<IpNet>) -> Self {
        Self { allowed: allowed.into() }
    }

    pub(super) fn lets_through(&self, address: IpAddr) -> bool {
        // An IPv4 address mapped into IPv6 counts as the IPv4 address.
        let address = address.to_canonical();
        is_public(address) || self.allowed.iter().any(|network| network.contains(&address))
    }

    /// Checks a host that is a literal address, because such a host is not looked up.
    pub(super) fn check_literal(&self, host: &str) -> Result<(), Refused> {
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) if !self.lets_through(address) => Err(Refused { host: host.to_owned(), address }),
            _ => Ok(()),
        }
    }

    /// The addresses among `found` to which the client may connect.
    fn choose(&self, host: &str, found: &[SocketAddr]) -> Result<Vec<SocketAddr>, Refused> {
        let through: Vec<SocketAddr> = found.iter().copied().filter(|of| self.lets_through(of.ip())).collect();
        match found.first() {
            Some(first) if through.is_empty() => Err(Refused { host: host.to_owned(), address: first.ip() }),
            _ => Ok(through),
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let addresses: Addrs = Box::new(guard.choose(name.as_str(), &found)?.into_iter());
            Ok(addresses)
        })
    }
}

fn is_public(address: IpAddr) -> bool {
    let lies_in = |(network, prefix): (IpAddr, u8)| IpNet::new_assert(network, prefix).contains(&address);
    match address {
        IpAddr::V4(_) => !SPECIAL_V4.into_iter().any(|(network, prefix)| lies_in((network.into(), prefix))),
        IpAddr::V6(_) => {
            lies_in((GLOBAL_V6.0.into(), GLOBAL_V6.1))
                && !SPECIAL_V6.into_iter().any(|(network, prefix)| lies_in((network.into(), prefix)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        Guard::new(allowed.iter().map(|network| network.parse().expect("a network")).collect())
    }

    #[test]
    fn only_public_addresses_are_let_through() {
        for (address, is_let_through) in [
            ("93.184.215.14", true),
            ("9.255.255.255", true),
            ("172.32.0.1", true),
            ("168.63.129.15", true),
            ("168.63.129.16", false),
            ("::ffff:168.63.129.16", false),
            ("2606:2800:21f::1", true),
            ("::ffff:93.184.215.14", true),
            ("0.0.0.0", false),
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("127.8.9.10", false),
            ("169.254.169.254", false),
            ("172.31.255.255", false),
            ("192.168.1.1", false),
            ("198.19.0.1", false),
            ("224.0.0.1", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:a9fe:a9fe", false),
            ("64:ff9b::7f00:1", false),
            ("2002:7f00:1::", false),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("fc00::1", false),
            ("fd00:ec2::254", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(guard(&[]).lets_through(address), is_let_through, "{address}");
        }
    }

    #[test]
    fn what_is_allowed_by_hand_is_let_through_and_nothing_beside_it() {
        let guard = guard(&["10.1.0.0/16", "::1/128"]);
        for (address, is_let_through) in
            [("10.1.9.9", true), ("::ffff:10.1.9.9", true), ("10.2.0.1", false), ("::1", true), ("127.0.0.1", false)]
        {
            assert_eq!(guard.lets_through(address.parse().expect("an address")), is_let_through, "{address}");
        }
    }

    #[test]
    fn of_several_addresses_only_those_that_may_be_are_connected_to() {
        let found: Vec<SocketAddr> =
            ["127.0.0.1:0", "93.184.215.14:0"].iter().map(|text| text.parse().expect("an address")).collect();
        assert_eq!(guard(&[]).choose("both.example", &found), Ok(vec![found[1]]));
        let refused = guard(&[]).choose("inside.example", &found[..1]).expect_err("it is not public");
        assert!(refused.to_string().starts_with("inside.example is at 127.0.0.1"), "{refused}");
        assert!(guard(&[]).check_literal("[::1]").is_err() && guard(&[]).check_literal("127.0.0.1").is_err());
        assert!(guard(&[]).check_literal("localhost").is_ok(), "a name is looked up first");
    }
}
