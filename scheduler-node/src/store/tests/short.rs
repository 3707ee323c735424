//! Statements and picks with the usual arguments.

use std::collections::BTreeMap;

use common::{
    ids::{Epoch, QueueName, ShardId},
    priority::{LEVELS, Levels},
    queue::QueuePolicy,
    task::NewTask,
    time::UnixMicros,
};

use crate::store::{
    Database, Error,
    claim::Claimed,
    lane::{Pick, STARTED_AHEAD, Walks},
    put::{Put, Retention},
    queues::PutQueue,
    submit::{Sending, Window},
};

impl Database {
    pub(crate) async fn task_submit(&self, tasks: &[NewTask], sending: Sending) -> Result<UnixMicros, Error> {
        self.task_submit_within(tasks, sending, Window::OPEN, i64::MAX).await.map(|written| written.asked_at)
    }

    pub(crate) async fn task_put(&self, tasks: &[NewTask], holds: &[Retention]) -> Result<Vec<Put>, Error> {
        self.task_put_within(tasks, holds, Window::OPEN, i64::MAX).await
    }

    /// A pick that starts its tasks however late it is executed.
    pub(crate) async fn task_pick_open(&self, pick: &Pick<'_>) -> Result<(Claimed, Walks), Error> {
        self.task_pick_within(pick, Window::OPEN).await
    }

    pub(crate) async fn queue_put(
        &self,
        name: &QueueName,
        policy: &QueuePolicy,
        paused: Option<bool>,
        most: u32,
    ) -> Result<Option<PutQueue>, Error> {
        self.queue_put_seen(name, policy, paused, most, None).await
    }
}

impl Window {
    /// The window of a first sending without an end: it is executed however late it comes.
    pub(crate) const OPEN: Self = Self { after: None, until: UnixMicros::LAST };
    /// The same of a sending after one with an unknown end.
    pub(crate) const OPEN_AGAIN: Self = Self { after: Some(UnixMicros::FIRST), until: UnixMicros::LAST };
}

impl<'a> Pick<'a> {
    /// The first pick of a queue without order, limit or rate, whose policy has not changed.
    pub(crate) fn of(queue: &'a QueueName, fences: &'a BTreeMap<ShardId, Epoch>, wanted: Levels) -> Self {
        Self {
            queue,
            fences,
            wanted,
            after: &[const { None }; LEVELS],
            ordered: false,
            counted: false,
            known: i64::MAX,
            ahead: STARTED_AHEAD,
            aside: &[],
            only: None,
            from: None,
        }
    }
}
