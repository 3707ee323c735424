//! Lends the connections of a pool to one statement after another.
//!
//! Before sqlx puts a connection back into its pool, it asks the server whether the connection still works: a round
//! trip for each statement. A connection whose statement was answered needs no such question. So it stays here, and
//! the next statement takes the one that was used last: its server process has most in the processor's caches, where
//! a pool hands out the one that has rested longest.

use std::{
    mem,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt, StreamExt, TryFutureExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use parking_lot::Mutex;
use sqlx::{
    Either, Execute, Executor, PgConnection, PgPool, Postgres, SqlStr,
    pool::PoolConnection,
    postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};

use super::Connections;

/// How long a connection is lent on before its pool has it again, which ends connections that are too old or have
/// rested too long. A minute is short beside the pool's ten, and one question a minute costs nothing.
const LENT_ON_AT_MOST: Duration = Duration::from_secs(60);

/// The connections of one pool.
#[derive(Clone, Debug)]
pub(super) struct Lender {
    pool: PgPool,
    kept: Arc<Mutex<Kept>>,
}

/// The connections that no statement uses and the pool does not have.
#[derive(Debug, Default)]
struct Kept {
    /// The one that was used last is at the end.
    connections: Vec<Lent>,
    /// Statements that wait for the pool. Connections go back to it meanwhile, because it wakes them.
    waiting: usize,
}

#[derive(Debug)]
struct Lent {
    connection: PoolConnection<Postgres>,
    /// When the pool gave it.
    since: Instant,
}

impl Kept {
    fn take_old(&mut self) -> Vec<Lent> {
        self.connections.extract_if(.., |lent| lent.is_old()).collect()
    }
}

impl Lent {
    fn is_old(&self) -> bool {
        self.since.elapsed() > LENT_ON_AT_MOST
    }
}

/// A connection for one statement. Unless [`Self::give_back`] follows the answer, it goes back to the pool, which looks
/// whether it still works.
#[derive(Debug)]
pub(super) struct Borrowed {
    lent: Lent,
    lender: Lender,
}

impl Deref for Borrowed {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.lent.connection
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.lent.connection
    }
}

impl Borrowed {
    /// The statement was answered in full: the next one may have the connection.
    pub(super) fn give_back(self) {
        self.lender.keep(self.lent);
    }
}

impl Lender {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool, kept: Arc::default() }
    }

    /// Waits for a free connection, and opens one while there are fewer than the most.
    pub(super) async fn acquire(&self) -> Result<Borrowed, sqlx::Error> {
        let lent = match self.take_or_wait() {
            Ok(lent) => lent,
            Err(_waiting) => Lent { connection: self.pool.acquire().await?, since: Instant::now() },
        };
        Ok(Borrowed { lent, lender: self.clone() })
    }

    pub(super) fn most(&self) -> u32 {
        self.pool.options().get_max_connections()
    }

    /// Gives back the connections that were kept for too long: where no statement runs, nothing else does. Returns the
    /// usage of the pool.
    pub(super) fn tidy(&self) -> Connections {
        let (back, kept) = {
            let mut kept = self.kept.lock();
            (kept.take_old(), kept.connections.len())
        };
        drop(back);
        // sqlx offers a connection before it counts it as idle, so its count may be below zero for a moment.
        let idle = kept.saturating_add_signed(self.pool.num_idle().cast_signed());
        Connections { open: self.pool.size(), idle, most: self.most() }
    }

    #[cfg(test)]
    pub(super) async fn close(&self) {
        let kept = mem::take(&mut self.kept.lock().connections);
        drop(kept);
        self.pool.close().await;
    }

    /// Makes all that are kept as old as if each had been lent on for too long.
    #[cfg(test)]
    pub(super) fn age(&self) {
        let long_ago = Instant::now().checked_sub(LENT_ON_AT_MOST * 2).expect("this machine has run for longer");
        self.kept.lock().connections.iter_mut().for_each(|lent| lent.since = long_ago);
    }

    fn take_or_wait(&self) -> Result<Lent, Waiting<'_>> {
        let mut kept = self.kept.lock();
        kept.connections.pop().ok_or_else(|| {
            kept.waiting += 1;
            Waiting(&self.kept)
        })
    }

    fn keep(&self, lent: Lent) {
        let mut kept = self.kept.lock();
        let mut back = kept.take_old();
        if kept.waiting == 0 && !lent.is_old() && !self.pool.is_closed() {
            kept.connections.push(lent);
        } else {
            back.push(lent);
        }
        drop(kept);
        drop(back);
    }
}

/// Counts a statement that waits for the pool, until it has a connection or gives up.
struct Waiting<'a>(&'a Mutex<Kept>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Drop for Kept {
    /// A connection that goes back to its pool needs the runtime, which may have ended. The pool goes too.
    fn drop(&mut self) {
        for lent in mem::take(&mut self.connections) {
            drop(lent.connection.detach());
        }
    }
}

impl<'c> Executor<'c> for &'c Lender {
    type Database = Postgres;

    /// Reads the whole answer before it returns the first row, so that a caller that stops half way keeps no
    /// connection.
    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let answer = async move {
            let mut connection = self.acquire().await?;
            let answer: Vec<_> = connection.fetch_many(query).try_collect().await?;
            connection.give_back();
            Ok(stream::iter(answer).map(Ok))
        };
        answer.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let answer = async move {
            let mut connection = self.acquire().await?;
            let row = connection.fetch_optional(query).await?;
            connection.give_back();
            Ok(row)
        };
        answer.boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        async move { self.acquire().await?.prepare_with(sql, parameters).await }.boxed()
    }
}
