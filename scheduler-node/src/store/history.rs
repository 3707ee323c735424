//! Decides which servers of a database a node may use: those that take writes and have what the nodes have seen
//! acknowledged.

use common::cluster::seen::{Lineage, Lsn, Mismatch, Seen};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The answers of a server about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerState {
    pub is_standby: bool,
    pub is_read_only: bool,
    /// Whether the session has the settings with which it began.
    pub keeps_settings: bool,
    /// `None`: the server is a standby, or does not say.
    pub lineage: Option<Lineage>,
}

/// The reason why a node does not use a server that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("it is a standby")]
    Standby,
    #[error("it is read-only")]
    ReadOnly,
    #[error(
        "a connection pooler such as PgBouncer stands before it and does not pass on the settings of a session; let the \
         nodes connect to PostgreSQL itself"
    )]
    Pooler,
    #[error(
        "it is at timeline {found}, but the nodes have used timeline {newest}: a standby was promoted, and this server \
         was left behind"
    )]
    LeftBehind { found: i64, newest: i64 },
    #[error(
        "it has the system identifier {found}, but the nodes have used a server with {known}, so it holds other data; \
         if that is intended, an operator has to accept the loss"
    )]
    Stranger { found: i64, known: i64 },
    #[error(
        "it lacks commits that were acknowledged: up to {bytes} bytes of the log may be missing; an operator has to \
         accept the loss"
    )]
    Behind { bytes: u64 },
}

impl Refusal {
    /// Whether an operator has to decide about the server. `several`: the database has other servers. One that a
    /// promotion left behind counts only where there is no other: elsewhere the new primary is merely away.
    pub(super) const fn is_loss(self, several: bool) -> bool {
        match self {
            Self::Behind { .. } | Self::Stranger { .. } => true,
            Self::LeftBehind { .. } => !several,
            Self::Standby | Self::ReadOnly | Self::Pooler => false,
        }
    }
}

impl From<Mismatch> for Refusal {
    fn from(mismatch: Mismatch) -> Self {
        match mismatch {
            Mismatch::Stranger { found, known } => Self::Stranger { found, known },
            Mismatch::LeftBehind { found, newest } => Self::LeftBehind { found, newest },
            Mismatch::Behind { bytes } => Self::Behind { bytes },
        }
    }
}

/// A server that takes writes and is not used, because it may lack commits. It waits for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub refusal: Refusal,
    /// How much of the log may be missing. All that was acknowledged, where the server holds other data.
    pub bytes: u64,
    pub lineage: Lineage,
}

/// What this node knows of the history of a database. It fences a primary that was replaced: such a server still takes
/// writes, but its timeline is lower. It also refuses a server that lacks commits.
#[derive(Debug, Default)]
pub(super) struct KnownHistory {
    known: Mutex<Known>,
    /// Wakes the loop that shares it with the other nodes.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    seen: Option<Seen>,
    /// The server in use, once one was admitted.
    in_use: Option<Lineage>,
    loss: Option<Loss>,
}

impl KnownHistory {
    /// Whether the server may be used. `must_write`: there are other servers, one of which may take writes.
    pub(super) fn judge(&self, state: &ServerState, must_write: bool) -> Result<(), Refusal> {
        self.known.lock().judge(state, must_write)
    }

    /// Whether `lineage` is of a newer timeline than the newest seen. The first one is not.
    pub(super) fn is_newer(&self, lineage: Option<&Lineage>) -> bool {
        let known = self.known.lock();
        known.seen.as_ref().zip(lineage).is_some_and(|(seen, found)| found.timeline > seen.newest_timeline())
    }

