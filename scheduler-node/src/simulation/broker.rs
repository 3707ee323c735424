//! A node's connection to the simulated broker, which may lie about the outcome of a publish.

use std::{sync::Arc, time::Duration};

use common::outcome::Outcome;
use tokio::sync::watch;

use super::{
    mutant::Mutant,
    plan::{Kind, Rule},
    world::{Arrival, World},
};
use crate::{
    broker::{BrokerState, NotTaken, Outgoing, Publish, Published, Route},
    clock,
    supervise::spawn_child,
};

/// The broker's confirm deadline.
const CONFIRM_WITHIN_MS: u64 = 30_000;

#[derive(Clone, Debug)]
pub struct SimulatedBroker {
    pub world: Arc<World>,
    pub node: usize,
    pub incarnation: u32,
}

/// What becomes of one message: when it arrives, if at all, and what its publisher hears after how long.
struct Fate {
    arrives_after: Option<Duration>,
    heard_after: Duration,
    outcome: Outcome<(), NotTaken>,
}

impl SimulatedBroker {
    fn fate(&self) -> Fate {
        let world = &self.world;
        let quick = world.state().dice.millis(0, 5);
        let later = world.state().dice.millis(0, 5);
        let unknown = || Outcome::Unknown("the simulated broker is silent".to_owned());
        let fate = |arrives_after, heard_after, outcome| Fate { arrives_after, heard_after, outcome };
        if world.has(Kind::BrokerAway) {
            return fate(None, quick, unknown());
        }
        if world.strikes(Kind::Returned) {
            return fate(None, quick, Outcome::Refused(NotTaken::Unroutable));
        }
        if world.strikes(Kind::Nacked) {
            let arrives = world.state().dice.is_percent(30).then_some(quick);
            return fate(arrives, quick + later, Outcome::Refused(NotTaken::Nacked));
        }
        if world.strikes(Kind::PublishesLate) {
            let late = world.state().dice.millis(0, 20_000);
            let patience = world.state().dice.millis(0, 6_000);
            let outcome = if late < patience { Outcome::Done(()) } else { unknown() };
            return fate(Some(late), patience, outcome);
        }
        if world.strikes(Kind::ConfirmsLost) {
            let arrives = world.state().dice.is_percent(70).then_some(quick);
            let patience = if world.state().dice.is_percent(20) { CONFIRM_WITHIN_MS } else { 200 };
            return fate(arrives, Duration::from_millis(patience), unknown());
        }
        if world.strikes(Kind::ConfirmsLate) {
            let patience = world.state().dice.millis(100, CONFIRM_WITHIN_MS);
            return fate(Some(quick), quick + patience, Outcome::Done(()));
        }
        fate(Some(quick), quick + later, Outcome::Done(()))
    }

    fn lie(&self, outcome: Outcome<(), NotTaken>) -> Outcome<(), NotTaken> {
        match outcome {
            Outcome::Unknown(_) if self.world.is(Mutant::SettledBeforeConfirm) => Outcome::Done(()),
            Outcome::Refused(NotTaken::Unroutable) if self.world.is(Mutant::ReturnTrusted) => Outcome::Done(()),
            outcome => outcome,
        }
    }

    /// Lets a message arrive after a while, whatever has become of its publisher.
    fn send(&self, message: &Outgoing, after: Duration) {
        let (world, node, delivery) = (Arc::clone(&self.world), self.node, message.delivery.clone());
        drop(spawn_child(async move {
            tokio::time::sleep(after).await;
            let latest = world.latest(node);
            let (id, attempt) = (delivery.id, delivery.attempt.number());
            world.note(&format!("arrived {id}:{attempt}"));
            world.state().judge.arrived((id, attempt), delivery.redelivered, delivery.due_at, latest);
            let wants_report = delivery.queue.as_str() != Rule::Confirm.queue();
            // At the end of a run no consumer listens any more.
            let _ = world.arrivals.send(Arrival { id, attempt, wants_report }).await;
        }));
    }
}

impl Publish for SimulatedBroker {
    fn state(&self) -> watch::Receiver<BrokerState> {
        self.world.watch_broker()
    }

    async fn publish(&self, _route: &Route, batch: Vec<Outgoing>) -> Vec<Published> {
        self.world.alive(self.node, self.incarnation).await;
        let (mut published, mut last) = (Vec::new(), Duration::ZERO);
        for message in &batch {
            self.world.state().judge.handed_over((message.delivery.id, message.delivery.attempt.number()));
            if message.is_too_late(clock::instant()) {
                published.push(Published {
                    id: message.delivery.id,
                    attempt: message.delivery.attempt,
                    sent_at: None,
                    outcome: Outcome::Unknown("the simulated process stood still for too long".to_owned()),
                });
                continue;
            }
            let Fate { arrives_after, heard_after, outcome } = self.fate();
            if let Some(after) = arrives_after {
                self.send(message, after);
            }
            last = last.max(heard_after);
            published.push(Published {
                id: message.delivery.id,
                attempt: message.delivery.attempt,
                sent_at: arrives_after.map(|_| clock::instant()),
                outcome: self.lie(outcome),
            });
        }
        tokio::time::sleep(last).await;
        self.world.alive(self.node, self.incarnation).await;
        published
    }
}
