//! Lets this node hold more messages while a database is away from all nodes.
//!
//! Reports on its tasks, and submissions for it, wait without an answer, here or at RabbitMQ, which delivers them
//! before all others. Once they fill what a node usually holds, no message for another database comes: deadlines would
//! pass, consumers would do their work again, and tasks would come late. While another node reaches the database, they
//! soon come to that one.

use common::cluster::ClusterView;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::prober::NodeFitness;
use crate::{broker::Broker, coordination::Views};

/// Follows what the nodes reach until `stop`.
pub async fn follow(
    mut fitness: watch::Receiver<NodeFitness>,
    mut views: Views,
    broker: Broker,
    stop: CancellationToken,
) {
    loop {
        let lost = lost(&fitness.borrow_and_update(), &views.borrow_and_update());
        broker.hold_more(lost);
        tokio::select! {
            answer = fitness.changed() => if answer.is_err() { return },
            answer = views.changed() => if answer.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Whether no node reaches one of the databases.
fn lost(fitness: &NodeFitness, view: &ClusterView) -> bool {
    fitness.unfit.keys().any(|database| !view.is_reached(database))
}
