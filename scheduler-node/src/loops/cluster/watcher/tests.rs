//! The watcher of a master, on a real etcd and a real database, and one other member that ends piece by piece.

use common::{cluster::Member, ids::DatabaseName};
use tokio::net::TcpListener;

use super::*;
use crate::{
    coordination::{
        Mirror, Registered, Renewal,
        tests::{SOON, coordination, kept_lease, member, node, shared_etcd, soon},
    },
    loops::cluster::session_keeper::SessionState,
    store::{
        tests::fixture::{self, TestDatabase},
        watch::Nudges,
    },
    supervise::spawn_child,
};

/// Looks of a test that expects no decision: several times as many as a decision takes.
const LOOKS: usize = 12;

/// A member with its session and its port.
struct Other {
    node: NodeId,
    lease: LeaseId,
    session: Option<Nudges>,
    listener: Option<TcpListener>,
}

struct Scene {
    watcher: Watcher,
    other: Other,
    /// The watcher's own session.
    mine: Option<Nudges>,
    _test: TestDatabase,
}

async fn joined(coordination: &Coordination, member: Member) -> (LeaseId, Term) {
    let lease = kept_lease(coordination).await;
    assert_eq!(coordination.member_put(&member, lease).await.unwrap(), Registered::Done);
    (lease, coordination.candidate_put(&member.node, lease).await.unwrap())
}

impl Scene {
    async fn new() -> Self {
        let test = fixture::database().await;
        let (endpoints, prefix) = shared_etcd().await;
        let coordination = coordination(&endpoints, &prefix).await;
        let (me, them) = (node("me"), node("other"));
        let (lease, term) = joined(&coordination, member(&me)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Some(format!("http://{}", listener.local_addr().unwrap()));
        let (its_lease, _) = joined(&coordination, Member { url, ..member(&them) }).await;
        let mine = test.database.nudges(Some(me.incarnation)).await.unwrap();
        let session = test.database.nudges(Some(them.incarnation)).await.unwrap();
        let (mirror, mut views) = Mirror::new(coordination.clone());
        spawn_child(mirror.run(CancellationToken::new()));
        let is_complete = |view: &Arc<ClusterView>| view.members.len() == 2 && view.candidates.len() == 2;
        soon("both members are shown", views.wait_for(is_complete)).await.unwrap();
        let joined = Session { standing: SessionState::Joined { lease, term }, last_renewal: None, refusal: None };
        let registration = watch::Sender::new(joined).subscribe();
        let watcher = Watcher::new(me, coordination, Arc::clone(&test.database), views, registration);
        let other = Other { node: them, lease: its_lease, session: Some(session), listener: Some(listener) };
        Self { watcher, other, mine: Some(mine), _test: test }
    }

    /// Looks until the other process has this standing.
    async fn look_until(&mut self, expected: Standing) {
        let looks = async { while self.look().await != expected {} };
        tokio::time::timeout(SOON, looks).await.unwrap_or_else(|_| panic!("never {expected:?}"));
    }

    async fn look(&mut self) -> Standing {
        let pause = self.watcher.activate().await;
        tokio::time::sleep(pause.min(CONFIRM_AFTER)).await;
        self.watcher.watched[&self.other.node].standing
    }

    /// Looks many times and expects that the member stays.
    async fn stays(&mut self) {
        for _ in 0..LOOKS {
            let standing = self.look().await;
            assert!(matches!(standing, Standing::Alive | Standing::Unproven), "{standing:?}");
        }
        assert!(self.is_registered().await);
        assert!(self.watcher.ended.borrow().is_empty());
        assert_eq!(self.watcher.coordination.metrics().revocations.get(), 0);
    }

    /// Waits until the other is shown as a member, or as none.
    async fn shown(&mut self, is_shown: bool) {
        let other = &self.other.node;
        let has_it = |view: &Arc<ClusterView>| view.member(other).is_some() == is_shown;
        soon("the view of the other", self.watcher.views.wait_for(has_it)).await.unwrap();
    }

    async fn is_registered(&self) -> bool {
        self.watcher.coordination.lease_renew(self.other.lease).await.unwrap() == Renewal::Alive
    }

    /// Ends the other's session. The database notices after a while.
    async fn end_session(&mut self) {
        self.other.session = None;
        self.presence("the other's session ends", |present| present == Some([].into())).await;
    }

    /// Ends the watcher's own session.
    async fn end_own_session(&mut self) {
        self.mine = None;
        self.presence("its own session ends", |present| present.is_none()).await;
    }

    /// Waits until the database answers this to the watcher's question.
    async fn presence(&self, what: &str, is_expected: impl Fn(Option<BTreeSet<Incarnation>>) -> bool) {
        let (me, other) = (self.watcher.me.incarnation, self.other.node.incarnation);
        let answered = async {
            while !is_expected(self.watcher.home.present(me, &[other]).await.unwrap()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(what, answered).await;
    }

    fn close_port(&mut self) {
        self.other.listener = None;
    }
}

#[tokio::test]
async fn a_member_whose_session_and_port_are_gone_loses_its_lease() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.end_session().await;
    scene.close_port();
    scene.look_until(Standing::Ended).await;
    assert!(!scene.is_registered().await);
    assert!(scene.watcher.ended.borrow().contains(&scene.other.node));
    assert_eq!(scene.watcher.coordination.metrics().revocations.get(), 1);
}

/// As when another candidate has seen the end first.
#[tokio::test]
async fn a_member_whose_lease_another_has_revoked_is_known_to_have_ended_all_the_same() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.end_session().await;
    scene.close_port();
    scene.watcher.coordination.lease_revoke(scene.other.lease).await.unwrap();
    scene.shown(false).await;
    scene.look_until(Standing::Ended).await;
    assert!(scene.watcher.ended.borrow().contains(&scene.other.node));
    assert_eq!(scene.watcher.coordination.metrics().revocations.get(), 0);
}

#[tokio::test]
async fn a_member_that_registers_again_after_its_lease_was_revoked_is_left_to_its_new_lease() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.end_session().await;
    scene.close_port();
    scene.look_until(Standing::Ended).await;
    scene.shown(false).await;
    (scene.other.lease, _) = joined(&scene.watcher.coordination, member(&scene.other.node)).await;
    scene.shown(true).await;
    for _ in 0..LOOKS {
        scene.look().await;
    }
    assert!(scene.is_registered().await);
    assert_eq!(scene.watcher.coordination.metrics().revocations.get(), 1);
}

#[tokio::test]
async fn a_member_whose_session_alone_is_gone_keeps_its_lease() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.end_session().await;
    scene.stays().await;
}

#[tokio::test]
async fn a_member_whose_port_alone_is_refused_keeps_its_lease() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.close_port();
    scene.stays().await;
}

#[tokio::test]
async fn a_watcher_without_a_session_of_its_own_judges_no_other() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.end_session().await;
    scene.end_own_session().await;
    scene.close_port();
    scene.stays().await;
}

#[tokio::test]
async fn without_a_database_no_member_is_judged() {
    let mut scene = Scene::new().await;
    scene.look_until(Standing::Alive).await;
    scene.end_session().await;
    scene.close_port();
    scene.watcher.home = fixture::unreachable_database(DatabaseName::new("main").as_str());
    scene.stays().await;
}

#[tokio::test]
async fn a_member_whose_port_never_took_a_connection_keeps_its_lease() {
    let mut scene = Scene::new().await;
    scene.close_port();
    assert_eq!(scene.look().await, Standing::Unproven);
    scene.end_session().await;
    scene.stays().await;
}
