//! Keeps this node's copy of the keys that make receipts. Every node knows a new key before any node uses it.
//!
//! While the home database is away the copy stays as it is. Until the first read this node owns no shard, publishes no
//! task and reads no report.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::poll_revision::{PollRevision, poll_revision};
use crate::{
    receipt::{ReceiptKeys, Receipts},
    store::{Error, Store},
};

/// Well below the minute for which a new key is only accepted (`receipt_keys.sql`).
const READ_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct ReceiptReader {
    store: Store,
    keys: watch::Sender<Option<Arc<ReceiptKeys>>>,
    read_at: Option<Instant>,
}

impl ReceiptReader {
    pub fn new(store: Store) -> (Self, Receipts) {
        let (keys, receipts) = watch::channel(None);
        (Self { store, keys, read_at: None }, receipts)
    }

    pub async fn run(self, stop: CancellationToken) {
        // There is no hurry: a delivery made with the previous key is valid until that key is removed.
        let databases = self.store.databases().clone();
        poll_revision(self, databases, &Notify::new(), stop).await;
    }
}

impl PollRevision for ReceiptReader {
    const OF: &'static str = "receipt keys";

    async fn is_current(&self) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < READ_EVERY)
    }

    async fn read(&mut self) -> Result<(), Error> {
        let keys = self.store.home().receipt_keys().await?;
        self.keys.send_replace(Some(Arc::new(keys)));
        self.read_at = Some(Instant::now());
        Ok(())
    }
}
