//! Nudges between nodes: each node receives all that another one sent, however much it is.

use std::collections::BTreeSet;

use common::{
    ids::{QueueName, ShardId, TaskId},
    time::UnixMicros,
};

use super::fixture;
use crate::{
    coordination::tests::soon,
    store::watch::{Notification, Nudge},
};

#[tokio::test]
async fn what_is_told_is_heard_whole_however_many_notifications_it_takes() {
    let test = fixture::database().await;
    let mut nudges = test.database.nudges(None).await.unwrap();
    let longest = QueueName::new("q".repeat(128));
    let row = |micros| (TaskId::mint(uuid::Uuid::now_v7(), ShardId::new(u16::MAX)), UnixMicros::new(micros));
    let told = Nudge {
        rows: (0..1_000).map(|place| row(i64::MAX / 1_000 - place)).collect(),
        shards: (0..4_096).map(ShardId::new).collect(),
        room: (0..300).map(|shard| (ShardId::new(u16::MAX - shard), longest.clone())).collect(),
    };
    test.database.tell(&told).await.unwrap();
    let mut heard = Nudge::default();
    while heard.rows.len() < told.rows.len()
        || heard.shards.len() < told.shards.len()
        || heard.room.len() < told.room.len()
    {
        match soon("a notification", nudges.next()).await.unwrap() {
            Notification::Rows(rows) => heard.rows.extend(rows),
            Notification::Shards(shards) => heard.shards.extend(shards),
            Notification::Room(room) => heard.room.extend(room),
            other => panic!("unexpected notification {other:?}"),
        }
    }
    let known: BTreeSet<_> = heard.rows.drain(..).collect();
    assert_eq!(known, told.rows.iter().copied().collect());
    assert_eq!((heard.shards, heard.room), (told.shards, told.room));
}
