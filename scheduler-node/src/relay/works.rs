//! What this relay has taken: each attempt is called once, however often its message comes.
//!
//! A message comes again when the connection is lost before its ack is surely taken, although the work was done. So the end of a
//! call is remembered, also for a while after its report was confirmed.

use std::collections::{HashMap, VecDeque};

use common::wire::report::ReportStatus;

use crate::broker::{Reply, Subject};

/// Attempts that are over and still known: far more than the broker hands out again after the loss of a connection.
const REMEMBERED: usize = 10_000;

/// A task and its attempt.
pub(super) type Key = (String, Option<i64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    New,
    Before,
}

#[derive(Debug)]
enum Stage {
    Called,
    /// Its report is on its way.
    Ended,
    /// The message may be acknowledged (or rejected, where nothing is reported).
    Settled {
        is_success: bool,
    },
}

#[derive(Debug)]
struct Work {
    subject: Option<Subject>,
    stage: Stage,
    /// Of the newest copy of its message.
    reply: Option<Reply>,
}

#[derive(Debug, Default)]
pub(super) struct Works {
    works: HashMap<Key, Work>,
    /// Those that are settled, the oldest first.
    settled: VecDeque<Key>,
}

impl Works {
    /// A message has come. One whose work is done is settled as the copy before it was.
    pub(super) async fn take(&mut self, key: &Key, subject: Option<Subject>, reply: Reply) -> Known {
        let Some(work) = self.works.get_mut(key) else {
            self.works.insert(key.clone(), Work { subject, stage: Stage::Called, reply: Some(reply) });
            return Known::New;
        };
        work.reply = Some(reply);
        work.settle().await;
        Known::Before
    }

    /// A call has ended. Answers what to report about, if a report is wanted; else the message itself is the answer.
    pub(super) async fn ended(&mut self, key: &Key, status: ReportStatus) -> Option<Subject> {
        let work = self.works.get_mut(key)?;
        if work.subject.is_some() {
            work.stage = Stage::Ended;
            return work.subject.clone();
        }
        self.settled(key, status == ReportStatus::Succeeded).await;
        None
    }

    /// The broker has confirmed the report.
    pub(super) async fn reported(&mut self, key: &Key) {
        self.settled(key, true).await;
    }

    async fn settled(&mut self, key: &Key, is_success: bool) {
        let Some(work) = self.works.get_mut(key) else { return };
        work.stage = Stage::Settled { is_success };
        work.settle().await;
        self.settled.push_back(key.clone());
        if self.settled.len() > REMEMBERED
            && let Some(oldest) = self.settled.pop_front()
        {
            self.works.remove(&oldest);
        }
    }
}

impl Work {
    async fn settle(&mut self) {
        let Stage::Settled { is_success } = self.stage else { return };
        match self.reply.take() {
            Some(reply) if is_success => reply.ack().await,
            Some(reply) => reply.reject(),
            None => {}
        }
    }
}
