//! The attempts that this relay has taken: each is called once, however often its message comes.
//!
//! A message comes again when the connection is lost before its ack has surely arrived, although the work was
//! done. So the relay remembers the end of a call, also for a while after the confirm of its report.

use std::collections::{HashMap, VecDeque};

use common::{ids::TaskId, relay::breaker::Room, task::report::ReportStatus};
use tokio::sync::oneshot;

use crate::broker::{Reply, Subject};

/// The number of finished attempts that are remembered: far more than the broker delivers again after the loss
/// of a connection.
const REMEMBERED: usize = 10_000;

/// What one message is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) task: String,
    pub(super) attempt: Option<i64>,
    /// Tells messages apart that name no attempt of a task: other programs may give several the same correlation id.
    message: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    New,
    Before,
    /// Received before, and its message stays unanswered for now. It is not that of a call that probes the target.
    Unanswered,
}

#[derive(Debug)]
enum Stage {
    Called,
    /// The report is on its way.
    Ended,
    /// The message may be acknowledged, or rejected where no report says how the call ended.
    Settled {
        is_success: bool,
    },
}

#[derive(Debug)]
struct Work {
    begun_as: Room,
    subject: Option<Subject>,
    stage: Stage,
    /// Gives the call up, as long as it waits for its place.
    give_up: Option<oneshot::Sender<()>>,
    /// The reply handles of the copies of its message. A copy of a connection that is gone comes again, so there are no
    /// more than the broker delivers unacked.
    replies: Vec<Reply>,
}

#[derive(Debug, Default)]
pub(super) struct Works {
    works: HashMap<Key, Work>,
    /// The keys of settled attempts, the oldest first.
    settled: VecDeque<Key>,
    /// The number of messages that named no attempt of a task.
    nameless: u64,
}

impl Works {
    /// The key of a message: equal for copies of one attempt of a task, and of no others.
    pub(super) fn key(&mut self, task: String, attempt: Option<i64>) -> Key {
        let is_attempt = attempt.is_some() && task.parse::<TaskId>().is_ok();
        self.nameless += u64::from(!is_attempt);
        Key { task, attempt, message: (!is_attempt).then_some(self.nameless) }
    }

    /// Takes a message. If its work is done, settles it as the copies before it. `give_up` is for a call of new work.
    pub(super) async fn take(
        &mut self,
        key: &Key,
        subject: Option<Subject>,
        reply: Reply,
        room: Room,
        give_up: oneshot::Sender<()>,
    ) -> Known {
        let Some(work) = self.works.get_mut(key) else {
            let (give_up, replies) = (Some(give_up), vec![reply]);
            let work = Work { begun_as: room, subject, stage: Stage::Called, give_up, replies };
            self.works.insert(key.clone(), work);
            return Known::New;
        };
        work.replies.retain(|former| !former.is_lost());
        work.replies.push(reply);
        work.settle().await;
        match work.stage {
            Stage::Called if work.begun_as == Room::Probe => Known::Before,
            Stage::Called | Stage::Ended => Known::Unanswered,
            Stage::Settled { .. } => Known::Before,
        }
    }

    /// Gives up the calls that wait for a place, after the end of the connection over which their messages came. These
    /// come again, as new ones, to this relay or to another.
    pub(super) fn forget_waiting(&mut self) {
        self.works.retain(|_, work| work.give_up.take().is_none_or(|give_up| give_up.send(()).is_err()));
    }

    /// Notes the end of a call. Returns the attempt to report on; `None` when no report is wanted and the
    /// message itself carries the answer.
    pub(super) async fn ended(&mut self, key: &Key, status: ReportStatus) -> Option<Subject> {
        let work = self.works.get_mut(key)?;
        if work.subject.is_some() {
            work.stage = Stage::Ended;
            return work.subject.clone();
        }
        self.settled(key, status == ReportStatus::Succeeded).await;
        None
    }

    /// Notes that the broker has confirmed the report, or refuses it for good.
    pub(super) async fn reported(&mut self, key: &Key, is_confirmed: bool) {
        self.settled(key, is_confirmed).await;
    }

    async fn settled(&mut self, key: &Key, is_success: bool) {
        let Some(work) = self.works.get_mut(key) else { return };
        work.stage = Stage::Settled { is_success };
        work.settle().await;
        if key.message.is_some() {
            self.works.remove(key);
            return;
        }
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
        for reply in self.replies.drain(..) {
            if is_success { reply.ack().await } else { reply.reject() }
        }
    }
}

#[cfg(test)]
mod tests {
    use common::ids::ShardId;
    use tokio::{sync::Semaphore, time::timeout};
    use uuid::Uuid;

    use super::{super::place::place, *};
    use crate::broker::{
        Login, Worker,
        tests::bench::{Bench, LONG},
    };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_that_waits_is_given_up_with_its_connection_and_one_that_has_begun_is_not() {
        let bench = Bench::new().await;
        bench.until_taken("jobs").await;
        let mut worker = Worker::open(&Login::new(bench.rabbit.url(&bench.vhost).into()), "jobs").await.unwrap();
        worker.subscribe(2).await.unwrap();
        let (mut works, places) = (Works::default(), Semaphore::new(1));
        let mut calls = Vec::new();
        for _ in 0..2 {
            let handed = timeout(LONG, worker.next()).await.expect("a task comes").unwrap();
            let key = works.key(handed.task.id.unwrap(), handed.task.attempt);
            let (give_up, given_up) = oneshot::channel();
            assert_eq!(works.take(&key, None, handed.reply, Room::All, give_up).await, Known::New);
            calls.push((key, given_up));
        }
        let [(begun, first), (waiting, second)] = <[_; 2]>::try_from(calls).unwrap();
        let place_of_first = place(&places, first).await;
        works.forget_waiting();
        assert!(place_of_first.is_some() && place(&places, second).await.is_none());
        assert!(works.works.contains_key(&begun) && !works.works.contains_key(&waiting));
        works.forget_waiting();
        assert!(works.works.contains_key(&begun), "nor at the end of the next connection");
    }

    #[test]
    fn only_copies_of_one_attempt_of_a_task_have_one_key() {
        let (mut works, id) = (Works::default(), TaskId::mint(Uuid::nil(), ShardId::new(1)).to_string());
        let mut are_equal =
            |task: &str, first, second| works.key(task.to_owned(), first) == works.key(task.to_owned(), second);
        assert!(are_equal(&id, Some(1), Some(1)));
        assert!(!are_equal(&id, Some(1), Some(2)));
        let message = format!("{id}:1");
        for (task, attempt) in [(&*id, None), (&*message, None), ("order-17", None), ("order-17", Some(1))] {
            assert!(!are_equal(task, attempt, attempt), "{task}, {attempt:?}");
        }
    }
}
