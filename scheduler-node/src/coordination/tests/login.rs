use etcd_client::Permission;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    coordination::{Error, EtcdTls, Mirror, Registered, Renewal},
    supervise::spawn_child,
};

/// An etcd with users: `node` may read and write everything under the prefix.
async fn guarded_etcd() -> Etcd {
    let (etcd, _) = own_etcd(1).await;
    let mut client = etcdctl(&etcd.endpoints()).await;
    client.user_add("root", "root", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("duetime").await.unwrap();
    let all = Permission::read_write("/duetime/").with_prefix();
    client.role_grant_permission("duetime", all).await.unwrap();
    client.user_add("node", "secret", None).await.unwrap();
    client.user_grant_role("node", "duetime").await.unwrap();
    client.auth_enable().await.unwrap();
    etcd
}

fn as_node(endpoints: &[String], password: &str) -> EtcdSettings {
    EtcdSettings { user: Some(("node".to_owned(), password.into())), ..settings(endpoints, "/duetime") }
}

#[tokio::test]
async fn a_user_of_the_prefix_alone_can_do_everything_and_logs_in_again_when_its_token_is_forgotten() {
    let etcd = guarded_etcd().await;
    let coordination = connect(as_node(&etcd.endpoints(), "secret")).await;
    let (mirror, views) = Mirror::new(coordination.clone());
    let task = spawn_child(mirror.run(CancellationToken::new()));
    let me = node("one");
    let lease = coordination.lease_grant().await.unwrap();
    assert_eq!(coordination.member_put(&member(&me), lease).await.unwrap(), Registered::Done);
    coordination.candidate_put(&me, lease).await.unwrap();
    eventually("it is shown", || views.borrow().master().is_some()).await;
    // The restart drops the tokens, which live in the server's memory.
    etcd.kill(0);
    etcd.restart_all().await.unwrap();
    assert_eq!(soon("a renewal", coordination.lease_renew(lease)).await.unwrap(), Renewal::Alive);
    let change = common::cluster::Member { version: "1".to_owned(), ..member(&me) };
    assert_eq!(coordination.member_put(&change, lease).await.unwrap(), Registered::Done);
    eventually("the change is shown", || views.borrow().member(&me).is_some_and(|member| member.version == "1")).await;
    coordination.candidate_remove(lease).await.unwrap();
    coordination.lease_revoke(lease).await.unwrap();
    eventually("it is deleted", || views.borrow().members.is_empty()).await;
    task.abort();
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_a_changed_one_is_noticed() {
    let etcd = guarded_etcd().await;
    let wrong = connect(as_node(&etcd.endpoints(), "guess")).await;
    let refused = soon("an answer", wrong.lease_grant()).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let right = connect(as_node(&etcd.endpoints(), "secret")).await;
    let lease = right.lease_grant().await.unwrap();
    // Any change to the users invalidates the tokens.
    let options = etcd_client::ConnectOptions::new().with_user("root", "root");
    let mut root = Client::connect(etcd.endpoints(), Some(options)).await.unwrap();
    root.user_add("another", "one", None).await.unwrap();
    assert_eq!(right.member_put(&member(&node("one")), lease).await.unwrap(), Registered::Done);
}

#[tokio::test]
async fn a_login_that_an_etcd_without_users_refuses_grants_no_lease() {
    let (endpoints, prefix) = shared_etcd().await;
    let settings = EtcdSettings { user: Some(("node".to_owned(), "secret".into())), ..settings(&endpoints, &prefix) };
    let refused = soon("an answer", connect(settings).await.lease_grant()).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn certificates_that_are_none_are_refused_at_the_start() {
    let tls = EtcdTls { ca: Some(b"not a certificate".to_vec()), identity: None };
    let settings = EtcdSettings { tls: Some(tls), ..settings(&["https://127.0.0.1:1".to_owned()], "/duetime") };
    let metrics = CoordinationMetrics::register(&Registry::new()).unwrap();
    let refused = Coordination::new(settings, metrics).await;
    assert!(matches!(refused, Err(Error::Endpoint { .. })), "{refused:?}");
}
