//! The place of submissions in the traces of their tasks.

use common::{
    ids::QueueName,
    task::{TraceContext, trace::Upstream},
    wire::{Problem, TaskReceipt, TaskRequest},
};

use super::{Desk, submit::Outcome};
use crate::{
    loops::submit::submitter::Accepted,
    traces::{Batch, Done, Hop, Step, Submitted, Way},
};

/// The most traces of a batch's tasks to which the batch's own hop is linked. The tasks name their traces anyway.
const MAX_LINKS: usize = 128;

impl Desk {
    /// [`Desk::submit_batch`] for a client that may have a trace of its own. The batch is then a hop of that
    /// trace, with the hops of its tasks below. Tasks that name traces of their own stay in those, and the
    /// batch is linked to them.
    pub(crate) async fn submit_batch_for(
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

    /// Records the outcome of a submission whose trace is recorded.
    pub(super) fn trace(&self, hop: Option<Hop>, queue: &QueueName, way: Way, outcome: &Outcome) {
        let Some(hop) = hop else { return };
        let outcome = match outcome {
            Ok(Ok(Accepted::Stored(stored))) => Ok(stored.id),
            Ok(Ok(Accepted::Keyed(put))) => Ok(put.id),
            Ok(Err(error)) => Err(error.to_string()),
            Err(problem) => Err(problem.to_string()),
        };
        let done = Done::Submitted(Submitted { way, outcome });
        self.parts().traces.record(&hop, Step { queue: Some(queue), done });
    }
}
