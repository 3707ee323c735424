//! The builder of a sandbox.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use tokio::sync::Mutex;

use super::{
    Etcd, Postgres, Rabbit, Tether,
    cluster::{READY_WITHIN, Sandbox},
    node::migrate,
    postgres::may_mount,
    scratch, secret, shared,
};

/// One scenario of a process at a time: they share its stores, and some break them.
static TURN: Mutex<()> = Mutex::const_new(());

/// The number of shards that `duetime migrate` chooses.
const DEFAULT_SHARDS: u32 = 256;

/// The number that clusters of two databases state.
const FEWER_SHARDS: u32 = 128;

/// The settings of a sandbox.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) nodes: usize,
    pub(super) databases: usize,
    pub(super) first_has_all: bool,
    pub(super) shards: Option<u32>,
    pub(super) standby: bool,
    pub(super) last_in_room: bool,
    pub(super) etcd_members: usize,
    pub(super) brokers: usize,
    pub(super) lease_ttl: Duration,
    pub(super) proxied: bool,
    pub(super) failpoints: BTreeMap<usize, String>,
    pub(super) more: String,
    pub(super) watched: bool,
    pub(super) compared: bool,
    pub(super) program: Option<PathBuf>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: 3,
            databases: 1,
            first_has_all: false,
            shards: None,
            standby: false,
            last_in_room: false,
            etcd_members: 1,
            brokers: 1,
            lease_ttl: Duration::from_secs(3),
            proxied: false,
            failpoints: BTreeMap::new(),
            more: String::new(),
            watched: true,
            compared: false,
            program: None,
        }
    }
}

impl Builder {
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// So many databases, each on a server of its own with its part of the shards.
    pub fn databases(mut self, count: usize) -> Self {
        self.databases = count;
        self
    }

    /// Gives the first database all shards; the others begin empty.
    pub fn first_has_all(mut self) -> Self {
        self.first_has_all = true;
        self
    }

    /// States the number of shards.
    pub fn shards(mut self, count: u32) -> Self {
        self.shards = Some(count);
        self.config(&format!("[cluster]\nshards = {count}\n"))
    }

    /// The number that is stated, or that the program chooses. Two databases state ranges.
    pub(super) fn shard_count(&self) -> u32 {
        let is_ranged = self.databases > 1 && !self.first_has_all;
        self.shards.unwrap_or(if is_ranged { FEWER_SHARDS } else { DEFAULT_SHARDS })
    }

    /// Puts the first database on servers of this sandbox alone: a primary and a synchronous standby. The nodes know
    /// both.
    pub fn standby(mut self) -> Self {
        self.standby = true;
        self
    }

    /// Puts the last database on a server of this sandbox alone whose room can be taken away, where this machine
    /// permits it.
    pub fn last_in_room(mut self) -> Self {
        self.last_in_room = may_mount();
        self
    }

    /// Several members, of this sandbox alone.
    pub fn etcd_members(mut self, count: usize) -> Self {
        self.etcd_members = count;
        self
    }

    /// A cluster of several brokers, of this sandbox alone. Each node knows all of them and prefers another one.
    pub fn brokers(mut self, count: usize) -> Self {
        self.brokers = count;
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

    /// Migrates with another `duetime`, and starts each node with it.
    pub fn program(mut self, program: &Path) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// Does not poll the nodes for the owners of shards. Nodes keep no history, unless it is compared at the end. Both
    /// cost the nodes a little.
    pub fn unwatched(mut self) -> Self {
        self.watched = false;
        self
    }

    /// Compares the nodes' histories with the model of claims at the end. Not for a scenario that loses commits or
    /// changes rows by hand.
    pub fn compared(mut self) -> Self {
        self.compared = true;
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
        let most = shared::POSTGRES_MAX;
        ensure!((1..=most).contains(&self.databases), "a sandbox has 1 to {most} databases, not {}", self.databases);
        let turn = TURN.lock().await;
        let name = shared::unique("duetime");
        let brokers: Vec<&'static Rabbit> = match self.brokers {
            1 => vec![shared::rabbit().await?],
            count => {
                let cluster = Rabbit::start_cluster(&scratch::fresh("rabbit"), count, Tether::Tethered).await?;
                cluster.into_iter().map(own).collect()
            }
        };
        let rabbit = brokers[0];
        let etcd = match self.etcd_members {
            1 => shared::etcd().await?,
            members => own(Etcd::start(&scratch::fresh("etcd"), members, Tether::Tethered).await?),
        };
        rabbit.add_vhost(&name).await?;
        let mut databases = Vec::new();
        let mut standby = None;
        if self.standby {
            let primary = own(Postgres::start(&scratch::fresh("postgres"), Tether::Tethered).await?);
            primary.create_database(&name).await?;
            standby = Some(own(primary.add_standby(&scratch::fresh("postgres")).await?));
            databases.push((primary, name.clone()));
        }
        for number in databases.len()..self.databases {
            let server = if self.last_in_room && number + 1 == self.databases {
                own(Postgres::start_in_room(&scratch::fresh("postgres"), Tether::Tethered).await?)
            } else {
                shared::numbered_postgres(number).await?
            };
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
            standby,
            etcd,
            brokers,
            name,
            consumers: parking_lot::Mutex::default(),
            watch: None,
            open_faults: parking_lot::Mutex::default(),
            shape: self,
            _turn: turn,
        })
    }
}

/// Keeps a store for as long as the process runs, as the shared ones are kept. The sandbox ends it.
fn own<T>(store: T) -> &'static T {
    Box::leak(Box::new(store))
}
