//! A cluster of nodes on stores that the tests of this process share.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::{sync::MutexGuard, task::JoinHandle, time::Instant};

use super::{
    Builder, Etcd, Postgres, Rabbit,
    node::{DatabaseConfig, Node, NodeConfig},
    port::free_port,
    process::Tether,
    proxy::Proxy,
    scratch, shared,
};
use crate::{
    client::Client,
    clock::now_ms,
    consumer::{Answer, Consumer, Script},
    ledger::{Fault, Ledger, Retries},
};

pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// A cluster for one scenario: its own databases, etcd prefix and virtual host, its own nodes. Dropping it ends them.
#[derive(Debug)]
pub struct Sandbox {
    /// The record of every part of the scenario.
    pub ledger: Arc<Ledger>,
    pub(super) shape: Builder,
    pub(super) name: String,
    pub(super) token: String,
    pub(super) folder: PathBuf,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<Links>,
    pub(super) databases: Vec<(&'static Postgres, String)>,
    pub(super) standby: Option<&'static Postgres>,
    pub(super) etcd: &'static Etcd,
    /// At least one.
    pub(super) brokers: Vec<&'static Rabbit>,
    pub(super) watch: Option<JoinHandle<()>>,
    /// They consume until the scenario has been judged.
    pub(super) consumers: parking_lot::Mutex<Vec<Consumer>>,
    pub(super) open_faults: parking_lot::Mutex<BTreeMap<usize, Fault>>,
    pub(super) _turn: MutexGuard<'static, ()>,
}

/// A node's links to its stores, when they lead through proxies.
#[derive(Debug)]
pub struct Links {
    pub databases: Vec<Proxy>,
    /// To the standby of the first database.
    pub standby: Option<Proxy>,
    pub etcd: Vec<Proxy>,
    /// To the first broker.
    pub rabbit: Proxy,
    pub other_brokers: Vec<Proxy>,
}

impl Links {
    /// All links to databases.
    pub fn to_postgres(&self) -> Vec<&Proxy> {
        self.databases.iter().chain(&self.standby).collect()
    }

    /// All links to brokers.
    pub fn to_rabbit(&self) -> Vec<&Proxy> {
        std::iter::once(&self.rabbit).chain(&self.other_brokers).collect()
    }
}

impl Sandbox {
    /// Three nodes on one database, leases of 3 s.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Adds one more node, configured and not started.
    pub async fn add_node(&mut self) -> Result<usize> {
        let number = self.nodes.len();
        let links = if self.shape.proxied { Some(self.lay_links().await?) } else { None };
        let config = NodeConfig {
            name: format!("node-{}", number + 1),
            etcd_endpoints: match &links {
                Some(links) => links.etcd.iter().map(|proxy| format!("http://127.0.0.1:{}", proxy.port())).collect(),
                None => self.etcd.endpoints(),
            },
            etcd_prefix: format!("/{}", self.name),
            lease_ttl: self.shape.lease_ttl,
            databases: self.database_configs(links.as_ref()),
            amqp_url: match &links {
                Some(links) => self.amqp_urls_through(number, links.to_rabbit().iter().map(|link| link.port())),
                None => self.amqp_urls_through(number, self.brokers.iter().map(|broker| broker.port())),
            },
            port: free_port(),
            token: self.token.clone(),
            more: self.shape.more.clone(),
        };
        let mut node = Node::new(&self.folder, config, Tether::Tethered)?;
        if !self.shape.watched && !self.shape.compared {
            node = node.without_history();
        }
        node.set_program(self.shape.program.as_deref());
        self.nodes.push(node);
        self.links.extend(links);
        Ok(number)
    }

    /// Makes a second database, empty, on a server of its own. Returns the section that names it.
    pub async fn add_database(&mut self) -> Result<DatabaseConfig> {
        let server = shared::numbered_postgres(self.databases.len()).await?;
        server.create_database(&self.name).await?;
        self.databases.push((server, self.name.clone()));
        self.shape.databases = self.databases.len();
        let name = format!("db{}", self.databases.len());
        Ok(DatabaseConfig { name, url: server.url(&self.name), shards: String::new() })
    }

