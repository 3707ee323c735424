//! Makes sure that a database serves this node's realm before any other statement reaches it.
//!
//! So a second cluster on the same databases, with an etcd or a prefix of its own, owns no shard and fires no task. It
//! says why, and the first cluster goes on. The database changes hands when the first one has been silent.

use std::time::{Duration, Instant};

use common::cluster::realm::Realms;
use tokio::sync::watch;

use crate::{
    causes::explained,
    loops::cluster::realm_keeper::RealmStanding,
    store::{Database, realm::InUse},
};

/// The interval of the looks at a database that serves this node's realm. Each look keeps other realms out.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The longest wait for the realm of a node that starts.
const REALM_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Guard {
    standing: watch::Receiver<RealmStanding>,
    /// The last look at which the database served the realm of this node, and what the node knew then.
    agreed: Option<(Instant, Realms)>,
}

impl Guard {
    pub(super) fn new(standing: watch::Receiver<RealmStanding>) -> Self {
        Self { standing, agreed: None }
    }

    /// Lets statements through to a database that serves the realm of this node, and to no other. An error says why
    /// the database cannot be used.
    pub(super) async fn look(&mut self, database: &Database) -> Result<(), String> {
        if self.agreed.is_none() {
            // In vain while etcd does not answer or refuses: the reason is below.
            let known = self.standing.wait_for(|standing| standing.realms.current().is_some());
            let _ = tokio::time::timeout(REALM_WITHIN, known).await;
        }
        let RealmStanding { realms, refusal } = self.standing.borrow().clone();
        let Some(ours) = realms.current() else {
            return Err(refusal.unwrap_or_else(|| NO_REALM.to_owned()));
        };
        if self.agreed.as_ref().is_some_and(|(at, known)| at.elapsed() < LOOK_EVERY && *known == realms) {
            return Ok(());
        }
        match database.realm_hold(&realms).await {
            Ok(Some(serving)) if serving == ours => {
                self.agreed = Some((Instant::now(), realms));
                database.let_through(true);
                Ok(())
            }
            Ok(Some(other)) => {
                self.agreed = None;
                database.let_through(false);
                Err(InUse { by: other }.to_string())
            }
            Ok(None) => Err("another node begins to use it at this moment".to_owned()),
            // The database may be away or take no writes. A look that succeeded before stands until one says otherwise.
            Err(_) if self.agreed.is_some() => Ok(()),
            Err(error) => Err(explained(&error)),
        }
    }
}

const NO_REALM: &str = "etcd has not answered yet; it tells whether another cluster uses the database";

#[cfg(test)]
mod tests {
    use common::ids::RealmId;
    use uuid::Uuid;

    use super::*;
    use crate::store::tests::fixture;

    /// A node's guard, and the sender of what the node knows of its realm.
    fn guard() -> (Guard, watch::Sender<RealmStanding>) {
        let (standing, seen) = watch::channel(RealmStanding::default());
        (Guard::new(seen), standing)
    }

    fn finds(standing: &watch::Sender<RealmStanding>, realm: u128) {
        standing.send_modify(|standing| standing.realms.found(RealmId::new(Uuid::from_u128(realm))));
    }

    #[tokio::test]
    async fn statements_pass_only_while_the_database_serves_the_realm_of_the_node() {
        let test = fixture::database().await;
        let (first, second) =
            (fixture::awaiting_schema("main", &test.url), fixture::awaiting_schema("main", &test.url));
        let ((mut one, ours), (mut other, theirs)) = (guard(), guard());
        let why = one.look(&first).await.unwrap_err();
        assert!(why.contains("etcd") && first.queue_read().await.is_err(), "{why}");
        finds(&ours, 1);
        finds(&theirs, 2);
        one.look(&first).await.unwrap();
        first.queue_read().await.unwrap();
        let why = other.look(&second).await.unwrap_err();
        assert!(why.contains("another cluster") && second.queue_read().await.is_err(), "{why}");

        // The first node is frozen for longer than the others wait, and comes back.
        test.silence_realm().await;
        other.look(&second).await.unwrap();
        second.queue_read().await.unwrap();
        one.agreed = None;
        let why = one.look(&first).await.unwrap_err();
        assert!(why.contains("another cluster") && first.queue_read().await.is_err(), "{why}");

        // The etcd of the second loses its data: the node takes the database along at once.
        finds(&theirs, 3);
        other.look(&second).await.unwrap();
        assert_eq!(second.realm_read().await.unwrap(), Some(RealmId::new(Uuid::from_u128(3))));
    }
}
