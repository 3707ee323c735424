//! Keeps this node's copy of the tokens that were made over the API: one made or revoked on any node is so here within half a second.
//!
//! Reads one small number often and all tokens only when it has changed. If the home database is away the copy stays as it is, so
//! known tokens go on working, and one that is revoked meanwhile goes on until the database is back.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::reread::{Reread, reread};
use crate::{
    access::Access,
    store::{Error, Store},
};

#[derive(Debug)]
pub struct TokenReader {
    pub store: Store,
    pub access: Arc<Access>,
}

impl TokenReader {
    pub async fn run(self, stop: CancellationToken) {
        reread(self, &Notify::new(), stop).await;
    }
}

impl Reread for TokenReader {
    const OF: &'static str = "tokens";

    async fn read(&mut self) -> Result<(), Error> {
        let revision = self.store.home().token_revision().await?;
        if self.access.book().is_some_and(|book| book.revision == revision) {
            return Ok(());
        }
        read_anew(&self.store, &self.access).await
    }
}

/// Puts the tokens in force as they are now.
pub async fn read_anew(store: &Store, access: &Access) -> Result<(), Error> {
    // One reading at a time, so that an older book never takes the place of a newer one.
    let _alone = access.reading.lock().await;
    let book = store.home().token_book().await?;
    tracing::debug!(revision = book.revision, tokens = book.tokens.len(), "tokens read");
    access.put_in_force(book);
    Ok(())
}
