//! Databases that join a running node.
//!
//! A section of the configuration whose database the node does not use yet names a newcomer. The node looks at it
//! until it answers, has the schema of this version and belongs to this cluster; then it joins. Before that nothing
//! else of the node knows it, so whatever is wrong with it harms nothing. What has joined stays until the node ends.

use std::{sync::Arc, time::Duration};

use common::ids::ClusterId;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::watch;

use super::Node;
use crate::{
    causes::explained,
    config,
    loops::upkeep::prober::NodeFitness,
    store::{Database, Places, schema::Misfit},
};

/// The interval between two looks at a newcomer. Each opens a connection.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The databases that have not joined yet.
#[derive(Default)]
pub(super) struct Newcomers {
    names: Vec<String>,
    looks: FuturesUnordered<BoxFuture<'static, Arc<Database>>>,
}

impl Newcomers {
    /// The next one that may join. `None`: there are none.
    pub(super) async fn next(&mut self) -> Option<Arc<Database>> {
        self.looks.next().await
    }
}

impl Node {
    /// Takes the databases of a configuration that was read again and that the node does not use. They are looked at
    /// from now on, instead of the newcomers of an earlier call.
    pub(super) fn add_databases(&mut self, sections: Vec<config::Database>) {
        let before = std::mem::take(&mut self.newcomers);
        for name in before.names.iter().filter(|name| !self.uses(name)) {
            self.shared.metrics.end_database(name);
        }
        for section in sections {
            let name = section.name.as_str();
            self.shared.metrics.database_up.with_label_values(&[name]).set(0);
            let (places, cluster) = (self.shared.store.places().clone(), self.shared.cluster.subscribe());
            self.newcomers.looks.push(until_fit(self.shared.open(&section), places, cluster).boxed());
            self.newcomers.names.push(name.to_owned());
        }
    }

    fn uses(&self, name: &str) -> bool {
        self.shared.databases.all().iter().any(|database| database.name().as_str() == name)
    }

    /// Makes a newcomer a database like those from the start, without shards.
    pub(super) fn join(&mut self, database: Arc<Database>) {
        let shared = &self.shared;
        let index = shared.databases.add(shared.of_node(&database));
        shared.fitness.send_modify(NodeFitness::add);
        self.loops.start(shared, &mut self.crews, index);
        tracing::info!(database = %database.name(), place = database.place(), "the database has joined this node");
        self.reloader.joined(database.name());
        // Last: from here on a shard's place may be this database.
        shared.store.add(database);
    }
}

/// Looks at a newcomer until it may join.
async fn until_fit(
    database: Arc<Database>,
    places: Places,
    cluster: watch::Receiver<Option<ClusterId>>,
) -> Arc<Database> {
    let mut said = String::new();
    loop {
        let ours = *cluster.borrow();
        let Some(why) = why_not(&database, &places, ours).await else { return database };
        if said != why {
            tracing::warn!(database = %database.name(), why, "the database cannot join this node yet; looking again");
            said = why;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Why the database cannot join a node of the cluster `ours`. Without a reason, `places` knows its id from here on.
async fn why_not(database: &Database, places: &Places, ours: Option<ClusterId>) -> Option<String> {
    let fit = match database.schema_check().await {
        Ok(fit) => fit,
        Err(misfit) => return Some(explained(&misfit)),
    };
    let (Some(ours), Some(expected)) = (ours, places.shard_count()) else {
        return Some("no database of this node has answered yet".to_owned());
    };
    let name = database.name().clone();
    if fit.cluster != ours {
        return Some(explained(&Misfit::Cluster { database: name, found: fit.cluster, expected: ours }));
    }
    let found = fit.shard_count;
    if found != expected {
        return Some(explained(&Misfit::Shards { database: name, found, expected }));
    }
    let other = places.learn_id(fit.id, &name).err()?;
    Some(explained(&Misfit::Same { database: name, other }))
}

#[cfg(test)]
mod tests;
