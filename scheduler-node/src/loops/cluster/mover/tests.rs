//! The mover on two real databases, without etcd and step by step.

use super::{work::Ends, *};
use crate::{
    desk::tests::{Counter, nowhere, with_two_databases},
    loops::cluster::session_keeper::SessionState,
    store::{
        move_rows::PageCursor,
        moves::CloseWait,
        submit::Sending,
        tests::{
            fixture::{self, TestDatabase},
            new_task, node,
        },
    },
};
use common::{ids::Epoch, shard::move_progress::MovePhase, time::UnixMicros};

const SHARD: ShardId = ShardId::new(0);

/// A shard that its owner moves from the first database to the second.
struct Moving {
    work: Work,
    ends: Ends,
    epoch: Epoch,
    tests: [TestDatabase; 2],
    _counter: Counter,
}

impl Moving {
    async fn new() -> Self {
        let (counter, tests) = with_two_databases().await;
        let me = node("owner");
        let taken = tests[0].database.shard_acquire(&[SHARD], &me).await.unwrap();
        let (source_index, target_index) = (DatabaseIndex::HOME, DatabaseIndex::new(1));
        let databases = counter.databases.clone();
        let (source, target) = (databases[source_index].clone(), databases[target_index].clone());
        source.owned_shards.adopt(&taken);
        let session = Session { standing: SessionState::Joined, lease: None, candidacy: None, last_renewal: None };
        let (views, session) = (watch::channel(Arc::default()).1, watch::channel(session).1);
        let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
        let mover = Mover::new(me, databases, nowhere(), views, session, metrics);
        let plan = MoveRow {
            shard: SHARD,
            source: source.name().clone(),
            target: target.name().clone(),
            step: MovePhase::Planned,
            called_off_at: None,
            requested_by: "a test".to_owned(),
            requested_at: UnixMicros::new(0),
            started_at: None,
            cut: None,
            since_cut: None,
            page: None,
            rows_total: None,
            rows_copied: 0,
            bytes_copied: 0,
            node: None,
            problem: None,
            updated_at: UnixMicros::new(0),
        };
        let work = Work::new(mover.shared, &plan, CancellationToken::new());
        let ends = Ends { source, source_index, target, target_index };
        Self { work, ends, epoch: taken[0].1, tests, _counter: counter }
    }

    /// Copies the shard. From here on its changes are noted.
    async fn copy(&mut self) {
        let (source, target) = (&self.ends.source.sql, &self.ends.target.sql);
        target.move_guard(&[SHARD], false).await.unwrap();
        source.move_guard(&[SHARD], false).await.unwrap();
        assert!(target.move_arrive(SHARD, self.epoch, 0).await.unwrap());
        assert!(source.move_leave(SHARD, self.epoch).await.unwrap());
        while self.work.page != PageCursor::Done {
            self.work.copy(&self.ends, self.epoch).await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_changes_after_the_last_round_is_in_the_target_when_it_opens() {
    let mut moving = Moving::new().await;
    let source = Arc::clone(&moving.tests[0].database);
    let id = fixture::fresh_id_of(SHARD);
    source.task_submit(&[new_task(id)], Sending::First).await.unwrap();
    moving.copy().await;
    assert_eq!(moving.tests[1].state_of(id).await.as_deref(), Some("scheduled"), "the copy has the task");
    let fences = BTreeMap::from([(SHARD, moving.epoch)]);
    let claimed = source.task_claim(&[id], &fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await.unwrap();
    assert_eq!(claimed.deliveries.len(), 1);
    // The answer is lost.
    moving.ends.source.look_again([id], Duration::from_secs(3_600));
    let closed = source.move_close(SHARD, moving.epoch, CloseWait::Plain).await.unwrap().expect("the owner closes it");
    moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    assert!(moving.ends.target.owned_shards.own_since(SHARD).is_some(), "the target has the shard");
    assert_eq!(moving.tests[1].state_of(id).await.as_deref(), Some("dispatching"), "the claim came over");
    assert_eq!(moving.ends.target.owned_shards.in_doubt(SHARD), [id], "a rescue looks at it there");
}
