//! The lease that carries all keys of a node, and the node's own key.

use std::{fmt, time::Duration};

use common::{cluster::Member, ids::NodeId};
use etcd_client::{Client, LeaseGrantOptions};

use super::{
    Coordination, Error, EtcdOp,
    client::REQUEST_TIMEOUT,
    error::{code, is_lease_known, status},
    records::Kept,
};

/// A lease's number in etcd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(i64);

impl LeaseId {
    /// The lease of a key that was read. `None`: the key is on no lease.
    pub(super) fn of_key(number: i64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(super) const fn number(self) -> i64 {
        self.0
    }

    /// Parses the form that `Display` writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let number = u64::from_str_radix(text, 16).ok().filter(|_| plain)?;
        Some(Self(number.cast_signed()))
    }
}

/// The number as etcdctl writes it, at full width.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    Alive,
    /// The lease has expired, and its keys with it.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    Done,
    /// Another start of a node with the same name still holds the key.
    NameTaken {
        by: Option<NodeId>,
    },
}

impl Coordination {
    /// Grants a new lease with the configured time to live.
    pub async fn lease_grant(&self) -> Result<LeaseId, Error> {
        // The client chooses the number: when the answer is lost and the request repeated, it is still one lease.
        let id: i64 = rand::random_range(1..=i64::MAX);
        let ttl_secs = i64::try_from(self.lease_ttl.as_secs()).expect("the configuration bounds the time to live");
        let grant = move |mut client: Client| async move {
            client.lease_grant(ttl_secs, Some(LeaseGrantOptions::new().with_id(id))).await
        };
        match self.endpoints.ask(EtcdOp::LeaseGrant, self.renewal_timeout(), grant).await {
            Ok(answer) => Ok(LeaseId(answer.id())),
            Err(Error::Refused { source, .. }) if is_lease_known(&source) => Ok(LeaseId(id)),
            Err(error) => Err(error),
        }
    }

    /// Renews the lease for another time to live, and waits for the answer.
    pub async fn lease_renew(&self, lease: LeaseId) -> Result<Renewal, Error> {
        // Each renewal opens a stream of its own. It is then a simple request, with the same fail-over to the
        // next endpoint.
        let renew = move |mut client: Client| async move { client.lease_keep_alive(lease.0).await.map(drop) };
        match self.endpoints.ask(EtcdOp::LeaseRenew, self.renewal_timeout(), renew).await {
            Ok(()) => Ok(Renewal::Alive),
            Err(Error::Refused { source: etcd_client::Error::LeaseKeepAliveError(_), .. }) => Ok(Renewal::Gone),
            Err(Error::Refused { source, .. }) if status(&source) == Some(code::NOT_FOUND) => Ok(Renewal::Gone),
            Err(error) => Err(error),
        }
    }

    /// Revokes the lease, and with it every key on it.
    pub async fn lease_revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let revoke = move |mut client: Client| async move { client.lease_revoke(lease.0).await.map(drop) };
        match self.endpoints.ask(EtcdOp::LeaseRevoke, REQUEST_TIMEOUT, revoke).await {
            Err(Error::Refused { source, .. }) if status(&source) == Some(code::NOT_FOUND) => Ok(()),
            other => other,
        }
    }

    /// Registers the node, or brings its key up to date. The same start of the node may move the key to a new lease.
    pub async fn member_put(&self, member: &Member, lease: LeaseId) -> Result<Registered, Error> {
        let value = serde_json::to_vec(member).expect("a member has no map with keys other than text");
        let key = self.keys.node(&member.node.name);
        let is_ours = |value: &[u8]| registered_by(value).is_some_and(|node| node == member.node);
        match self.record_keep(EtcdOp::MemberPut, key, value, lease, is_ours).await? {
            Kept::Ours { .. } => Ok(Registered::Done),
            Kept::Anothers { value } => Ok(Registered::NameTaken { by: registered_by(&value) }),
        }
    }

    pub async fn member_remove(&self, node: &NodeId) -> Result<(), Error> {
        let is_ours = |value: &[u8]| registered_by(value).is_some_and(|by| by == *node);
        self.record_remove(EtcdOp::MemberRemove, &self.keys.node(&node.name), is_ours).await
    }

    /// A frozen endpoint must leave time to ask another before the lease expires.
    fn renewal_timeout(&self) -> Duration {
        REQUEST_TIMEOUT.min(self.lease_ttl / 3)
    }
}

pub(super) fn registered_by(value: &[u8]) -> Option<NodeId> {
    serde_json::from_slice(value).ok().map(|member: Member| member.node)
}
