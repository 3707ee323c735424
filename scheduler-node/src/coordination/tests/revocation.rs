use super::*;
use crate::coordination::{Registered, Renewal, Revocation};

/// Registers a fresh start of `name`, as a session keeper would.
async fn registered(coordination: &Coordination, name: &str) -> (NodeId, common::ids::Term, LeaseId) {
    let (me, lease) = (node(name), coordination.lease_grant().await.unwrap());
    assert_eq!(coordination.member_put(&member(&me), lease).await.unwrap(), Registered::Done);
    let term = coordination.candidate_put(&me, lease).await.unwrap();
    (me, term, lease)
}

#[tokio::test]
async fn a_candidate_revokes_the_lease_of_one_start_and_of_no_other() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (_, term, lease) = registered(&coordination, "one").await;
    let (two, _, its) = registered(&coordination, "two").await;
    let earlier = node("two");
    assert_eq!(coordination.member_revoke(&earlier, term, lease).await.unwrap(), Revocation::Absent);
    assert_eq!(coordination.lease_renew(its).await.unwrap(), Renewal::Alive, "another start of that name");
    assert_eq!(coordination.member_revoke(&two, term, lease).await.unwrap(), Revocation::Done);
    assert_eq!(coordination.lease_renew(its).await.unwrap(), Renewal::Gone);
    assert_eq!(coordination.member_revoke(&two, term, lease).await.unwrap(), Revocation::Absent);
    assert_eq!(coordination.lease_renew(lease).await.unwrap(), Renewal::Alive);
}

#[tokio::test]
async fn a_term_that_has_ended_revokes_nothing() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, term, lease) = registered(&coordination, "one").await;
    let (two, _, its) = registered(&coordination, "two").await;
    coordination.candidate_remove(lease).await.unwrap();
    assert_eq!(coordination.member_revoke(&two, term, lease).await.unwrap(), Revocation::Deposed);
    // The node has queued up again: that is another term.
    coordination.candidate_put(&one, lease).await.unwrap();
    assert_eq!(coordination.member_revoke(&two, term, lease).await.unwrap(), Revocation::Deposed);
    assert_eq!(coordination.lease_renew(its).await.unwrap(), Renewal::Alive);
}

#[tokio::test]
async fn a_registration_is_read_with_its_lease() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (one, _, lease) = registered(&coordination, "one").await;
    let read = coordination.member_read(&one.name).await.unwrap().expect("it is registered");
    assert_eq!((read.member, read.lease), (member(&one), lease));
    assert!(coordination.member_read(&NodeName::new("two")).await.unwrap().is_none());
}
