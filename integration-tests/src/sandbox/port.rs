//! Free ports.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Below the kernel's ephemeral range, so that no outgoing connection takes a port while its server is being
/// restarted.
const FIRST: u32 = 15_000;
const COUNT: u32 = 17_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port of 127.0.0.1 without a listener. Processes begin at different places, so that two at the same time seldom
/// collide.
pub fn free_port() -> u16 {
    let start = process::id().wrapping_mul(131);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let candidate = FIRST + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(candidate).expect("the range ends below 65536");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
