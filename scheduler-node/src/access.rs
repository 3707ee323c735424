//! The tokens that this node accepts: those of its configuration, and those created over the API as of the last
//! read. While the first database is unreachable, the last known ones stay in force.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::access::Caller;
use tokio::sync::Mutex;

use crate::config::{self, Auth};

/// The beginning of every token, so that a leaked one can be recognised.
const PREFIX: &str = "duetime_";

/// A new token: 256 random bits.
pub(crate) fn fresh_token() -> String {
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()))
}

/// A token as the node knows it: its hash, never the token itself.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) caller: Caller,
    pub(crate) sha256: [u8; 32],
    /// `None`: the token does not expire.
    ends: Option<Instant>,
}

impl Token {
    /// A token that was read at `read`, when it was to expire `left` later by its database's clock.
    pub(crate) fn new(caller: Caller, sha256: [u8; 32], read: Instant, left: Option<Duration>) -> Self {
        // A moment beyond the end of the clock never comes.
        Self { caller, sha256, ends: left.and_then(|left| read.checked_add(left)) }
    }

    /// An expired token opens nothing, but still counts as an existing token.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }
}

/// The tokens created over the API that are not revoked.
#[derive(Clone, Debug, Default)]
pub struct TokenBook {
    /// Rises with every token that is created or revoked. 0: there never was one.
    pub(crate) revision: i64,
    pub(crate) tokens: Vec<Token>,
}

/// The callers that this node accepts.
#[derive(Debug)]
pub struct Access {
    configured: ArcSwap<Configured>,
    book: ArcSwapOption<TokenBook>,
    /// Held by the task that reads the book anew.
    pub(crate) reading: Mutex<()>,
}

/// What the configuration says. It changes as a whole, so no request finds a token and the node open.
#[derive(Debug, Default)]
struct Configured {
    tokens: Arc<Vec<Token>>,
    /// Whether every caller must authenticate, with or without tokens in the book. Once true, it stays true.
    is_closed: bool,
}

impl Access {
    pub(crate) fn new(auth: &Auth) -> Self {
        let access = Self {
            configured: ArcSwap::from_pointee(Configured { is_closed: !auth.is_empty(), ..Configured::default() }),
            book: ArcSwapOption::empty(),
            reading: Mutex::default(),
        };
        access.configure(&auth.token);
        access
    }

    /// Puts these tokens in force instead of those configured before. Requests that were let in go on, but exports of a
    /// token that is gone or opens something else end. The next request of a removed token is refused. A node that has
    /// had a token stays closed without any.
    pub(crate) fn configure(&self, tokens: &[config::auth::Token]) {
        let configured: Arc<Vec<Token>> = Arc::new(
            tokens
                .iter()
                .map(|token| {
                    let (name, queues) = (token.name.as_str().into(), token.queues.clone());
                    let caller = Caller { id: None, name, role: token.role, queues, limits: token.limits };
                    Token { caller, sha256: token.sha256, ends: None }
                })
                .collect(),
        );
        self.configured.rcu(|before| Configured {
            tokens: Arc::clone(&configured),
            is_closed: before.is_closed || !configured.is_empty(),
        });
    }

    pub(crate) fn configured(&self) -> Arc<Vec<Token>> {
        Arc::clone(&self.configured.load().tokens)
    }

    /// Whether every caller must authenticate, whatever tokens the book holds.
    pub(crate) fn is_closed(&self) -> bool {
        self.configured.load().is_closed
    }

    /// `None`: the book was not read since this node started.
    pub(crate) fn book(&self) -> Option<Arc<TokenBook>> {
        self.book.load_full()
    }

    pub(crate) fn put_in_force(&self, book: TokenBook) {
        self.book.store(Some(Arc::new(book)));
    }

    /// Whether every caller is accepted, because there never was a token and there is no identity provider. The
    /// configuration allows that on loopback only. A cluster whose tokens were all revoked stays closed: a
    /// revocation never opens it. Until the book is read, the node is not open either.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_closed() && self.book.load().as_ref().is_some_and(|book| book.revision == 0 && book.tokens.is_empty())
    }
}
