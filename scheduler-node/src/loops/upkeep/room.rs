//! Lets this node hold more messages while a database is away from all nodes, or answers and takes no writes.
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

/// Whether no node reaches one of the databases, or one takes no writes: that one takes none from other nodes either.
fn lost(fitness: &NodeFitness, view: &ClusterView) -> bool {
    fitness.unfit.keys().any(|database| !view.is_reached(database))
        || fitness.unwritable.iter().any(|database| fitness.is_fit(database))
}

#[cfg(test)]
mod tests {
    use common::ids::DatabaseName;

    use super::*;
    use crate::{coordination::tests::member, loops::upkeep::prober::Unfit, store::tests::node};

    #[test]
    fn a_database_that_takes_no_writes_is_lost_to_all_nodes_and_one_behind_a_cut_is_not() {
        let (main, other) = (DatabaseName::new("main"), node("b"));
        let view = ClusterView { members: [(other.name.clone(), member(&other))].into(), ..ClusterView::default() };
        let mut fitness = NodeFitness { databases: 1, ..NodeFitness::default() };
        assert!(!lost(&fitness, &view));
        fitness.unwritable.insert(main.clone());
        assert!(lost(&fitness, &view));
        fitness.unfit.insert(main, Unfit::away("no route".to_owned()));
        assert!(!lost(&fitness, &view), "the other node writes to it");
        fitness.unwritable.clear();
        assert!(lost(&fitness, &ClusterView::default()), "no node reaches it");
    }
}