    /// The folder of this sandbox's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the nodes' histories are compared with the model at the end of a scenario.
    pub fn is_compared(&self) -> bool {
        self.shape.compared && self.nodes.iter().all(Node::is_told)
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// The links of one node to its stores; only when the sandbox was built `proxied`.
    pub fn links(&self, node: usize) -> &Links {
        &self.links[node]
    }

    pub fn client(&self, number: usize) -> Client {
        self.nodes[number].client()
    }

    /// One client for each node.
    pub fn clients(&self) -> Vec<Client> {
        self.nodes.iter().map(Node::client).collect()
    }

    pub fn etcd(&self) -> &'static Etcd {
        self.etcd
    }

    /// The broker; of a cluster the first one.
    pub fn rabbit(&self) -> &'static Rabbit {
        self.brokers[0]
    }

    /// The brokers of the cluster.
    pub fn brokers(&self) -> &[&'static Rabbit] {
        &self.brokers
    }

    /// The URL of all brokers for a node, which begins with another one for each node.
    fn amqp_urls_through(&self, node: usize, ports: impl Iterator<Item = u16>) -> String {
        let mut ports: Vec<u16> = ports.collect();
        let count = ports.len();
        ports.rotate_left(node % count);
        let url = self.rabbit().url_through(ports[0], &self.name);
        let more: String = ports[1..].iter().map(|port| format!(",127.0.0.1:{port}")).collect();
        url.replacen(&format!(":{}/", ports[0]), &format!(":{}{more}/", ports[0]), 1)
    }

