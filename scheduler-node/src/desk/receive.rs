//! Takes in tasks that are submitted over AMQP.

use common::{
    task::ValidTask,
    wire::{DelayRoute, Message, Problem},
};

use super::{Desk, refusal, submit::Answered};
use crate::{
    loops::submit::submitter::{Accepted, SubmitError},
    traces::Way,
};

/// The label of this source in the metrics.
const SOURCE: &str = "amqp";

/// The outcome for one message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReceiveOutcome {
    /// The message is durable as a task, or another task answers for it.
    Durable,
    /// The message cannot be a task.
    Refused(Problem),
    /// The message is not stored, or its outcome is unknown: it has to come again.
    Again(String),
}

impl Desk {
    /// Returns one outcome for each message, in their order. A message with a way goes on along it when it is due.
    pub(crate) async fn receive(&self, messages: &[(Option<&DelayRoute>, &Message)]) -> Vec<ReceiveOutcome> {
        let (now, limits) = (self.present(), self.limits());
        let read: Vec<Result<ValidTask, Problem>> = messages
            .iter()
            .map(|(way, message)| match way {
                Some(way) => message.delayed(way, now, &limits),
                None => message.submitted(now, &limits),
            })
            .collect();
        self.store(read, Way::Amqp, SOURCE).await.into_iter().map(outcome).collect()
    }
}

fn outcome(answered: Result<Answered, Problem>) -> ReceiveOutcome {
    match answered {
        Ok((_, Ok(Accepted::Stored(_)))) => ReceiveOutcome::Durable,
        Ok((_, Ok(Accepted::Keyed(put)))) => {
            refusal::put(put).map_or_else(ReceiveOutcome::Refused, |_| ReceiveOutcome::Durable)
        }
        Ok((_, Err(error @ SubmitError::Refused(_)))) => ReceiveOutcome::Refused(error.into()),
        Ok((_, Err(error))) => ReceiveOutcome::Again(error.to_string()),
        Err(problem) => ReceiveOutcome::Refused(problem),
    }
}
