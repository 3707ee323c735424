//! Takes in tasks that are submitted over AMQP.

use std::time::Instant;

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
    /// The message is not stored: a statement with its task only failed as with a bug. `others_pass`: others of its
    /// batch were stored, so the task is more likely at fault than the server.
    InDoubt { why: String, others_pass: bool },
}

impl Desk {
    /// Returns one outcome for each message, in their order. A message with a way goes on along it when it is due.
    pub(crate) async fn receive(&self, messages: &[(Option<&DelayRoute>, &Message)]) -> Vec<ReceiveOutcome> {
        if let Err(why) = self.learn_home().await {
            return vec![ReceiveOutcome::Again(why); messages.len()];
        }
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

    /// Reads the queues and the first database's clock, unless this node knows them since its start. Without them it
    /// would judge messages by default policies, and count delays from its own clock. A message can wait at the broker,
    /// and the sender of one that was set aside does not hear of it. An error says what cannot be read.
    async fn learn_home(&self) -> Result<(), String> {
        // A book that was read has a revision. Batches that wait for the same read share it.
        if !self.read_as_of(0).await {
            return Err("the queues cannot be read".to_owned());
        }
        let home = self.parts().store.home();
        if home.clock().at_most(Instant::now()).is_none() {
            home.ping().await.map_err(|error| format!("the first database's clock cannot be read: {error}"))?;
        }
        Ok(())
    }
}

fn outcome(answered: Result<Answered, Problem>) -> ReceiveOutcome {
    match answered {
        Ok((_, Ok(Accepted::Stored(_)))) => ReceiveOutcome::Durable,
        Ok((_, Ok(Accepted::Keyed(put)))) => refusal::put(put).map_or_else(untaken, |_| ReceiveOutcome::Durable),
        Ok((_, Err(error @ SubmitError::Refused(_)))) => ReceiveOutcome::Refused(error.into()),
        Ok((_, Err(SubmitError::InDoubt { why, others_pass }))) => ReceiveOutcome::InDoubt { why, others_pass },
        Ok((_, Err(error))) => ReceiveOutcome::Again(error.to_string()),
        Err(problem) => untaken(problem),
    }
}

/// The outcome of a message with a problem. A problem of the moment says nothing about the message.
fn untaken(problem: Problem) -> ReceiveOutcome {
    if problem.is_unavailable() {
        return ReceiveOutcome::Again(problem.to_string());
    }
    ReceiveOutcome::Refused(problem)
}
