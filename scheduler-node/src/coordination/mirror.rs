//! A copy of everything under the cluster's prefix, kept current. Every decision about the cluster reads it.
//!
//! The mirror lists the prefix at a revision and watches from the next one on. It starts over after half a
//! minute, after every gap and after every error. The list is the truth; the watch only makes it quick. Without
//! etcd the last picture stays.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    cluster::{AssignmentRecord, Candidate, ClusterView, Member, OwnerRecord},
    ids::{NodeId, NodeName, ShardId, Term},
};
use etcd_client::{
    Client, Event, EventType, GetOptions, GetResponse, KeyValue, WatchOptions, WatchResponse, WatchStream,
};
use futures::FutureExt;
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Coordination, Error, EtcdOp, LeaseId, client::REQUEST_TIMEOUT, keys::Key};
use crate::supervise::at_work;

/// The longest time for which the mirror misses events that the server's side of a watch has silently lost.
const RELIST_INTERVAL: Duration = Duration::from_secs(30);

/// The interval at which the mirror asks the server for a sign of life. The requests also keep the server from
/// taking the client's pings on a quiet connection for an attack.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// A watch that has been silent for this long is stuck.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// The pauses between attempts while etcd does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The size limit of a list. A cluster of many thousand shards exceeds the default of 4 MiB.
const LIST_LIMIT_BYTES: usize = 64 << 20;

/// The newest picture. Revision 0: etcd has not been read yet.
pub type Views = watch::Receiver<Arc<ClusterView>>;

/// Keeps the copy current, and publishes each new picture.
#[derive(Debug)]
pub struct Mirror {
    coordination: Coordination,
    views: watch::Sender<Arc<ClusterView>>,
    picture: Picture,
    /// etcd refused the last attempt to read; only the first refusal is logged.
    refused: bool,
}

/// The reason why a watch ended without an error.
enum End {
    /// A new list is due, the watch is stuck, or all callers have moved to another endpoint.
    Due,
    /// The server cancelled the watch: its revision was compacted away, or the server has lost its leader.
    Cancelled(String),
}

