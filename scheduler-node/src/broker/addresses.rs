//! The addresses behind the names of brokers.

use std::{io, net::SocketAddr, time::Duration};

use parking_lot::Mutex;

/// The most addresses that are remembered: more than the brokers of a cluster have.
const REMEMBERED: usize = 64;

/// The addresses that took a connection and did not end its handshake, when they were tried last. The broker behind one
/// may be frozen: its kernel takes connections, and then the handshake uses up all of the time.
#[derive(Debug, Default)]
pub struct FailedAddresses(Mutex<Vec<SocketAddr>>);

impl FailedAddresses {
    /// Notes how a handshake with an address has ended. The loss of a connection that has served says nothing of the
    /// next handshake.
    pub(super) fn note(&self, address: SocketAddr, has_failed: bool) {
        let mut failed = self.0.lock();
        failed.retain(|one| *one != address);
        if has_failed {
            failed.push(address);
        }
        let surplus = failed.len().saturating_sub(REMEMBERED);
        failed.drain(..surplus);
    }

    /// Puts those among the addresses of a name last, the latest at the end. Whenever a name is resolved, the order may
    /// be another one, so no place in the list is remembered.
    pub(super) fn put_last(&self, addresses: &mut [SocketAddr]) {
        let failed = self.0.lock();
        addresses.sort_by_key(|address| failed.iter().position(|one| one == address));
    }
}

/// The addresses of a host.
pub(super) async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if let Some(addresses) = tests::named(host) {
        return Ok(addresses);
    }
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

/// Connects to the first of a host's addresses that answers. All but the last have the time `within` together, so that
/// one that keeps silent leaves time for the others.
pub(super) async fn first_to_answer<T, F>(
    addresses: &[SocketAddr],
    within: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let Some((last, others)) = addresses.split_last() else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
    let count = u32::try_from(others.len()).unwrap_or(u32::MAX);
    for address in others {
        let within = within / count;
        match tokio::time::timeout(within, connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => tracing::debug!(%address, %error, "an address of the broker takes no connection"),
            Err(_) => tracing::debug!(%address, ?within, "an address of the broker keeps silent"),
        }
    }
    connect(*last).await
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    /// The names that tests have made, with their addresses.
    static NAMES: Mutex<Vec<(&str, Vec<SocketAddr>)>> = Mutex::new(Vec::new());

    /// Makes a name that is looked up here before anywhere else.
    pub(in crate::broker) fn make_name(host: &'static str, addresses: Vec<SocketAddr>) {
        NAMES.lock().push((host, addresses));
    }

    pub(super) fn named(host: &str) -> Option<Vec<SocketAddr>> {
        NAMES.lock().iter().find(|(name, _)| *name == host).map(|(_, addresses)| addresses.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_keep_silent_leave_time_for_the_others() {
        let addresses: Vec<SocketAddr> = (1..=4).map(|host| ([127, 0, 0, host], 1).into()).collect();
        let connect = |address: SocketAddr| async move {
            if address.ip().to_string().ends_with(['1', '2', '3']) {
                std::future::pending::<()>().await;
            }
            Ok(address)
        };
        let (last, begun) = (addresses[3], tokio::time::Instant::now());
        assert_eq!(first_to_answer(&addresses, WITHIN, connect).await.unwrap(), last);
        assert!(begun.elapsed() <= WITHIN + Duration::from_millis(10), "{:?}", begun.elapsed());
    }

    #[test]
    fn addresses_whose_handshakes_failed_come_last_in_whatever_order_the_name_is_resolved() {
        let [one, two, three]: [SocketAddr; 3] = [1, 2, 3].map(|host| ([127, 0, 0, host], 1).into());
        let failed = FailedAddresses::default();
        let sorted = |mut addresses: [SocketAddr; 3]| {
            failed.put_last(&mut addresses);
            addresses
        };
        assert_eq!(sorted([two, one, three]), [two, one, three], "as they are resolved");
        failed.note(one, true);
        assert_eq!(sorted([one, two, three]), [two, three, one]);
        assert_eq!(sorted([three, one, two]), [three, two, one]);
        failed.note(two, true);
        assert_eq!(sorted([two, one, three]), [three, one, two], "each has its turn");
        failed.note(one, true);
        assert_eq!(sorted([one, two, three]), [three, two, one]);
        failed.note(one, false);
        assert_eq!(sorted([one, two, three]), [one, three, two], "a broker that goes on counts as any other");
    }

    #[test]
    fn a_bounded_number_of_addresses_is_remembered() {
        let failed = FailedAddresses::default();
        for port in 1..200 {
            failed.note(([127, 0, 0, 1], port).into(), true);
        }
        assert_eq!(failed.0.lock().len(), REMEMBERED);
    }
}
