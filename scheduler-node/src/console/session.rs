//! The session of a person who signed in with a token. The browser keeps the token sealed, so its cookie opens no
//! API.
//!
//! The seal's key is derived from the keys of the home database that every node reads (`receipt.rs`): nodes share no
//! further secret and keep no sessions. The cookie seals the token itself, not its name or its hash. So the
//! authenticator checks the token at each request, which ends the session of a token that was revoked or has expired.
//! A reader of the database finds those keys and the hashes of tokens there, but cannot make a session.

use common::{time::UnixMicros, wire::Problem};

use crate::{
    receipt::{ReceiptKey, Receipts},
    seal::Seal,
};

/// A working day: a person who forgets to sign out is signed out by the next morning.
pub(super) const SESSION_S: i64 = 12 * 60 * 60;

/// Separates the key from all others that are derived from the same secret.
const PURPOSE: &str = "duetime console session of a token";

/// Seconds until a retry of a request to a node that has not read the keys yet.
const READ_AFTER_S: u32 = 1;

/// Seals and opens the sessions of tokens.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    keys: Receipts,
}

impl Sessions {
    pub(super) fn new(keys: Receipts) -> Self {
        Self { keys }
    }

    pub(super) fn close(&self, token: &str, now: UnixMicros) -> Result<String, Problem> {
        let keys = self.keys.borrow();
        let key = keys.as_ref().and_then(|keys| keys.making.as_ref()).ok_or_else(unread)?;
        Ok(seal(key).close(&token, seconds(now) + SESSION_S))
    }

    /// The token; `None` when no node of this cluster sealed the session, when it was altered or has ended, or when
    /// its key is gone.
    pub(super) fn open(&self, sealed: &str, now: UnixMicros) -> Result<Option<String>, Problem> {
        let keys = self.keys.borrow();
        let keys = keys.as_ref().ok_or_else(unread)?;
        Ok(keys.accepted.iter().find_map(|key| seal(key).open(sealed, seconds(now))))
    }
}

fn seal(key: &ReceiptKey) -> Seal {
    Seal::new(key.secret(), PURPOSE, &[])
}

fn unread() -> Problem {
    let detail = "this node has not read the cluster's keys from the first database yet, so it cannot verify sessions";
    Problem::unavailable(detail).retry_after(READ_AFTER_S)
}

fn seconds(at: UnixMicros) -> i64 {
    at.millis() / 1_000
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::sync::watch;

    use super::*;
    use crate::{clock, receipt::ReceiptKeys};

    fn node(making: u8, accepted: &[u8]) -> Sessions {
        let key = |byte: u8| vec![byte; 32].into();
        let keys = ReceiptKeys { making: Some(key(making)), accepted: accepted.iter().copied().map(key).collect() };
        Sessions::new(watch::channel(Some(Arc::new(keys))).1)
    }

    #[test]
    fn every_node_opens_a_session_until_it_ends_or_its_key_is_gone() {
        let now = clock::now();
        let sealed = node(1, &[1]).close("a token", now).expect("sealed");
        let opened = |node: Sessions, at| node.open(&sealed, at).expect("the keys are read");
        for accepted in [&[1][..], &[2, 1]] {
            assert_eq!(opened(node(accepted[0], accepted), now).as_deref(), Some("a token"));
        }
        assert_eq!(opened(node(3, &[3, 2]), now), None);
        let end = now.plus(Duration::from_secs(SESSION_S.unsigned_abs()));
        assert_eq!(opened(node(1, &[1]), end), None);
    }

    #[test]
    fn a_node_without_keys_says_so() {
        let unread = Sessions::new(watch::channel(None).1);
        assert_eq!(unread.close("a token", clock::now()).expect_err("refused").status, 503);
        assert_eq!(unread.open("x", clock::now()).expect_err("refused").status, 503);
        let none = Sessions::new(watch::channel(Some(Arc::default())).1);
        assert_eq!(none.close("a token", clock::now()).expect_err("refused").status, 503);
    }
}