impl Mirror {
    pub fn new(coordination: Coordination) -> (Self, Views) {
        let (views, view) = watch::channel(Arc::new(ClusterView::default()));
        (Self { coordination, views, picture: Picture::default(), refused: false }, view)
    }

    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.follow(&mut pause).await {
                Ok(End::Due) => {}
                Ok(End::Cancelled(reason)) => {
                    tracing::debug!(reason, "the watch was cancelled; listing again");
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
                Err(error) => {
                    self.report(&error);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Logs the end of a watch. An outage is only a debug line: the client reports it.
    fn report(&mut self, error: &Error) {
        let is_news = error.is_news(&mut self.refused);
        let error = error as &dyn std::error::Error;
        if is_news {
            tracing::warn!(error, "cannot read the cluster from etcd; keeping the last view, and retrying");
        } else {
            tracing::debug!(error, "the watch ended; listing again");
        }
    }

    /// Lists, then watches for a while.
    async fn follow(&mut self, pause: &mut Duration) -> Result<End, Error> {
        let (endpoint, mut stream) = self.begin(pause).await?;
        let endpoints = Arc::clone(&self.coordination.endpoints);
        let moved = endpoints.moved(endpoint);
        tokio::pin!(moved);
        let due = Instant::now() + RELIST_INTERVAL;
        let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
        let mut silent_at = Instant::now() + SILENCE_TIMEOUT;
        loop {
            let response = tokio::select! {
                response = stream.message() => response,
                () = &mut moved => return Ok(End::Due),
                () = tokio::time::sleep_until(due.min(silent_at)) => return Ok(End::Due),
                _ = heartbeat.tick() => {
                    let _work = at_work();
                    stream.request_progress().await.map_err(|source| self.broken(endpoint, Some(source)))?;
                    continue;
                }
            };
            let _work = at_work();
            silent_at = Instant::now() + SILENCE_TIMEOUT;
            match response {
                Ok(Some(response)) => {
                    self.coordination.metrics().confirmed(std::time::Instant::now());
                    if let Some(end) = self.take(&mut stream, response) {
                        return Ok(end);
                    }
                }
                Ok(None) => return Err(self.broken(endpoint, None)),
                Err(source) => return Err(self.broken(endpoint, Some(source))),
            }
        }
    }

    /// Lists, and opens a watch from there on.
    async fn begin(&mut self, pause: &mut Duration) -> Result<(usize, WatchStream), Error> {
        let _work = at_work();
        self.list().await?;
        *pause = FIRST_PAUSE;
        let opened = self.watch().await?;
        if std::mem::take(&mut self.refused) {
            tracing::info!("reads the cluster from etcd again");
        }
        Ok(opened)
    }

    async fn list(&mut self) -> Result<(), Error> {
        let prefix = self.coordination.keys.prefix();
        let get = |client: Client| async move {
            let mut kv = client.kv_client().max_decoding_message_size(LIST_LIMIT_BYTES);
            kv.get(prefix, Some(GetOptions::new().with_prefix())).await
        };
        let asked_at = std::time::Instant::now();
        let answer: GetResponse = self.coordination.endpoints.ask(EtcdOp::MirrorList, REQUEST_TIMEOUT, get).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        if revision < self.picture.revision {
            tracing::warn!(
                revision,
                before = self.picture.revision,
                "etcd's revision went backwards: etcd was restored from a backup or replaced; using its current state"
            );
        }
        let complaints = std::mem::take(&mut self.picture.complaints);
        self.picture = Picture { revision, complaints, ..Picture::default() };
        for found in answer.kvs() {
            self.picture.put(self.coordination.keys.parse(found.key()), found);
        }
        self.coordination.metrics().confirmed(asked_at);
        self.publish();
        Ok(())
    }

    async fn watch(&self) -> Result<(usize, WatchStream), Error> {
        let prefix = self.coordination.keys.prefix();
        let from = self.picture.revision + 1;
        let open = |mut client: Client| async move {
            let options = WatchOptions::new().with_prefix().with_start_revision(from).with_progress_notify();
            client.watch(prefix, Some(options)).await
        };
        self.coordination.endpoints.stream(EtcdOp::MirrorWatch, open).await
    }

    /// Takes one response and all that have arrived behind it, so that a burst of changes makes one picture.
    fn take(&mut self, stream: &mut WatchStream, response: WatchResponse) -> Option<End> {
        let mut next = Some(response);
        let mut changed = false;
        let mut end = None;
        while let Some(response) = next.take() {
            changed |= self.apply(&response);
            if response.canceled() {
                end = Some(End::Cancelled(response.cancel_reason().to_owned()));
                break;
            }
            // An error shows again at the next read.
            next = stream.message().now_or_never().and_then(Result::ok).flatten();
        }
        if changed {
            self.publish();
        }
        end
    }

    fn apply(&mut self, response: &WatchResponse) -> bool {
        let before = self.picture.revision;
        let mut newest = before;
        for event in response.events() {
            let Some(found) = event.kv().filter(|found| found.mod_revision() > before) else { continue };
            newest = newest.max(found.mod_revision());
            self.apply_event(event, found);
        }
        self.picture.revision = newest;
        newest > before
    }

    fn apply_event(&mut self, event: &Event, found: &KeyValue) {
        let key = self.coordination.keys.parse(found.key());
        match event.event_type() {
            EventType::Put => self.picture.put(key, found),
            EventType::Delete => self.picture.delete(key),
        }
    }

    fn publish(&self) {
        self.views.send_replace(Arc::new(self.picture.view()));
    }

    fn broken(&self, endpoint: usize, source: Option<etcd_client::Error>) -> Error {
        self.coordination.endpoints.failed(endpoint);
        Error::Unanswered { op: EtcdOp::MirrorWatch, source }
    }
}

/// All values that count, by key.
#[derive(Debug, Default)]
struct Picture {
    revision: i64,
    members: BTreeMap<NodeName, Member>,
    candidates: BTreeMap<LeaseId, Candidate>,
    assignment: Option<AssignmentRecord>,
    owners: BTreeMap<ShardId, OwnerRecord>,
    drained: BTreeSet<NodeId>,
    /// Keys that count as absent, so that each is logged once.
    complaints: BTreeSet<Vec<u8>>,
}

impl Picture {
    fn put(&mut self, key: Option<Key>, found: &KeyValue) {
        match key {
            Some(Key::Node(name)) => {
                let member = self.read_leased(found).filter(|member: &Member| member.node.name == name);
                replace(&mut self.members, name, member);
            }
            Some(Key::Candidate(lease)) => {
                let term = Term::from_revision(found.create_revision());
                let candidate = self.read_leased(found).map(|node: NodeId| Candidate { term, node });
                replace(&mut self.candidates, lease, candidate);
            }
            Some(Key::Assignment) => self.assignment = self.read(found),
            Some(Key::Owner(shard)) => {
                let owner = self.read_leased(found);
                replace(&mut self.owners, shard, owner);
            }
            Some(Key::Drained) => self.drained = self.read(found).unwrap_or_default(),
            Some(Key::Database | Key::Realm) => {}
            None => self.complain(found, "a key that does not belong to the cluster"),
        }
    }

    fn delete(&mut self, key: Option<Key>) {
        match key {
            Some(Key::Node(name)) => drop(self.members.remove(&name)),
            Some(Key::Candidate(lease)) => drop(self.candidates.remove(&lease)),
            Some(Key::Assignment) => self.assignment = None,
            Some(Key::Owner(shard)) => drop(self.owners.remove(&shard)),
            Some(Key::Drained) => self.drained.clear(),
            Some(Key::Database | Key::Realm) | None => {}
        }
    }

    /// Parses the value of a key that its node's lease carries. A key on no lease, as after a copy of the keys into
    /// another etcd, would outlive its node for ever. It counts as absent, and nodes overwrite it.
    fn read_leased<T: DeserializeOwned>(&mut self, found: &KeyValue) -> Option<T> {
        if found.lease() == 0 {
            self.complain(found, "it is on no lease");
            return None;
        }
        self.read(found)
    }

    /// Parses a value. One that cannot be parsed counts as absent.
    fn read<T: DeserializeOwned>(&mut self, found: &KeyValue) -> Option<T> {
        match serde_json::from_slice(found.value()) {
            Ok(value) => Some(value),
            Err(error) => {
                self.complain(found, &error.to_string());
                None
            }
        }
    }

    fn complain(&mut self, found: &KeyValue, reason: &str) {
        if self.complaints.insert(found.key().to_vec()) {
            let key = String::from_utf8_lossy(found.key());
            tracing::warn!(%key, reason, "ignoring a key in etcd");
        }
    }

    fn view(&self) -> ClusterView {
        let mut candidates: Vec<Candidate> = self.candidates.values().cloned().collect();
        candidates.sort_by_key(|candidate| candidate.term);
        ClusterView {
            revision: self.revision,
            members: self.members.clone(),
            drained: self.drained.clone(),
            candidates,
            assignment: self.assignment.clone(),
            owners: self.owners.clone(),
        }
    }
}

fn replace<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}
