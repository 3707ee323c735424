//! One thread that starts every process, and stays.
//!
//! The kernel sends a parent-death signal when the *thread* that forked ends. Tests run on threads that come and go,
//! so a process that must live as long as the test binary is started from here.

use std::{
    io,
    process::{Child, Command},
    sync::{OnceLock, mpsc},
    thread,
};

struct Order {
    command: Command,
    answer: mpsc::SyncSender<io::Result<Child>>,
}

static ORDERS: OnceLock<mpsc::SyncSender<Order>> = OnceLock::new();

/// Starts `command` as a child of a thread that lives as long as this process.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    let orders = ORDERS.get_or_init(|| {
        let (orders, incoming) = mpsc::sync_channel::<Order>(16);
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for mut order in incoming {
                    let child = order.command.spawn();
                    // The requester waits for the answer. If it is gone, the child has no owner and must end.
                    if let Err(mpsc::SendError(Ok(mut orphan))) = order.answer.send(child) {
                        orphan.kill().ok();
                    }
                }
            })
            .expect("a thread can be started");
        orders
    });
    let (answer, outcome) = mpsc::sync_channel(1);
    orders.send(Order { command, answer }).map_err(|_| io::Error::other("the spawner thread has ended"))?;
    outcome.recv().map_err(|_| io::Error::other("the spawner thread has ended"))?
}
