//! A node that starts while a former start of its name is registered, on a real etcd and a real database.

use std::sync::Arc;

use etcd_client::PutOptions;
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;
use crate::{
    coordination::{
        Mirror, Registered,
        tests::{coordination, etcdctl, eventually, kept_lease, member, node, own_etcd, shared_etcd, soon},
    },
    store::{
        tests::fixture::{self, TestDatabase},
        watch::Nudges,
    },
    supervise::spawn_child,
};

/// Several times the pause between two looks at the former start.
const LOOKS: Duration = Duration::from_secs(2);

/// A registered former start, whose lease is kept alive as long as the test runs.
struct Scene {
    test: TestDatabase,
    endpoints: Vec<String>,
    prefix: String,
    coordination: Coordination,
    former: NodeId,
    session: Option<Nudges>,
}

impl Scene {
    async fn new(url: Option<String>, presence: bool) -> Self {
        let test = fixture::database().await;
        let (endpoints, prefix) = shared_etcd().await;
        let coordination = coordination(&endpoints, &prefix).await;
        let former = node("one");
        let lease = kept_lease(&coordination).await;
        let record = Member { url, presence, ..member(&former) };
        assert_eq!(coordination.member_put(&record, lease).await.unwrap(), Registered::Done);
        let session = Some(test.database.nudges(Some(former.incarnation)).await.unwrap());
        Self { test, endpoints, prefix, coordination, former, session }
    }

    /// Starts the node again, as the process that has bound the port behind `url`.
    async fn start_again(&self, url: Option<String>) -> Started {
        let me = node("one");
        let nudges = self.test.database.nudges(Some(me.incarnation)).await.unwrap();
        let (mirror, views) = Mirror::new(self.coordination.clone());
        let (_, fitness) = watch::channel(MemberFitness::default());
        let record = Member { url, ..member(&me) };
        let leaving = CancellationToken::new();
        let (keeper, session) = SessionKeeper::new(self.coordination.clone(), record, views, fitness, leaving);
        let keeper = keeper.replacing(FormerStart::new(Arc::clone(&self.test.database)));
        let stop = CancellationToken::new();
        let tasks = vec![spawn_child(mirror.run(stop.clone())), spawn_child(keeper.run(stop))];
        Started { me, session, _nudges: nudges, tasks }
    }

    /// Registers another start of the node, whatever is registered now.
    async fn replace_by(&self, start: &NodeId) {
        let mut etcd = etcdctl(&self.endpoints).await;
        // The lease is longer than the test, which does not renew it.
        let lease = etcd.lease_grant(600, None).await.unwrap().id();
        let record = serde_json::to_vec(&Member { url: url(), ..member(start) }).unwrap();
        let options = PutOptions::new().with_lease(lease);
        etcd.put(format!("{}/nodes/{}", self.prefix, start.name), record, Some(options)).await.unwrap();
    }

    async fn waits(&self, started: &Started) {
        eventually("the name is taken", || started.standing() == self.taken()).await;
        tokio::time::sleep(LOOKS).await;
        self.assert_waiting(started);
    }

    fn assert_waiting(&self, started: &Started) {
        assert_eq!(started.standing(), self.taken());
        assert_eq!(self.coordination.metrics().revocations.get(), 0);
    }

    fn taken(&self) -> SessionState {
        SessionState::NameTaken { by: Some(self.former.clone()) }
    }

