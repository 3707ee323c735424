//! The state of the broker's connections, as far as this node knows.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::metrics::BrokerMetrics;

/// The state of both connections together: up when both are up.
#[derive(Clone, Debug)]
pub enum BrokerState {
    Down {
        reason: String,
        since: Instant,
    },
    /// `blocked`: the broker is short of memory or disk and takes no messages. It still delivers messages to
    /// this node.
    Up {
        blocked: bool,
    },
}

impl BrokerState {
    /// Whether publishing makes sense now.
    pub const fn takes_messages(&self) -> bool {
        matches!(self, Self::Up { blocked: false })
    }
}

/// The connections of a node. There are two, because a broker that blocks a publisher stops reading its
/// connection, acks included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Publishing,
    Consuming,
}

impl Role {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Publishing => "publishing",
            Self::Consuming => "consuming",
        }
    }
}

/// The board on which each connection reports its state.
pub(super) struct Board {
    sides: Mutex<Vec<(Role, BrokerState)>>,
    whole: watch::Sender<BrokerState>,
    metrics: Arc<BrokerMetrics>,
}

impl Board {
    pub(super) fn new(roles: &[Role], metrics: Arc<BrokerMetrics>) -> Self {
        let down = BrokerState::Down { reason: "not connected yet".to_owned(), since: Instant::now() };
        let sides = roles.iter().map(|role| (*role, down.clone())).collect();
        Self { sides: Mutex::new(sides), whole: watch::Sender::new(down), metrics }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<BrokerState> {
        self.whole.subscribe()
    }

    /// The reason why no message can be published now.
    pub(super) fn why_down(&self) -> String {
        match &*self.whole.borrow() {
            BrokerState::Down { reason, .. } => format!("not connected: {reason}"),
            BrokerState::Up { .. } => "not connected".to_owned(),
        }
    }

    pub(super) fn up(&self, role: Role, blocked: bool) {
        self.write(role, |_| BrokerState::Up { blocked });
    }

    /// Reports a failure. The side counts as down since the first of its failures in a row.
    pub(super) fn down(&self, role: Role, reason: String) {
        self.write(role, |before| {
            let since = match before {
                BrokerState::Down { since, .. } => *since,
                BrokerState::Up { .. } => Instant::now(),
            };
            BrokerState::Down { reason, since }
        });
    }

    fn write(&self, role: Role, next: impl FnOnce(&BrokerState) -> BrokerState) {
        let mut sides = self.sides.lock();
        if let Some((_, side)) = sides.iter_mut().find(|(of, _)| *of == role) {
            *side = next(side);
        }
        let whole = together(&sides);
        let (up, blocked) = match whole {
            BrokerState::Up { blocked } => (1, i64::from(blocked)),
            BrokerState::Down { .. } => (0, 0),
        };
        self.metrics.up.set(up);
        self.metrics.blocked.set(blocked);
        // The lock is still held, so the last write is also the last to become visible.
        self.whole.send_replace(whole);
    }
}

/// Combines the sides: down for as long as the side that has been down the longest.
fn together(sides: &[(Role, BrokerState)]) -> BrokerState {
    let mut any_blocked = false;
    let mut longest: Option<(Instant, &str)> = None;
    for (_, side) in sides {
        match side {
            BrokerState::Up { blocked } => any_blocked |= blocked,
            BrokerState::Down { reason, since } => {
                if longest.is_none_or(|(first, _)| *since < first) {
                    longest = Some((*since, reason));
                }
            }
        }
    }
    match longest {
        Some((since, reason)) => BrokerState::Down { reason: reason.to_owned(), since },
        None => BrokerState::Up { blocked: any_blocked },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_is_up_when_both_connections_are_and_down_since_the_first_that_is_not() {
        let metrics = Arc::new(BrokerMetrics::register(&prometheus::Registry::new()).unwrap());
        let board = Board::new(&[Role::Publishing, Role::Consuming], Arc::clone(&metrics));
        let state = board.subscribe();
        board.up(Role::Publishing, true);
        assert!(matches!(*state.borrow(), BrokerState::Down { .. }));
        board.up(Role::Consuming, false);
        assert!(matches!(*state.borrow(), BrokerState::Up { blocked: true }));
        assert_eq!((metrics.up.get(), metrics.blocked.get()), (1, 1));

        board.down(Role::Consuming, "first".to_owned());
        let BrokerState::Down { since: first, .. } = state.borrow().clone() else { panic!("it is down") };
        board.down(Role::Publishing, "second".to_owned());
        board.down(Role::Consuming, "third".to_owned());
        let BrokerState::Down { since, reason } = state.borrow().clone() else { panic!("it is down") };
        assert_eq!((since, reason.as_str()), (first, "third"));
        assert_eq!((metrics.up.get(), metrics.blocked.get()), (0, 0));
    }
}
