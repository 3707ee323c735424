//! The tokens that this node lets in: those of its configuration, and those made over the API as they were read last. While the
//! first database is away the last known ones stay in force.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::access::Caller;
use tokio::sync::Mutex;

use crate::config::Auth;

/// Before every token, so that one that leaked is recognised as what it is.
const PREFIX: &str = "duetime_";

/// A new token: 256 random bits.
pub fn fresh_token() -> String {
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()))
}

/// A token as it is known here: never itself.
#[derive(Clone, Debug)]
pub struct Token {
    pub caller: Caller,
    pub sha256: [u8; 32],
    /// `None`: it does not expire.
    ends: Option<Instant>,
}

impl Token {
    /// One that was read at `read`, when its database had it expire `left` later.
    pub fn new(caller: Caller, sha256: [u8; 32], read: Instant, left: Option<Duration>) -> Self {
        // What lies beyond the end of the clock does not come.
        Self { caller, sha256, ends: left.and_then(|left| read.checked_add(left)) }
    }

    /// An expired one opens nothing, but counts as one that there is.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }
}

/// Tokens made over the API that are not revoked.
#[derive(Clone, Debug, Default)]
pub struct TokenBook {
    /// Rises with every token that is made or revoked; 0 where there never was one.
    pub revision: i64,
    pub tokens: Vec<Token>,
}

/// Who is let in on this node.
#[derive(Debug)]
pub struct Access {
    configured: Vec<Token>,
    /// Nobody comes in unasked, whether there is a token or not.
    closed: bool,
    book: ArcSwapOption<TokenBook>,
    /// Whoever reads the book anew holds this.
    pub reading: Mutex<()>,
}

impl Access {
    pub fn new(auth: &Auth) -> Self {
        let configured = auth.token.iter().map(|token| {
            let (name, queues) = (token.name.as_str().into(), token.queues.clone());
            let caller = Caller { id: None, name, role: token.role, queues, limits: token.limits };
            Token { caller, sha256: token.sha256, ends: None }
        });
        Self {
            configured: configured.collect(),
            closed: !auth.is_empty(),
            book: ArcSwapOption::empty(),
            reading: Mutex::default(),
        }
    }

    pub fn configured(&self) -> &[Token] {
        &self.configured
    }

    /// Whether nobody comes in unasked, whatever there is in the book.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// `None`: not read since this node started.
    pub fn book(&self) -> Option<Arc<TokenBook>> {
        self.book.load_full()
    }

    pub fn put_in_force(&self, book: TokenBook) {
        self.book.store(Some(Arc::new(book)));
    }

    /// Whether everybody is let in, because there never was a token and there is no identity provider. The configuration allows that
    /// on loopback only. A cluster whose tokens were all revoked stays closed: revoking a token never lets anybody in. What is not known
    /// yet is not open.
    pub fn is_open(&self) -> bool {
        !self.closed && self.book.load().as_ref().is_some_and(|book| book.revision == 0 && book.tokens.is_empty())
    }
}
