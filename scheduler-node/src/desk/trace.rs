//! Where submissions stand in the traces of their tasks.

use common::{
    ids::QueueName,
    task::{TraceContext, trace::Upstream},
    wire::{Problem, TaskReceipt, TaskRequest, ValidTask},
};

use super::Desk;
use crate::{
    loops::submitter::{Answer, Unstored},
    traces::{Batch, Done, Hop, Step, Submitted, Way},
};

/// Traces of a batch's tasks that its own hop names; the tasks name theirs anyway.
const MAX_LINKS: usize = 128;

/// A task on its way into the database, of a trace that is recorded.
pub(super) struct Traced {
    hop: Hop,
    queue: QueueName,
}

impl Desk {
    /// [`Desk::submit_batch`] for a client that may stand in a trace: then the batch is a hop of it, with those of the tasks below. Tasks
    /// that name traces of their own stay in them, and the batch is linked to them.
    pub async fn submit_batch_for(
        &self,
        upstream: Option<Upstream>,
        mut requests: Vec<Result<TaskRequest, Problem>>,
    ) -> Vec<Result<TaskReceipt, Problem>> {
        let Some(mut upstream) = upstream else { return self.submit_batch(requests).await };
        let hop = self.parts().traces.batching(upstream.context);
        let own = |request: &TaskRequest| TraceContext::carried(request.headers.as_ref()?, None);
        let links: Vec<TraceContext> = match hop {
            Some(_) => requests.iter().flatten().filter_map(own).take(MAX_LINKS).collect(),
            None => Vec::new(),
        };
        if let Some(hop) = &hop {
            upstream.context = hop.context;
        }
        for request in requests.iter_mut().flatten() {
            request.upstream = Some(upstream.clone());
        }
        let tasks = requests.len();
        let answers = self.submit_batch(requests).await;
        if let Some(hop) = hop {
            self.parts().traces.record(&hop, Step { queue: None, done: Done::Batch(Batch { tasks, links }) });
        }
        answers
    }

    pub(super) fn traced(&self, task: &mut ValidTask) -> Option<Traced> {
        self.parts().traces.submitting(task).map(|hop| Traced { hop, queue: task.queue.clone() })
    }

    /// What a submission came to.
    pub(super) fn trace(&self, traced: Option<Traced>, way: Way, answer: &Result<Answer, Unstored>) {
        let Some(Traced { hop, queue }) = traced else { return };
        let outcome = match answer {
            Ok(Answer::Stored(stored)) => Ok(stored.id),
            Ok(Answer::Keyed(put)) => Ok(put.id),
            Err(error) => Err(error.to_string()),
        };
        let done = Done::Submitted(Submitted { way, outcome });
        self.parts().traces.record(&hop, Step { queue: Some(&queue), done });
    }
}
