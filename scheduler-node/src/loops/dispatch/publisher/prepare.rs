//! Makes the way to a queue ready when its first messages are claimed: the queue is declared, and channels are open.
//! Otherwise the first messages of a quiet queue would wait for both at their due instants.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use common::outbox::{Dispatch, Outbox};
use tokio::task::JoinSet;

use super::{Publisher, route};
use crate::{
    broker::{Publish, Route},
    clock,
    store::Statements,
    supervise::at_work,
};

/// Messages that leave sooner make ready what they need by themselves: a declaration takes about as long.
const AHEAD: Duration = Duration::from_millis(10);

/// The routes that are made ready at a time. Half of the declarations that the broker takes at a time are left to
/// messages that are due.
const AT_ONCE: usize = 4;

/// The most routes that wait to be made ready. Messages of others make ready what they need when they are due.
const WAITING: usize = 256;

/// The most channels that stand open for batches to come. Each costs the broker a process, and a batch that finds none
/// opens one.
const CHANNELS: usize = 16;

/// The routes of new lanes that are made ready.
#[derive(Debug, Default)]
pub(super) struct Preparations {
    /// Those that wait for it, each with the instant at which its first message is due.
    waiting: VecDeque<(Route, Instant)>,
    pub(super) under_way: JoinSet<()>,
}

impl<S: Statements, B: Publish> Publisher<S, B> {
    /// Adds a message that comes due soon. If its lane is new, and there is time, the route is to be made ready.
    pub(super) fn add(&self, dispatch: Dispatch, outbox: &mut Outbox, preparations: &mut Preparations) {
        if self.put_off(&dispatch) {
            return;
        }
        let (delivery, due_at) = (&dispatch.delivery, dispatch.publish_at);
        let has_room = preparations.waiting.len() < WAITING;
        if has_room && !outbox.has_lane(&delivery.queue) && due_at > clock::instant() + AHEAD {
            let policy = self.books.load().get(&delivery.queue);
            preparations.waiting.push_back((route(&policy, delivery.envelope.as_deref()), due_at));
        }
        outbox.add(dispatch);
    }

    /// Makes waiting routes ready, a few at a time. One whose messages are due by now is left to them.
    pub(super) fn prepare(self: &Arc<Self>, outbox: &Outbox, preparations: &mut Preparations) {
        let channels = outbox.batches_at_once().min(CHANNELS);
        while preparations.under_way.len() < AT_ONCE {
            let Some((route, due_at)) = preparations.waiting.pop_front() else { return };
            if due_at <= clock::instant() || self.broker.is_ready(&route, channels) {
                continue;
            }
            let (this, work) = (Arc::clone(self), at_work());
            preparations.under_way.spawn(async move {
                this.broker.prepare(&route, channels).await;
                drop(work);
            });
        }
    }
}
