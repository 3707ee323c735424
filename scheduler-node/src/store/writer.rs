//! Finds the server of a database that takes writes.

use std::{io, sync::Arc, time::Duration};

use common::{cluster::seen::Lineage, ids::ClusterId};
use futures::{StreamExt, stream::FuturesUnordered};
use sqlx::{
    ConnectOptions, Connection, PgPool, Row,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    PoolKind,
    connect::{ACQUIRE_DEADLINE, Options, place},
    entrance::{self, Entrance, read_state},
    history::{KnownHistory, Loss, Refusal, ServerState},
};

/// The longest wait for the answers of the servers. A frozen one takes connections and never answers.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// The wait for the other servers after one that takes writes has answered. A primary that was replaced may answer
/// first, and only the new one shows that it was replaced. Servers near each other answer within milliseconds.
const OTHERS_WITHIN: Duration = Duration::from_millis(300);

/// The servers of one database, and the memory of the one that takes writes.
#[derive(Debug)]
pub(super) struct Writer {
    options: Options,
    /// In the order of the URL.
    servers: Vec<PgConnectOptions>,
    known: Arc<KnownHistory>,
    turn: Mutex<()>,
}

/// A server that takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub server: usize,
    pub state: ServerState,
}

/// The result of a look at all servers.
#[derive(Debug)]
pub(super) struct Look {
    pub found: Option<Found>,
    /// The reasons of the others, by server.
    failures: Vec<(usize, sqlx::Error)>,
    /// The servers that take writes and may lack commits.
    refused: Vec<(Refusal, Lineage)>,
}

/// Why a server cannot be used.
enum Unfit {
    Failed(sqlx::Error),
    Refused(Refusal, Option<Lineage>),
}

impl From<sqlx::Error> for Unfit {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error)
    }
}

impl Writer {
    pub(super) fn new(options: Options) -> Self {
        let servers = options.servers();
        Self { options, servers, known: Arc::default(), turn: Mutex::default() }
    }

    pub(super) fn place(&self) -> String {
        place(&self.servers)
    }

    pub(super) fn has_several_servers(&self) -> bool {
        self.servers.len() > 1
    }

    pub(super) fn known(&self) -> &KnownHistory {
        &self.known
    }

    pub(super) fn pool(&self, kind: PoolKind, server: usize, ended: &CancellationToken) -> PgPool {
        self.options.pool(kind, &self.servers[server], &self.entrance(ended))
    }

    /// A pool of one connection that receives notifications.
    pub(super) fn listener_pool(&self, server: usize, ended: &CancellationToken) -> PgPool {
        let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(ACQUIRE_DEADLINE);
        self.entrance(ended).guard(pool).connect_lazy_with(self.options.connection(&self.servers[server]))
    }

    /// A pool for a migration.
    pub(super) fn migration_pool(&self, server: usize, role: Option<String>) -> PgPool {
        Options::migration_pool(&self.servers[server], role)
    }

    fn entrance(&self, ended: &CancellationToken) -> Entrance {
        Entrance { known: Arc::clone(&self.known), several: self.has_several_servers(), ended: ended.clone() }
    }

