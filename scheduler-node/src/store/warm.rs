//! Makes the connections of a node ready before its first task: open, with the hot statements prepared and planned.
//!
//! The first use of a connection costs a login, and a new session of the server reads the catalogue, parses and plans.
//! Where the first claims and inserts of a node pay for that, the first tasks are late.

use std::collections::{BTreeMap, BTreeSet};

use common::time::UnixMicros;
use futures::future::join_all;
use sqlx::PgConnection;

use super::{
    Database, Error, StoreOp, claim,
    lender::Lender,
    pools::PoolKind,
    preload, settle,
    submit::{self, KnownRevisions, Sending, Window},
};

impl Database {
    /// Opens all connections for due tasks and for submissions, and runs each hot statement on each of them with
    /// nothing to do. An error says why some of them could not be made ready: they open at their first use.
    pub async fn warm_up(&self) -> Result<(), Error> {
        fail::fail_point!("no_warm_up", |_| Ok(()));
        tokio::try_join!(self.warm(StoreOp::WarmFire), self.warm(StoreOp::WarmWrite)).map(drop)
    }

    async fn warm(&self, op: StoreOp) -> Result<(), Error> {
        self.run(op, |pool| async move { warm_all(&pool, op.pool()).await }).await
    }
}

/// A connection that runs no statement leaves the pool only when all others are taken, so all are taken first.
async fn warm_all(pool: &Lender, kind: PoolKind) -> Result<(), sqlx::Error> {
    let opened = join_all((0..pool.most()).map(|_| pool.acquire())).await;
    let runs = opened.into_iter().map(async |connection| run_hot(&mut *connection?, kind).await);
    join_all(runs).await.into_iter().collect()
}

/// Runs the statements of a task's way with empty lists. They lock and write nothing.
async fn run_hot(connection: &mut PgConnection, kind: PoolKind) -> Result<(), sqlx::Error> {
    let (nothing, open, never) = (BTreeMap::new(), BTreeSet::new(), UnixMicros::new(0));
    match kind {
        PoolKind::Fire => {
            claim::claim_query(&[], &nothing, Default::default(), &open, i64::MAX).fetch_all(&mut *connection).await?;
            preload::preload_query(&[], never, never, 1).fetch_all(&mut *connection).await?;
            settle::deliver_query(&[]).execute(&mut *connection).await?;
            settle::finish_query(*settle::FINISH_NEW, &[]).fetch_all(connection).await?;
        }
        PoolKind::Write => {
            let (window, known) = (
                Window { after: None, until: UnixMicros::LAST },
                KnownRevisions { claims: i64::MAX, routes: i64::MAX },
            );
            let submit = submit::submit_query(*submit::SUBMIT_NEW, &[], Sending::First, window, &[], known);
            submit.fetch_all(connection).await?;
        }
        PoolKind::Read => {}
    }
    Ok(())
}