    /// Judges a server and notes it as the one in use. Returns whether its timeline is newer than the newest before.
    pub(super) fn admit(&self, state: &ServerState, must_write: bool) -> Result<bool, Refusal> {
        let mut known = self.known.lock();
        known.judge(state, must_write)?;
        let Some(found) = &state.lineage else { return Ok(false) };
        let is_newer = match &mut known.seen {
            Some(seen) => {
                let is_newer = found.timeline > seen.newest_timeline();
                seen.meet(found);
                is_newer
            }
            None => {
                known.seen = Some(Seen::beginning(found, 0));
                false
            }
        };
        known.loss = None;
        let is_other = known.in_use.as_ref().is_none_or(|before| before.timeline != found.timeline);
        known.in_use = Some(found.clone());
        drop(known);
        if is_other {
            self.changed.notify_one();
        }
        Ok(is_newer)
    }

    /// Notes that no server can be used, and one of them only because it may lack commits.
    pub(super) fn refuse(&self, refusal: Refusal, lineage: &Lineage) {
        let mut known = self.known.lock();
        let acknowledged = known.seen.as_ref().map_or(0, |seen| seen.last().bytes_after(Lsn::default()));
        let bytes = if let Refusal::Behind { bytes } = refusal { bytes } else { acknowledged };
        let loss = Loss { refusal, bytes, lineage: lineage.clone() };
        let is_new = known.loss.as_ref().is_none_or(|before| before.refusal != refusal);
        known.in_use = None;
        known.loss = Some(loss);
        drop(known);
        if is_new {
            self.changed.notify_one();
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.known.lock().loss.clone()
    }

    pub(super) fn seen(&self) -> Option<Seen> {
        self.known.lock().seen.clone()
    }

    /// The timeline of the server in use.
    pub(super) fn timeline(&self) -> Option<i64> {
        self.known.lock().in_use.as_ref().map(|lineage| lineage.timeline)
    }

    /// Notes that the server in use acknowledged a commit that ends after `at`. An answer of another server is void.
    pub(super) fn acknowledge(&self, system: i64, timeline: i64, at: Lsn) {
        let mut known = self.known.lock();
        let is_in_use =
            known.in_use.as_ref().is_some_and(|lineage| lineage.system == system && lineage.timeline == timeline);
        if let Some(seen) = known.seen.as_mut().filter(|seen| is_in_use && seen.system == system) {
            seen.acknowledge(timeline, at);
        }
    }

    /// Adds what other nodes have seen. Returns whether the server in use must be left.
    pub(super) fn learn(&self, record: &Seen) -> bool {
        let mut known = self.known.lock();
        let seen = known.seen.get_or_insert_with(|| record.clone());
        seen.add(record);
        let seen = seen.clone();
        if known.loss.as_ref().is_some_and(|loss| seen.judge(&loss.lineage).is_ok()) {
            known.loss = None;
        }
        // It has written on since its position was read, so only its timelines tell.
        let now = |lineage: &Lineage| Lineage { flushed: Lsn::MAX, ..lineage.clone() };
        let must_leave = known.in_use.as_ref().is_some_and(|lineage| seen.judge(&now(lineage)).is_err());
        if must_leave {
            known.in_use = None;
        }
        must_leave
    }

    /// Forgets everything but the server in use.
    pub(super) fn unlearn(&self) {
        let mut known = self.known.lock();
        known.seen = known.in_use.as_ref().map(|server| Seen::beginning(server, 0));
        known.loss = None;
    }

    /// The connection to the server is in doubt, so the other nodes should soon know what this one has seen.
    pub(super) fn doubt(&self) {
        self.changed.notify_one();
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Known {
    fn judge(&self, state: &ServerState, must_write: bool) -> Result<(), Refusal> {
        if state.is_standby {
            return Err(Refusal::Standby);
        }
        if state.is_read_only && must_write {
            return Err(Refusal::ReadOnly);
        }
        if !state.keeps_settings {
            return Err(Refusal::Pooler);
        }
        let (Some(found), Some(seen)) = (&state.lineage, &self.seen) else { return Ok(()) };
        seen.judge(found).map_err(Refusal::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(system: i64, timeline: i64) -> ServerState {
        let lineage = Lineage { system, timeline, flushed: Lsn::new(100 * timeline), left: None };
        ServerState { is_standby: false, is_read_only: false, keeps_settings: true, lineage: Some(lineage) }
    }

    #[test]
    fn a_primary_that_was_replaced_is_refused_for_good() {
        let known = KnownHistory::default();
        assert_eq!(known.admit(&primary(7, 1), true), Ok(false), "the first history is not newer");
        assert!(known.is_newer(primary(7, 2).lineage.as_ref()));
        assert_eq!(known.admit(&primary(7, 2), true), Ok(true));
        let left_behind = Err(Refusal::LeftBehind { found: 1, newest: 2 });
        assert_eq!(known.admit(&primary(7, 1), true), left_behind);
        assert_eq!(known.judge(&primary(7, 1), false), left_behind.map(drop));
        assert_eq!(known.admit(&primary(7, 2), true), Ok(false));
    }

    #[test]
    fn a_server_with_other_data_is_refused() {
        let known = KnownHistory::default();
        assert_eq!(known.judge(&primary(8, 1), true), Ok(()));
        known.admit(&primary(7, 1), true).unwrap();
        assert_eq!(known.judge(&primary(8, 5), true), Err(Refusal::Stranger { found: 8, known: 7 }));
    }

    #[test]
    fn a_standby_is_never_used_and_a_read_only_primary_only_where_there_is_no_other() {
        let known = KnownHistory::default();
        let standby = ServerState { is_standby: true, is_read_only: true, keeps_settings: true, lineage: None };
        let read_only = ServerState { is_standby: false, ..standby.clone() };
        assert_eq!(known.judge(&standby, false), Err(Refusal::Standby));
        assert_eq!(known.judge(&read_only, true), Err(Refusal::ReadOnly));
        assert_eq!(known.judge(&read_only, false), Ok(()));
        let pooled = ServerState { keeps_settings: false, ..read_only };
        assert_eq!(known.judge(&pooled, false), Err(Refusal::Pooler));
    }

    #[test]
    fn a_server_that_writes_on_is_not_left() {
        let (one, other) = (KnownHistory::default(), KnownHistory::default());
        for known in [&one, &other] {
            known.admit(&primary(7, 1), true).unwrap();
        }
        one.acknowledge(7, 1, Lsn::new(250));
        for known in [&one, &other] {
            assert!(!known.learn(&one.seen().unwrap()), "its position was read before the commit");
        }
    }

    #[test]
    fn a_node_leaves_a_server_that_lacks_what_another_node_has_seen() {
        let (one, other) = (KnownHistory::default(), KnownHistory::default());
        for known in [&one, &other] {
            known.admit(&primary(7, 1), true).unwrap();
        }
        one.acknowledge(7, 1, Lsn::new(250));
        one.acknowledge(8, 1, Lsn::new(900));
        one.acknowledge(7, 2, Lsn::new(900));
        assert_eq!(one.admit(&primary(7, 2), true), Err(Refusal::Behind { bytes: 50 }));
        assert_eq!(other.admit(&primary(7, 2), true), Ok(true), "it has seen no commit");
        assert!(other.learn(&one.seen().unwrap()));
        assert_eq!(other.admit(&primary(7, 2), true), Err(Refusal::Behind { bytes: 50 }));
        other.refuse(Refusal::Behind { bytes: 50 }, primary(7, 2).lineage.as_ref().unwrap());
        let loss = other.loss().unwrap();
        assert_eq!(loss.bytes, 50);
        let accepted = Seen::beginning(&loss.lineage, 1);
        assert!(one.learn(&accepted), "it still uses the former primary");
        assert!(!other.learn(&accepted));
        for known in [&one, &other] {
            assert_eq!((known.loss(), known.admit(&primary(7, 2), true)), (None, Ok(false)));
        }
    }
}