    /// Waits until the database shows no session of the former start. As long as it shows one, that alone keeps the
    /// next start out.
    async fn session_ends(&self, next: &Started) {
        let former = [self.former.incarnation];
        let ended = async {
            let present = async || self.test.database.present(next.me.incarnation, &former).await;
            while !matches!(present().await, Ok(Some(present)) if present.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the former session ends", ended).await;
    }
}

struct Started {
    me: NodeId,
    session: watch::Receiver<Session>,
    _nudges: Nudges,
    tasks: Vec<JoinHandle<()>>,
}

impl Started {
    fn standing(&self) -> SessionState {
        self.session.borrow().standing.clone()
    }

    fn has_joined(&self) -> bool {
        self.session.borrow().joined().is_some()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn url() -> Option<String> {
    Some("http://127.0.0.1:1".to_owned())
}

#[tokio::test]
async fn a_restarted_node_takes_its_name_back_from_a_former_start_that_has_ended() {
    let mut scene = Scene::new(url(), true).await;
    scene.session = None;
    let again = scene.start_again(url()).await;
    eventually("joined", || again.has_joined()).await;
    assert_eq!(scene.coordination.metrics().revocations.get(), 1);
}

#[tokio::test]
async fn a_second_node_of_one_name_and_url_waits_while_the_first_lives() {
    let mut scene = Scene::new(url(), true).await;
    let second = scene.start_again(url()).await;
    scene.waits(&second).await;
    scene.session = None;
    eventually("joined", || second.has_joined()).await;
}

#[tokio::test]
async fn a_second_node_of_one_name_waits_while_the_first_listens_elsewhere() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = Some(format!("http://{}", listener.local_addr().unwrap()));
    let mut scene = Scene::new(elsewhere, true).await;
    scene.session = None;
    let second = scene.start_again(url()).await;
    // The port is asked only once the session has ended. With the second knock the first one has been judged.
    let knocks = async {
        for _ in 0..2 {
            listener.accept().await.unwrap();
        }
    };
    soon("two knocks", knocks).await;
    scene.assert_waiting(&second);
    drop(listener);
    eventually("joined", || second.has_joined()).await;
}

#[tokio::test]
async fn a_former_start_of_a_version_without_presence_is_left_to_its_lease() {
    let mut scene = Scene::new(url(), false).await;
    scene.session = None;
    let again = scene.start_again(url()).await;
    scene.session_ends(&again).await;
    scene.waits(&again).await;
}

#[tokio::test]
async fn a_node_that_has_joined_once_revokes_no_other_start() {
    let mut scene = Scene::new(url(), true).await;
    scene.session = None;
    let again = scene.start_again(url()).await;
    eventually("joined", || again.has_joined()).await;
    // Another start takes the name while this one loses its lease, and has no session. The other record comes first:
    // otherwise this node could register again before it.
    let lease = again.session.borrow().lease().expect("it has joined");
    scene.former = node("one");
    scene.replace_by(&scene.former).await;
    scene.coordination.lease_revoke(lease).await.unwrap();
    eventually("the name is taken", || again.standing() == scene.taken()).await;
    tokio::time::sleep(LOOKS).await;
    // Between two leases its standing is another one for a moment.
    assert!(!again.has_joined());
    assert_eq!(scene.coordination.metrics().revocations.get(), 1);
}

#[tokio::test]
async fn a_refusal_of_etcd_is_the_reason_why_a_node_is_not_registered_until_etcd_takes_it() {
    let (etcd, _) = own_etcd(1).await;
    etcd.raise_no_space().await.unwrap();
    let coordination = coordination(&etcd.endpoints(), "/duetime").await;
    let (_mirror, views) = Mirror::new(coordination.clone());
    let (_fit, fitness) = watch::channel(MemberFitness::default());
    let (mut keeper, session) =
        SessionKeeper::new(coordination, member(&node("one")), views, fitness, CancellationToken::new());
    let refused = async {
        while session.borrow().refusal.is_none() {
            let result = keeper.activate().await;
            keeper.report(result);
        }
    };
    soon("etcd refuses the registration", refused).await;
    let why = session.borrow().refusal.clone().expect("etcd refuses");
    assert!(why.contains("space exceeded"), "{why}");
    etcd.clear_no_space().await.unwrap();
    let registered = async {
        while session.borrow().joined().is_none() {
            let result = keeper.activate().await;
            keeper.report(result);
        }
    };
    soon("etcd takes the registration", registered).await;
    assert_eq!(session.borrow().refusal, None);
}
