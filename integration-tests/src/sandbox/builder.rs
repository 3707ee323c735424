//! The builder of a sandbox.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use tokio::sync::Mutex;

use super::{
    cluster::{READY_WITHIN, Sandbox},
    node::migrate,
    scratch, secret, shared,
};

/// One scenario at a time: they share the stores and the cores, and lateness depends on both.
static TURN: Mutex<()> = Mutex::const_new(());

/// The settings of a sandbox.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) nodes: usize,
    pub(super) databases: usize,
    pub(super) lease_ttl: Duration,
    pub(super) proxied: bool,
    pub(super) failpoints: BTreeMap<usize, String>,
    pub(super) more: String,
    pub(super) watched: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: 3,
            databases: 1,
            lease_ttl: Duration::from_secs(3),
            proxied: false,
            failpoints: BTreeMap::new(),
            more: String::new(),
            watched: true,
        }
    }
}

impl Builder {
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// One or two databases, each on a server of its own with half of the shards.
    pub fn databases(mut self, count: usize) -> Self {
        self.databases = count;
        self
    }

    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.lease_ttl = ttl;
        self
    }

    /// Puts a proxy into each link from a node to a store: see [`Sandbox::links`].
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Starts one node with fail points set.
    pub fn failpoints(mut self, node: usize, failpoints: &str) -> Self {
        self.failpoints.insert(node, failpoints.to_owned());
        self
    }

    /// Appends TOML to each node's configuration file.
    pub fn config(mut self, toml: &str) -> Self {
        self.more.push_str(toml);
        self
    }

    /// Does not poll the nodes for the owners of shards, which costs the nodes a little.
    pub fn unwatched(mut self) -> Self {
        self.watched = false;
        self
    }

    /// Waits for its turn, prepares the stores, migrates, starts the nodes and waits until every shard is owned.
    pub async fn start(self) -> Result<Sandbox> {
        let mut sandbox = self.prepare().await?;
        for _ in 0..sandbox.shape.nodes {
            sandbox.add_node().await?;
        }
        if let Some(first) = sandbox.nodes.first() {
            migrate(first).await?;
        }
        for (number, node) in sandbox.nodes.iter().enumerate() {
            let failpoints = sandbox.shape.failpoints.get(&number).map_or("", String::as_str);
            node.start_with_failpoints(failpoints)?;
        }
        for node in &sandbox.nodes {
            node.wait_ready(READY_WITHIN).await?;
        }
        if !sandbox.nodes.is_empty() {
            sandbox.settled().await?;
        }
        sandbox.watch = sandbox.shape.watched.then(|| sandbox.watch_owners());
        Ok(sandbox)
    }

    async fn prepare(self) -> Result<Sandbox> {
        ensure!((1..=2).contains(&self.databases), "a sandbox has one or two databases, not {}", self.databases);
        let turn = TURN.lock().await;
        let name = shared::unique("duetime");
        let (etcd, rabbit) = (shared::etcd().await?, shared::rabbit().await?);
        rabbit.add_vhost(&name).await?;
        let mut databases = Vec::new();
        for number in 0..self.databases {
            let server = if number == 0 { shared::postgres().await? } else { shared::second_postgres().await? };
            server.create_database(&name).await?;
            databases.push((server, name.clone()));
        }
        Ok(Sandbox {
            ledger: Arc::default(),
            token: secret::random(),
            folder: scratch::fresh(&name),
            nodes: Vec::new(),
            links: Vec::new(),
            databases,
            etcd,
            rabbit,
            name,
            consumers: parking_lot::Mutex::default(),
            watch: None,
            open_faults: parking_lot::Mutex::default(),
            shape: self,
            _turn: turn,
        })
    }
}
