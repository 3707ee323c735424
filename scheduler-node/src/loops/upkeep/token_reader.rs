//! Keeps this node's copy of the tokens that were made over the API. A token that any node makes or revokes is
//! valid or invalid here within half a second.
//!
//! Each glance at the home database shows one small number. All tokens are read when that has changed, and once a
//! minute for the sake of their ends. While the home database is away the copy stays as it is. Known tokens go on
//! working, and so does a token revoked meanwhile, until the database is back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::poll_revision::{PollRevision, poll_revision};
use crate::{
    access::Access,
    store::{Error, Store},
};

/// The interval between two reads of all tokens, changed or not. A token ends by this node's clock as of the last read,
/// and that clock stands still while the machine is suspended.
const READ_ALL_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct TokenReader {
    store: Store,
    access: Arc<Access>,
    /// When this reader read all tokens last.
    read_all_at: Option<Instant>,
}

impl TokenReader {
    pub fn new(store: Store, access: Arc<Access>) -> Self {
        Self { store, access, read_all_at: None }
    }

    fn is_recent(&self) -> bool {
        self.read_all_at.is_some_and(|at| at.elapsed() < READ_ALL_EVERY)
    }

    pub async fn run(self, stop: CancellationToken) {
        let databases = self.store.databases().clone();
        poll_revision(self, databases, &Notify::new(), stop).await;
    }
}

impl PollRevision for TokenReader {
    const OF: &'static str = "tokens";

    async fn is_current(&self) -> bool {
        let seen = self.store.home().glance().map(|glance| glance.token_revision);
        self.is_recent() && seen.is_some() && seen == self.access.book().map(|book| book.revision)
    }

    async fn read(&mut self) -> Result<(), Error> {
        if self.is_recent() {
            let revision = self.store.home().token_revision().await?;
            if self.access.book().is_some_and(|book| book.revision == revision) {
                return Ok(());
            }
        }
        read_anew(&self.store, &self.access).await?;
        self.read_all_at = Some(Instant::now());
        Ok(())
    }
}

/// Reads the tokens and puts them in force.
pub async fn read_anew(store: &Store, access: &Access) -> Result<(), Error> {
    // One read at a time, so that an older book never replaces a newer one.
    let _alone = access.reading.lock().await;
    let book = store.home().token_book().await?;
    tracing::debug!(revision = book.revision, tokens = book.tokens.len(), "tokens read");
    access.put_in_force(book);
    Ok(())
}

#[cfg(test)]
mod tests;
