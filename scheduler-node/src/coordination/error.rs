//! The errors of a request to etcd, each with what it says about the request's effect.

use std::fmt;

/// The name of every request: the same word in the function and in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdOp {
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    MemberPut,
    MemberRead,
    MemberRemove,
    MemberRevoke,
    CandidatePut,
    CandidateRemove,
    AssignmentRead,
    AssignmentWrite,
    OwnerCreate,
    OwnerConfirm,
    OwnerRemove,
    DrainRead,
    DrainWrite,
    SeenRead,
    SeenWrite,
    RealmKeep,
    RealmRead,
    WriteProbe,
    MirrorList,
    MirrorWatch,
}

impl fmt::Display for EtcdOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseGrant => "lease_grant",
            Self::LeaseRenew => "lease_renew",
            Self::LeaseRevoke => "lease_revoke",
            Self::MemberPut => "member_put",
            Self::MemberRead => "member_read",
            Self::MemberRemove => "member_remove",
            Self::MemberRevoke => "member_revoke",
            Self::CandidatePut => "candidate_put",
            Self::CandidateRemove => "candidate_remove",
            Self::AssignmentRead => "assignment_read",
            Self::AssignmentWrite => "assignment_write",
            Self::OwnerCreate => "owner_create",
            Self::OwnerConfirm => "owner_confirm",
            Self::OwnerRemove => "owner_remove",
            Self::DrainRead => "drain_read",
            Self::DrainWrite => "drain_write",
            Self::SeenRead => "seen_read",
            Self::SeenWrite => "seen_write",
            Self::RealmKeep => "realm_keep",
            Self::RealmRead => "realm_read",
            Self::WriteProbe => "write_probe",
            Self::MirrorList => "mirror_list",
            Self::MirrorWatch => "mirror_watch",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The outcome is unknown. The request may be repeated. `source` is missing when the last endpoint kept silent.
    #[error("{op}: no etcd endpoint answered")]
    Unanswered {
        op: EtcdOp,
        #[source]
        source: Option<etcd_client::Error>,
    },
    /// The request had no effect, and another endpoint would answer the same.
    #[error("{op}: etcd refused")]
    Refused {
        op: EtcdOp,
        #[source]
        source: etcd_client::Error,
    },
    /// The request had no effect: the lease of the key has expired.
    #[error("{op}: the lease no longer exists")]
    LeaseGone { op: EtcdOp },
    /// The request had no effect: the key changed each time between the read and the write.
    #[error("{op}: the key keeps changing")]
    Contended { op: EtcdOp },
    #[error("the etcd endpoint `{endpoint}` cannot be used")]
    Endpoint {
        endpoint: String,
        #[source]
        source: etcd_client::Error,
    },
}

impl Error {
    /// Whether the error belongs in the log: it is the first since `logged` was reset. An outage does not, because the
    /// client reports it.
    pub fn is_news(&self, logged: &mut bool) -> bool {
        !matches!(self, Self::Unanswered { .. }) && !std::mem::replace(logged, true)
    }

    /// Whether a write was refused for a reason that holds for the next one too. An etcd that has too many requests may
    /// take the next, though it answers with the code of one without space.
    pub fn refuses_writes(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if !says(source, code::RESOURCE_EXHAUSTED, "too many requests"))
    }
}

/// The status codes of gRPC.
pub(super) mod code {
    pub(crate) const INVALID_ARGUMENT: i32 = 3;
    pub(crate) const NOT_FOUND: i32 = 5;
    pub(crate) const PERMISSION_DENIED: i32 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const FAILED_PRECONDITION: i32 = 9;
    pub(crate) const OUT_OF_RANGE: i32 = 11;
    /// The data of etcd's members differ: each of them refuses writes and answers reads.
    pub(crate) const DATA_LOSS: i32 = 15;
    pub(crate) const UNAUTHENTICATED: i32 = 16;
}

/// The code of the status with which etcd answered, if it answered.
pub(super) fn status(error: &etcd_client::Error) -> Option<i32> {
    match error {
        etcd_client::Error::GRpcStatus(status) => Some(status.code().into()),
        _ => None,
    }
}

/// Whether etcd answered that a lease of this number exists. Other refusals have the same code, such as that of a login
/// where etcd has no users.
pub(super) fn is_lease_known(error: &etcd_client::Error) -> bool {
    says(error, code::FAILED_PRECONDITION, "lease already exists")
}

/// Whether etcd answered with the code, and a message that has the words.
fn says(error: &etcd_client::Error, code: i32, words: &str) -> bool {
    let etcd_client::Error::GRpcStatus(answer) = error else { return false };
    status(error) == Some(code) && answer.message().contains(words)
}

/// Whether etcd has understood and refused the request, so that the next endpoint would refuse it too.
pub(super) fn is_refusal(error: &etcd_client::Error) -> bool {
    const REFUSALS: [i32; 8] = [
        code::INVALID_ARGUMENT,
        code::NOT_FOUND,
        code::PERMISSION_DENIED,
        code::RESOURCE_EXHAUSTED,
        code::FAILED_PRECONDITION,
        code::OUT_OF_RANGE,
        code::DATA_LOSS,
        code::UNAUTHENTICATED,
    ];
    matches!(error, etcd_client::Error::LeaseKeepAliveError(_))
        || status(error).is_some_and(|status| REFUSALS.contains(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_that_fails_a_request_is_news_also_after_an_outage() {
        let op = EtcdOp::MemberPut;
        let (outage, refusal) = (Error::Unanswered { op, source: None }, Error::Contended { op });
        let mut logged = false;
        let news = [&outage, &refusal, &outage, &refusal].map(|error| error.is_news(&mut logged));
        assert_eq!(news, [false, true, false, false]);
        logged = false;
        assert!(refusal.is_news(&mut logged));
    }
}
