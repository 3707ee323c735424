//! Free ports.

use std::{
    net::TcpListener,
    ops::Range,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    process,
};

use parking_lot::Mutex;

/// Below the kernel's ephemeral range, so that no outgoing connection takes a port while its server is being
/// restarted.
const PORTS: Range<u16> = 15_000..32_000;
/// So many ports are claimed at a time. A scenario needs some twenty.
const BLOCK: u16 = 500;

/// The ports that are left of what this process has claimed.
static CLAIMED: Mutex<Range<u16>> = Mutex::new(0..0);

/// A port of 127.0.0.1 without a listener. No other process gets it from this function while this one runs, so that a
/// server finds its port free when it starts again.
pub fn free_port() -> u16 {
    let mut claimed = CLAIMED.lock();
    loop {
        match claimed.next() {
            Some(port) if is_free(port) => return port,
            Some(_) => {}
            None => *claimed = claim_block(),
        }
    }
}

/// Whether a server can listen on this port of 127.0.0.1.
pub(super) fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// Claims a block of ports for as long as this process runs. The claim is a socket without a file, so the kernel gives
/// it up however the process ends.
///
/// Processes begin at different blocks: servers that a process has left running may be down for a while.
fn claim_block() -> Range<u16> {
    let blocks = PORTS.len() / usize::from(BLOCK);
    let start = usize::try_from(process::id()).expect("32 bits fit") % blocks;
    for first in PORTS.step_by(BLOCK.into()).cycle().skip(start).take(blocks) {
        let name = SocketAddr::from_abstract_name(format!("duetime-ports-{first}")).expect("the name is short");
        if let Ok(claim) = UnixListener::bind_addr(&name) {
            Box::leak(Box::new(claim));
            return first..first + BLOCK;
        }
    }
    panic!("no free port in {PORTS:?}: other processes have claimed all blocks");
}
