//! Whether this node can do its work, and if not, why.
//!
//! A node becomes ready once it has reached everything it needs. If it loses something later, it names the loss,
//! but stays ready while it can still accept tasks durably. A broker or an etcd that all nodes lose together must
//! not take the API away with them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{BrokerState, ExchangeTroubles},
    loops::{
        cluster::session_keeper::{Session, SessionState},
        upkeep::prober::NodeFitness,
    },
    supervise::Pulse,
    working_set::set_aside::SetAside,
};

#[derive(Clone, Debug)]
pub struct Readiness {
    fitness: watch::Receiver<NodeFitness>,
    broker: watch::Receiver<BrokerState>,
    session: watch::Receiver<Session>,
    leaving: CancellationToken,
    exchanges: ExchangeTroubles,
    set_aside: SetAside,
    pulse: Pulse,
    /// Whether everything was reachable at the same time, once.
    complete: Arc<AtomicBool>,
}

/// The answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub ready: bool,
    pub reasons: Vec<String>,
}

impl Readiness {
    pub fn new(
        fitness: watch::Receiver<NodeFitness>,
        broker: watch::Receiver<BrokerState>,
        session: watch::Receiver<Session>,
        leaving: CancellationToken,
        exchanges: ExchangeTroubles,
        set_aside: SetAside,
        pulse: Pulse,
    ) -> Self {
        Self { fitness, broker, session, leaving, exchanges, set_aside, pulse, complete: Arc::default() }
    }

    pub fn report(&self) -> Report {
        let mut reasons = Vec::new();
        let fitness = self.fitness.borrow().clone();
        reasons.extend(fitness.unfit.iter().map(|(database, why)| format!("database {database}: {why}")));
        match &*self.broker.borrow() {
            BrokerState::Down { reason, .. } => reasons.push(format!("amqp: {reason}")),
            BrokerState::Up { blocked: true } => reasons.push("amqp: the broker has blocked the connection".to_owned()),
            BrokerState::Up { blocked: false } => {}
        }
        match &self.session.borrow().standing {
            SessionState::Joined => {}
            SessionState::Joining => reasons.push("etcd: not registered, no answer yet".to_owned()),
            SessionState::NameTaken { .. } => {
                reasons.push("etcd: another node has this name; waiting until its lease expires".to_owned())
            }
            SessionState::Left => reasons.push("etcd: this node has left".to_owned()),
        }
        if reasons.is_empty() {
            self.complete.store(true, Ordering::Relaxed);
        }
        // Trouble with one exchange is named, and does not keep the node from being ready.
        reasons.extend(self.exchanges.reasons().into_iter().map(|why| format!("amqp: {why}")));
        // Rows that a database refuses are named too, and the rest goes on.
        reasons.extend(self.set_aside.reasons());
        // A stalled loop needs a person; the API of this node still takes tasks.
        reasons.extend(self.pulse.reasons(Instant::now()));
        let leaving = self.leaving.is_cancelled();
        if leaving {
            reasons.push("this node is stopping".to_owned());
        }
        let any_database = fitness.any_fit();
        Report { ready: self.complete.load(Ordering::Relaxed) && any_database && !leaving, reasons }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::supervise::{LoopKind, at_work};

    #[tokio::test]
    async fn a_stalled_loop_is_named_and_the_node_stays_ready() {
        let session = Session { standing: SessionState::Joined, lease: None, candidacy: None, last_renewal: None };
        let fitness = NodeFitness { databases: 1, ..NodeFitness::default() };
        let pulse = Pulse::with_bound(|_| Duration::ZERO);
        let readiness = Readiness::new(
            watch::channel(fitness).1,
            watch::channel(BrokerState::Up { blocked: false }).1,
            watch::channel(session).1,
            CancellationToken::new(),
            ExchangeTroubles::default(),
            SetAside::default(),
            pulse.clone(),
        );
        assert_eq!(readiness.report(), Report { ready: true, reasons: Vec::new() });
        let work = pulse.run(LoopKind::Settler, async { at_work() }).await;
        let report = readiness.report();
        assert!(report.ready && report.reasons.len() == 1 && report.reasons[0].contains("settler"), "{report:?}");
        drop(work);
        assert_eq!(readiness.report(), Report { ready: true, reasons: Vec::new() });
    }
}
