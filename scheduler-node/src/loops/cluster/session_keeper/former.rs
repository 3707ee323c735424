//! The former start of this node's own name, whose registration keeps a restarted node out.
//!
//! A supervisor that restarts a process and an operator who gives two nodes one name look the same in etcd. Two
//! witnesses tell them apart: a process that runs holds its presence lock in the home database, and listens on the
//! port that it advertises. Only when neither is so has it ended, and its lease is revoked.
//!
//! A node does so only until it has joined once. So two live nodes of one name never push each other out in turns: the
//! second waits as long as the first lives, and one that has lost its registration to the other waits for its end.

use std::{sync::Arc, time::Duration};

use common::{
    cluster::{
        Member,
        suspicion::{Evidence, Sign},
    },
    ids::NodeId,
};
use tokio::time::Instant;

use super::{Error, LeaseId, Registered, SessionKeeper, SessionState};
use crate::{peer::Port, store::Database};

/// The pause between two looks at the former start. The node's own session in the database, without which the answer
/// tells nothing, opens at the same time.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The node looks this often for this long. What has not ended by then runs, or is out of sight.
const LOOK_OFTEN_FOR: Duration = Duration::from_secs(20);

/// Finds out whether the former start of this node has ended.
#[derive(Debug)]
pub struct FormerStart {
    home: Arc<Database>,
    since: Instant,
}

impl FormerStart {
    /// `home`: the database whose sessions show which processes run.
    pub fn new(home: Arc<Database>) -> Self {
        Self { home, since: Instant::now() }
    }

    /// The longest pause while its registration keeps this node out.
    pub(super) fn pause(&self, otherwise: Duration) -> Duration {
        if self.since.elapsed() < LOOK_OFTEN_FOR { LOOK_INTERVAL.min(otherwise) } else { otherwise }
    }

    async fn has_ended(&self, me: &Member, former: &Member) -> bool {
        // An earlier version takes no presence lock, so one of the witnesses is missing.
        if !former.presence {
            return false;
        }
        let session = match self.home.present(me.node.incarnation, &[former.node.incarnation]).await {
            Ok(Some(present)) if present.is_empty() => Sign::Ended,
            Ok(Some(_)) => Sign::Alive,
            Ok(None) | Err(_) => Sign::Unknown,
        };
        if session != Sign::Ended {
            return false;
        }
        // This process has bound its own port, so no other process listens on it.
        let port = if former.url == me.url { Sign::Ended } else { Port::of(former.url.as_deref()).knock().await };
        Evidence { session, port }.agrees_on_end()
    }
}

impl SessionKeeper {
    /// Registers the node. If a former start still has the name and has ended, this revokes that one's lease and
    /// registers in its place.
    pub(super) async fn put_member(&self, wanted: &Member, lease: LeaseId) -> Result<Registered, Error> {
        let registered = self.coordination.member_put(wanted, lease).await?;
        if registered == Registered::Done || !self.revoke_former().await? {
            return Ok(registered);
        }
        self.coordination.member_put(wanted, lease).await
    }

    async fn revoke_former(&self) -> Result<bool, Error> {
        let Some(former_start) = &self.former else { return Ok(false) };
        let Some(found) = self.coordination.member_read(&self.member.node.name).await? else { return Ok(false) };
        if found.member.node == self.member.node || !former_start.has_ended(&self.member, &found.member).await {
            return Ok(false);
        }
        self.coordination.lease_revoke(found.lease).await?;
        self.coordination.metrics().revocations.inc();
        tracing::info!(former = %found.member.node, "revoked the lease of the former start of this node, which has ended");
        Ok(true)
    }

    pub(super) fn name_taken(&mut self, by: Option<NodeId>) {
        let standing = SessionState::NameTaken { by };
        if self.session.borrow().standing != standing {
            let SessionState::NameTaken { by } = &standing else { return };
            let by = by.as_ref().map_or_else(|| "an unreadable record".to_owned(), NodeId::to_string);
            tracing::warn!(
                me = %self.member.node,
                by,
                "another node has this name; waiting until its process or its lease ends"
            );
        }
        self.registered = None;
        self.session.send_modify(|session| session.standing = standing);
    }
}
