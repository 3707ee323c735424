use super::*;
use crate::coordination::{Error, Registered, Renewal};

#[tokio::test]
async fn a_lease_lives_while_it_is_renewed_and_is_gone_when_it_is_revoked() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let lease = coordination.lease_grant().await.unwrap();
    assert_eq!(coordination.lease_renew(lease).await.unwrap(), Renewal::Alive);
    coordination.lease_revoke(lease).await.unwrap();
    assert_eq!(coordination.lease_renew(lease).await.unwrap(), Renewal::Gone);
    coordination.lease_revoke(lease).await.unwrap();
}

#[tokio::test]
async fn nothing_can_be_put_on_a_lease_that_is_gone() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let lease = coordination.lease_grant().await.unwrap();
    coordination.lease_revoke(lease).await.unwrap();
    let me = node("one");
    let refused = coordination.member_put(&member(&me), lease).await;
    assert!(matches!(refused, Err(Error::LeaseGone { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_name_is_taken_until_its_registration_is_gone() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let (first, second) = (node("one"), node("one"));
    let lease = coordination.lease_grant().await.unwrap();
    let other = coordination.lease_grant().await.unwrap();
    assert_eq!(coordination.member_put(&member(&first), lease).await.unwrap(), Registered::Done);
    let taken = Registered::NameTaken { by: Some(first.clone()) };
    assert_eq!(coordination.member_put(&member(&second), other).await.unwrap(), taken);
    // A node never removes the registration of another start.
    coordination.member_remove(&second).await.unwrap();
    assert_eq!(coordination.member_put(&member(&second), other).await.unwrap(), taken);
    coordination.member_remove(&first).await.unwrap();
    assert_eq!(coordination.member_put(&member(&second), other).await.unwrap(), Registered::Done);
}

#[tokio::test]
async fn the_same_start_takes_its_registration_over_onto_a_new_lease() {
    let (endpoints, prefix) = shared_etcd().await;
    let coordination = coordination(&endpoints, &prefix).await;
    let me = node("one");
    let old = coordination.lease_grant().await.unwrap();
    let new = coordination.lease_grant().await.unwrap();
    coordination.member_put(&member(&me), old).await.unwrap();
    assert_eq!(coordination.member_put(&member(&me), new).await.unwrap(), Registered::Done);
    coordination.lease_revoke(old).await.unwrap();
    let again = node("one");
    let third = coordination.lease_grant().await.unwrap();
    let taken = Registered::NameTaken { by: Some(me) };
    assert_eq!(coordination.member_put(&member(&again), third).await.unwrap(), taken);
}

#[tokio::test]
async fn a_frozen_endpoint_is_left_before_the_lease_runs_out() {
    let (etcd, _) = own_etcd(3).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let lease = coordination.lease_grant().await.unwrap();
    etcd.pause(0).unwrap();
    // If the frozen member led, the others have no leader until they have elected one. A machine that stands still
    // leaves a renewal unanswered too.
    let renewed = async || {
        loop {
            match coordination.lease_renew(lease).await {
                Err(Error::Unanswered { .. }) => tokio::task::yield_now().await,
                answer => break answer.unwrap(),
            }
        }
    };
    assert_eq!(soon("a renewal", renewed()).await, Renewal::Alive);
    let failures = || coordination.metrics().request_failures.get();
    let before = failures();
    for _ in 0..20 {
        assert_eq!(soon("a renewal", renewed()).await, Renewal::Alive);
    }
    // A renewal that asked the frozen endpoint first would fail there, each of the twenty.
    assert!(failures() - before < 10, "the frozen endpoint was asked again: {} failures", failures() - before);
    assert!(!coordination.is_away());
    etcd.resume(0).unwrap();
}

#[tokio::test]
async fn an_etcd_that_is_away_is_an_answer_too_and_so_is_its_return() {
    let (etcd, _) = own_etcd(1).await;
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let lease = coordination.lease_grant().await.unwrap();
    etcd.kill(0);
    let lost = soon("an error", coordination.lease_renew(lease)).await;
    assert!(matches!(lost, Err(Error::Unanswered { .. })), "{lost:?}");
    assert!(coordination.is_away());
    etcd.restart_all().await.unwrap();
    assert_eq!(soon("a renewal", coordination.lease_renew(lease)).await.unwrap(), Renewal::Alive);
    assert!(!coordination.is_away());
}

#[tokio::test]
async fn an_etcd_that_is_not_there_yet_does_not_keep_the_node_from_starting() {
    let endpoints = [format!("http://127.0.0.1:{}", integration_tests::sandbox::free_port())];
    let coordination = coordination(&endpoints, "/duetime").await;
    assert!(matches!(soon("an error", coordination.lease_grant()).await, Err(Error::Unanswered { .. })));
}