    /// The name of a server, fit for a log.
    pub(super) fn name(&self, server: usize) -> String {
        let options = &self.servers[server];
        match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        }
    }

    /// Waits for the turn to look: statements that fail together share one look.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// The turn to look, unless a look is under way.
    pub(super) fn free_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock().ok()
    }

    /// Looks at all servers at the same time. Each look connects anew and asks DNS anew. Of several servers that
    /// take writes, the one with the newest history is found; of equals `current`, then the first.
    pub(super) async fn look(&self, current: usize) -> Look {
        let mut looks: FuturesUnordered<_> =
            (0..self.servers.len()).map(|server| async move { (server, self.look_at(server).await) }).collect();
        let mut deadline = Instant::now() + LOOK_WITHIN;
        let (mut writers, mut failures, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        while let Ok(Some((server, seen))) = timeout_at(deadline, looks.next()).await {
            match seen {
                Ok(state) => {
                    writers.push(Found { server, state });
                    deadline = deadline.min(Instant::now() + OTHERS_WITHIN);
                }
                Err(Unfit::Failed(error)) => failures.push((server, error)),
                Err(Unfit::Refused(refusal, lineage)) => {
                    failures.push((server, entrance::refused(refusal)));
                    refused.extend(lineage.map(|lineage| (refusal, lineage)));
                }
            }
        }
        let timeline = |found: &Found| found.state.lineage.as_ref().map_or(0, |lineage| lineage.timeline);
        let rank = |found: &Found| (timeline(found), found.server == current, std::cmp::Reverse(found.server));
        Look { found: writers.into_iter().max_by_key(rank), failures, refused }
    }

    /// For what a server waits in a statement of this node that should have ended. `None`: it has none, or is silent.
    pub(super) async fn work_under_way(&self, server: usize) -> Option<String> {
        let options = self.options.connection(&self.servers[server]);
        let look = async {
            let mut connection = options.connect().await?;
            let work = sqlx::raw_sql(include_str!("queries/server_works.sql")).fetch_optional(&mut connection).await?;
            let _ = connection.close().await;
            work.map(|row| row.try_get("waits_for")).transpose()
        };
        match timeout(LOOK_WITHIN, look).await {
            Ok(Ok(work)) => work,
            // It is full, as it is while many commits wait.
            Ok(Err(sqlx::Error::Database(answer))) => Some(answer.message().to_owned()),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// The cluster to which the data belongs: `wanted` if any server says so, used or not, else what the first server
    /// says that knows it.
    pub(super) async fn cluster(&self, wanted: Option<ClusterId>) -> Option<ClusterId> {
        let mut other = None;
        let mut looks: FuturesUnordered<_> = (0..self.servers.len()).map(|server| self.cluster_of(server)).collect();
        while let Some(found) = looks.next().await {
            // A server that is away or has no schema says nothing.
            if let Ok(Some(cluster)) = found {
                if wanted.is_none_or(|wanted| wanted == cluster) {
                    return Some(cluster);
                }
                other = other.or(Some(cluster));
            }
        }
        other
    }

    async fn cluster_of(&self, server: usize) -> Result<Option<ClusterId>, sqlx::Error> {
        let options = self.options.connection(&self.servers[server]).application_name("duetime look");
        let mut connection = options.connect().await?;
        let row = sqlx::raw_sql(include_str!("queries/cluster_read.sql")).fetch_optional(&mut connection).await?;
        // The look has its answer; the server notices a lost connection by itself.
        let _ = connection.close().await;
        row.map(|row| row.try_get("cluster_id").map(ClusterId::new)).transpose()
    }

    async fn look_at(&self, server: usize) -> Result<ServerState, Unfit> {
        let options = self.options.connection(&self.servers[server]).application_name("duetime look");
        let mut connection = match options.connect().await {
            // PgBouncer refuses the settings with which a session begins.
            Err(sqlx::Error::Database(answer)) if answer.message().contains("startup parameter") => {
                return Err(Unfit::Refused(Refusal::Pooler, None));
            }
            connected => connected?,
        };
        let state = read_state(&mut connection).await;
        // The look has its answer; the server notices a lost connection by itself.
        let _ = connection.close().await;
        let state = state?;
        match self.known.judge(&state, self.has_several_servers()) {
            Ok(()) => Ok(state),
            Err(refusal) => Err(Unfit::Refused(refusal, state.lineage)),
        }
    }

    /// Notes the server that alone could take the place, if it may lack commits.
    pub(super) fn note_loss(&self, look: &Look) {
        let several = self.has_several_servers();
        let newest = look.refused.iter().filter(|(refusal, _)| refusal.is_loss(several));
        if let Some((refusal, lineage)) = newest.max_by_key(|(_, lineage)| lineage.timeline) {
            self.known.refuse(*refusal, lineage);
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.known.loss()
    }

    /// Finds the writer before any statement runs. The error says why there is none.
    pub(super) async fn find(&self) -> Result<Found, sqlx::Error> {
        let look = self.look(0).await;
        match look.found {
            Some(found) => {
                // The entrance of the pools judges it again.
                let _ = self.known.admit(&found.state, self.has_several_servers());
                Ok(found)
            }
            None => Err(self.absence(look)),
        }
    }

    /// Why no server takes writes. A server that refused the login says more than one that is away.
    pub(super) fn absence(&self, mut look: Look) -> sqlx::Error {
        if !self.has_several_servers() {
            return look.failures.pop().map_or(sqlx::Error::PoolTimedOut, |(_, error)| error);
        }
        let reasons = (0..self.servers.len()).map(|server| {
            let failure = look.failures.iter().find(|(index, _)| *index == server);
            let reason = failure.map_or_else(|| "no answer in time".to_owned(), |(_, error)| plain(error));
            format!("{}: {reason}", self.name(server))
        });
        let text = format!("no server takes writes: {}", reasons.collect::<Vec<_>>().join("; "));
        let answer =
            |(_, error): &(usize, sqlx::Error)| matches!(error, sqlx::Error::Database(_) | sqlx::Error::Tls(_));
        match look.failures.iter().position(answer) {
            Some(index) => look.failures.swap_remove(index).1,
            None => sqlx::Error::Io(io::Error::new(io::ErrorKind::NotConnected, text)),
        }
    }
}

impl Look {
    /// Whether this server answered the look with an error of its own, such as that it is full. It lives.
    pub(super) fn answered(&self, server: usize) -> bool {
        self.failures.iter().any(|(index, error)| *index == server && matches!(error, sqlx::Error::Database(_)))
    }

    /// Whether a server took writes and lacks commits.
    pub(super) fn lacks_commits(&self) -> bool {
        self.refused.iter().any(|(refusal, _)| matches!(refusal, Refusal::Behind { .. }))
    }

    /// Whether this server answered and must not be used, or does not listen any more.
    pub(super) fn failed(&self, server: usize) -> bool {
        self.failures.iter().any(|(index, error)| *index == server && matches!(error, sqlx::Error::Io(_)))
    }
}

/// The reason without the driver's words around it.
fn plain(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}
