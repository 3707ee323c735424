//! Reading the keys of tasks that come due next.

use std::{collections::BTreeSet, time::Duration};

use common::{
    ids::{QueueName, ShardId},
    task::TaskState,
    time::UnixMicros,
};

use super::{claim, fixture, new_task, own, submitted};
use crate::store::submit::Sending;

#[tokio::test]
async fn a_read_finds_what_wakes_in_its_window_the_earliest_first() {
    let test = fixture::database().await;
    let now = fixture::now(&test.pool).await;
    let shard = ShardId::new(5);
    let tasks: Vec<_> = [30_u64, 10, 20, 90]
        .into_iter()
        .map(|s| {
            let mut task = new_task(fixture::fresh_id_of(shard));
            (task.due_now, task.due_at) = (false, now.plus(Duration::from_secs(s)));
            task
        })
        .collect();
    test.database.task_submit(&tasks, Sending::First).await.unwrap();
    let keys =
        test.database.task_preload(&[shard], UnixMicros::new(0), now.plus(Duration::from_secs(60)), 100).await.unwrap();
    assert_eq!(keys.iter().map(|key| key.id).collect::<Vec<_>>(), [tasks[1].id, tasks[2].id, tasks[0].id]);
    let keys =
        test.database.task_preload(&[shard], UnixMicros::new(0), now.plus(Duration::from_secs(600)), 2).await.unwrap();
    assert_eq!(keys.len(), 2, "bounded for each shard");
    assert!(
        test.database
            .task_preload(&[ShardId::new(6)], UnixMicros::new(0), UnixMicros::LAST, 100)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn what_waits_for_room_is_not_read_and_what_is_claimed_shows_its_epoch() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let ids = submitted(&test, 2).await;
    test.database
        .task_claim(&ids[..1], &fences, Duration::ZERO, &BTreeSet::from([QueueName::new("orders")]), i64::MAX)
        .await
        .unwrap();
    claim(&test, &ids[1..], &fences).await;
    let keys = test.database.task_preload(&[ShardId::new(0)], UnixMicros::new(0), UnixMicros::LAST, 100).await.unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].id, keys[0].state), (ids[1], TaskState::Dispatching));
    assert_eq!(keys[0].claim_epoch, Some(fences[&ShardId::new(0)]));
}
