//! When a member's process counts as ended before its lease has run out.
//!
//! A process that ends closes its connections at once, and its host refuses new ones. Two witnesses see that: the home
//! database, where the session with the process's presence lock is gone, and the host, which refuses its port. The
//! process counts as ended when both say so in two looks. The fence makes a wrong decision harmless, so two looks
//! are enough.
//!
//! Everything else leaves the member to its lease: a stopped process keeps its sessions, and its host still takes
//! connections; a cut link answers with silence; a restarted database ends all sessions and no process.

use std::time::Duration;

use super::view::{Candidate, ClusterView};
use crate::{
    ids::{NodeId, Term},
    time::UnixMicros,
};

/// The time between the two looks, so that one odd answer decides nothing.
pub const CONFIRM_AFTER: Duration = Duration::from_millis(100);

/// One witness's word on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Alive,
    Ended,
    /// The witness did not answer, or its answer tells nothing.
    Unknown,
}

/// What one look at a process found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Whether a session of the home database holds its presence lock.
    pub session: Sign,
    /// Whether its host takes a connection on its port.
    pub port: Sign,
}

impl Evidence {
    /// Whether both witnesses say that the process has ended.
    pub fn agrees_on_end(self) -> bool {
        self.session == Sign::Ended && self.port == Sign::Ended
    }
}

/// The result of all looks at one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A witness has never seen this process alive, so its word against the process counts for nothing: its URL may be
    /// wrong, or its version may not take the lock.
    Unproven,
    Alive,
    /// Both witnesses say that it has ended; the next look decides.
    Suspected,
    Ended,
}

/// The looks at one start of a node.
#[derive(Clone, Debug, Default)]
pub struct Suspicion {
    session_seen: bool,
    port_seen: bool,
    /// The first of the looks in a row in which both witnesses agreed on the end.
    since: Option<UnixMicros>,
}

impl Suspicion {
    /// Whether its port has taken a connection before.
    pub fn has_seen_port(&self) -> bool {
        self.port_seen
    }

    /// Adds one look. `now` is on a monotonic clock.
    pub fn observe(&mut self, evidence: Evidence, now: UnixMicros) -> Standing {
        self.session_seen |= evidence.session == Sign::Alive;
        self.port_seen |= evidence.port == Sign::Alive;
        if !(self.session_seen && self.port_seen) {
            return Standing::Unproven;
        }
        if !evidence.agrees_on_end() {
            self.since = None;
            return Standing::Alive;
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= CONFIRM_AFTER { Standing::Ended } else { Standing::Suspected }
    }
}

/// Whether the candidate of `term` may revoke the lease of `member`: the master of every member, another candidate of
/// those before it. So the master's lease can be revoked too, and those of all who would lead before this candidate.
pub fn may_revoke(view: &ClusterView, term: Term, member: &NodeId) -> bool {
    let place = |is: &dyn Fn(&Candidate) -> bool| view.candidates.iter().position(is);
    match place(&|candidate| candidate.term == term) {
        Some(0) => true,
        Some(mine) => place(&|candidate| candidate.node == *member).is_some_and(|theirs| theirs < mine),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ownership::scenes::{node, view_of};

    const ALIVE: Evidence = Evidence { session: Sign::Alive, port: Sign::Alive };
    const ENDED: Evidence = Evidence { session: Sign::Ended, port: Sign::Ended };

    fn at(millis: i64) -> UnixMicros {
        UnixMicros::new(millis * 1_000)
    }

    fn proven() -> Suspicion {
        let mut suspicion = Suspicion::default();
        assert_eq!(suspicion.observe(ALIVE, at(0)), Standing::Alive);
        suspicion
    }

    #[test]
    fn two_looks_in_which_both_witnesses_agree_end_a_process() {
        let mut suspicion = proven();
        assert_eq!(suspicion.observe(ENDED, at(1_000)), Standing::Suspected);
        assert_eq!(suspicion.observe(ENDED, at(1_099)), Standing::Suspected);
        assert_eq!(suspicion.observe(ENDED, at(1_100)), Standing::Ended);
    }

    #[test]
    fn one_witness_alone_never_suspects_a_process() {
        for (session, port) in [
            (Sign::Ended, Sign::Alive),
            (Sign::Ended, Sign::Unknown),
            (Sign::Alive, Sign::Ended),
            (Sign::Unknown, Sign::Ended),
            (Sign::Unknown, Sign::Unknown),
        ] {
            let mut suspicion = proven();
            for seconds in 1..100 {
                let standing = suspicion.observe(Evidence { session, port }, at(seconds * 1_000));
                assert_eq!(standing, Standing::Alive, "{session:?} {port:?}");
            }
        }
    }

    #[test]
    fn a_look_in_between_without_agreement_begins_anew() {
        let mut suspicion = proven();
        suspicion.observe(ENDED, at(1_000));
        suspicion.observe(Evidence { session: Sign::Unknown, port: Sign::Ended }, at(1_050));
        assert_eq!(suspicion.observe(ENDED, at(1_200)), Standing::Suspected);
        assert_eq!(suspicion.observe(ENDED, at(1_300)), Standing::Ended);
    }

    #[test]
    fn a_witness_that_never_saw_the_process_counts_for_nothing() {
        for seen in [
            Evidence { session: Sign::Alive, port: Sign::Ended },
            Evidence { session: Sign::Ended, port: Sign::Alive },
            ENDED,
        ] {
            let mut suspicion = Suspicion::default();
            for seconds in 0..10 {
                assert_eq!(suspicion.observe(seen, at(seconds * 1_000)), Standing::Unproven);
            }
            assert_eq!(suspicion.observe(ENDED, at(11_000)), Standing::Unproven, "{seen:?}");
        }
    }

    #[test]
    fn the_master_may_revoke_every_member_and_a_candidate_those_before_it() {
        let term = Term::from_revision;
        let mut view = view_of(&["a", "b", "c", "d"]);
        let candidate = |(name, revision)| Candidate { term: term(revision), node: node(name) };
        view.candidates = [("a", 3), ("b", 5), ("c", 8)].map(candidate).into();
        let may = |by, of| may_revoke(&view, term(by), &node(of));
        assert!(["b", "c", "d"].iter().all(|of| may(3, of)), "the master");
        assert!(may(5, "a") && !may(5, "c") && !may(5, "d"), "the second");
        assert!(may(8, "a") && may(8, "b") && !may(8, "d"), "the third");
        assert!(!may(4, "a") && !may(9, "a"), "a term that has ended, and one that the view does not show");
    }
}