    pub fn postgreses(&self) -> impl Iterator<Item = &'static Postgres> {
        self.databases.iter().map(|(server, _)| *server)
    }

    pub fn postgres(&self, database: usize) -> &'static Postgres {
        self.databases[database].0
    }

    /// Whether the first database has a standby.
    pub fn has_standby(&self) -> bool {
        self.standby.is_some()
    }

    /// The standby of the first database; only when the sandbox was built with one.
    pub fn standby(&self) -> &'static Postgres {
        self.standby.expect("the sandbox was built with a standby")
    }

    /// The URL of a database for applications.
    pub fn database_url(&self, database: usize) -> String {
        let (server, name) = &self.databases[database];
        server.url(name)
    }

    pub fn amqp_url(&self) -> String {
        self.rabbit().url(&self.name)
    }

    /// One URL for each broker, for applications.
    pub fn broker_urls(&self) -> Vec<String> {
        self.brokers.iter().map(|broker| broker.url(&self.name)).collect()
    }

    /// The URLs at which a database may be: that of its server, and that of its standby.
    pub fn server_urls(&self, database: usize) -> Vec<String> {
        let standby = self.standby.filter(|_| database == 0).map(|standby| standby.url(&self.name));
        std::iter::once(self.database_url(database)).chain(standby).collect()
    }

    /// The number of databases.
    pub fn database_count(&self) -> usize {
        self.databases.len()
    }

    /// The virtual host of this sandbox.
    pub fn vhost(&self) -> &str {
        &self.name
    }

    pub fn lease_ttl(&self) -> Duration {
        self.shape.lease_ttl
    }

    /// Sets a queue's policy and attaches a consumer to it; the consumer is ready when this returns.
    pub async fn consume(
        &self,
        queue: &str,
        policy: &Value,
        script: impl Fn(&crate::ledger::Delivery) -> Answer + Send + Sync + 'static,
    ) -> Result<()> {
        self.put_queues(&[(queue, policy.clone())]).await?;
        self.ledger.retries(queue, Retries::of(policy));
        let script: Script = Arc::new(script);
        let consumer = Consumer::scripted(&self.amqp_url(), queue, &self.ledger, script);
        // The queue exists at the latest when a message has been published to it.
        let number = self.ledger.submitting(queue, now_ms());
        let task = json!({ "queue": queue, "payload": { "n": number, "warm_up": true } });
        self.ledger.accepted(number, &self.live()?.submit(&task).await?.id);
        consumer.attached(READY_WITHIN).await?;
        self.consumers.lock().push(consumer);
        self.ledger.wait_delivered(number, 1, READY_WITHIN).await.map(drop)
    }

    /// Keeps a consumer until the sandbox ends.
    pub fn keep(&self, consumer: Consumer) {
        self.consumers.lock().push(consumer);
    }

    /// Disconnects the kept consumers of a queue until they are let go.
    pub fn hold_consumers(&self, queue: &str, is_held: bool) {
        self.consumers.lock().iter().filter(|consumer| consumer.queue() == queue).for_each(|one| one.hold(is_held));
    }

    /// Sets queues' policies. They are in force on every node for what is accepted after the answers.
    pub async fn put_queues(&self, queues: &[(&str, Value)]) -> Result<()> {
        let client = self.live()?;
        for (queue, policy) in queues {
            client.put_queue(queue, policy).await?;
        }
        Ok(())
    }

    /// Attaches a consumer that acks everything.
    pub async fn consume_and_ack(&self, queue: &str, policy: &Value) -> Result<()> {
        self.consume(queue, policy, |_| Answer::ack()).await
    }

    /// The number of shards of the cluster.
    pub fn shard_count(&self) -> u32 {
        self.shape.shard_count()
    }

    /// The number of the node that reports itself as master.
    pub async fn master(&self) -> Result<usize> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_running()) {
                if matches!(node.client().metric("duetime_master").await, Ok(Some(1.0))) {
                    return Ok(number);
                }
            }
            ensure!(Instant::now() < deadline, "no node has become master");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the running nodes own all shards between them, each a fair part.
    pub async fn settled(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            let owned = self.owned().await;
            let shards = f64::from(self.shard_count());
            let fair = shards / owned.len().max(1) as f64;
            let balanced = owned.iter().all(|count| (count - fair).abs() <= self.shape.databases as f64);
            if owned.iter().sum::<f64>() == shards && balanced {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("after {SETTLED_WITHIN:?} the nodes own {owned:?} of {shards} shards");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How many shards each running node reports to own.
    pub async fn owned(&self) -> Vec<f64> {
        let mut owned = Vec::new();
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            owned.push(node.client().metric("duetime_shards_owned").await.ok().flatten().unwrap_or(0.0));
        }
        owned
    }

    /// Kills a node with SIGKILL, recorded as a fault.
    pub fn kill(&self, number: usize) {
        let fault = self.ledger.fault(&format!("{} killed", self.nodes[number].name()));
        self.nodes[number].kill();
        self.ledger.heal(fault);
    }

    /// Stops a node with SIGSTOP, recorded as a fault until [`Self::resume`].
    pub fn pause(&self, number: usize) -> Result<()> {
        let fault = self.ledger.fault(&format!("{} frozen", self.nodes[number].name()));
        self.open_faults.lock().insert(number, fault);
        self.nodes[number].pause()
    }

    pub fn resume(&self, number: usize) -> Result<()> {
        self.nodes[number].resume()?;
        if let Some(fault) = self.open_faults.lock().remove(&number) {
            self.ledger.heal(fault);
        }
        Ok(())
    }

    /// Starts a node that has ended, and waits until it is ready.
    pub async fn restart(&self, number: usize) -> Result<()> {
        self.nodes[number].start()?;
        self.nodes[number].wait_ready(READY_WITHIN).await
    }

    /// A client of a running node.
    pub fn live(&self) -> Result<Client> {
        Ok(self.nodes.iter().find(|node| node.is_running()).context("no node runs")?.client())
    }

    fn database_configs(&self, links: Option<&Links>) -> Vec<DatabaseConfig> {
        let share = self.shard_count() as usize / self.databases.len();
        self.databases
            .iter()
            .enumerate()
            .map(|(number, (server, database))| DatabaseConfig {
                name: format!("db{}", number + 1),
                url: match (links, self.standby.filter(|_| number == 0)) {
                    (Some(links), Some(_)) => {
                        let standby = links.standby.as_ref().map_or(0, Proxy::port);
                        server.url_through_both(links.databases[number].port(), standby, database)
                    }
                    (Some(links), None) => server.url_through(links.databases[number].port(), database),
                    (None, Some(standby)) => server.url_with(standby, database),
                    (None, None) => server.url(database),
                },
                shards: match self.shape.first_has_all || self.databases.len() == 1 {
                    true => String::new(),
                    false => format!("{}-{}", number * share, (number + 1) * share - 1),
                },
            })
            .collect()
    }

    async fn lay_links(&self) -> Result<Links> {
        let mut databases = Vec::new();
        for (server, _) in &self.databases {
            databases.push(Proxy::start(server.port()).await?);
        }
        let mut etcd = Vec::new();
        for port in self.etcd.ports() {
            etcd.push(Proxy::start(port).await?);
        }
        let mut other_brokers = Vec::new();
        for broker in &self.brokers[1..] {
            other_brokers.push(Proxy::start(broker.port()).await?);
        }
        let standby = match self.standby {
            Some(standby) => Some(Proxy::start(standby.port()).await?),
            None => None,
        };
        Ok(Links { databases, standby, etcd, rabbit: Proxy::start(self.rabbit().port()).await?, other_brokers })
    }

    /// Polls every node of this version for the owners of shards, for the ledger. An earlier one names an owner of a
    /// shard that has left a database, under the epoch that it had there.
    pub(super) fn watch_owners(&self) -> JoinHandle<()> {
        let (ledger, clients) = (Arc::clone(&self.ledger), self.clients());
        tokio::spawn(async move {
            loop {
                for client in &clients {
                    if let Ok(report) = client.cluster().await
                        && is_of_this_version(&report)
                    {
                        note_owners(&ledger, &report);
                    }
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
    }
}

/// Whether the node that made a report is of this version.
fn is_of_this_version(report: &Value) -> bool {
    let answers = |node: &Value| ["name", "incarnation"].iter().all(|part| node[part] == report["node"][part]);
    let mut nodes = report["nodes"].as_array().into_iter().flatten();
    nodes.any(|node| answers(node) && node["version"] == env!("CARGO_PKG_VERSION"))
}

/// Records each shard's owner and epoch from the cluster's report.
fn note_owners(ledger: &Ledger, report: &Value) {
    for shard in report["shards"].as_array().into_iter().flatten() {
        let (Some(id), Some(epoch)) = (shard["shard"].as_u64(), shard["epoch"].as_i64()) else { continue };
        if !shard["owner"].is_null() {
            ledger.owner_seen(u32::try_from(id).unwrap_or(u32::MAX), epoch, &shard["owner"].to_string());
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        if std::thread::panicking() {
            self.leave_traces();
        }
        for node in &self.nodes {
            node.kill();
        }
        if let [shared] = self.brokers[..] {
            shared.retire_vhost(self.name.clone());
        } else {
            // The first one holds the name server of all.
            self.brokers.iter().rev().for_each(|broker| broker.kill_all());
        }
        if let Some(standby) = self.standby {
            standby.kill();
            self.postgres(0).kill();
        }
        if self.shape.last_in_room
            && let Some((server, _)) = self.databases.last()
        {
            server.kill();
        }
        if self.shape.etcd_members > 1 {
            self.etcd.kill_all();
        }
    }
}

impl Sandbox {
    /// Keeps the logs and prints their ends, for a person who examines a failed scenario.
    #[expect(clippy::print_stderr, reason = "a failing test reports on standard error")]
    fn leave_traces(&self) {
        scratch::keep(scratch::scratch());
        eprintln!("logs are kept in {}", self.folder.display());
        for node in &self.nodes {
            eprintln!(
                "--- {} ({}):\n{}",
                node.name(),
                if node.is_running() { "running" } else { "ended" },
                node.tail(15)
            );
        }
    }
}
