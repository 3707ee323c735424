//! Takes in tasks that are submitted over AMQP.

use common::wire::{DelayWay, Message, Problem, ValidTask};

use super::{Desk, limits::AppliedLimits, refusal};
use crate::{
    loops::submit::submitter::{Answer, Unstored},
    traces::Way,
};

/// The label of this source in the metrics.
const SOURCE: &str = "amqp";

/// The outcome for one message.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiveOutcome {
    /// The message is durable as a task, or another task answers for it.
    Durable,
    /// The message cannot be a task.
    Refused(Problem),
    /// The message is not stored, or its outcome is unknown: it has to come again.
    Again(String),
}

impl Desk {
    /// Returns one outcome for each message, in their order. A message with a way goes on along it when it is due.
    pub async fn receive(&self, messages: &[(Option<&DelayWay>, &Message)]) -> Vec<ReceiveOutcome> {
        let (now, limits) = (self.now(), self.limits());
        let read: Vec<Result<ValidTask, Problem>> = messages
            .iter()
            .map(|(way, message)| match way {
                Some(way) => message.delayed(way, now, &limits),
                None => message.submitted(now, &limits),
            })
            .collect();
        let (read, _room) = self.admit_all(read, AppliedLimits::All).await;
        let mut taken = Vec::with_capacity(read.len());
        let (mut places, mut tasks) = (Vec::new(), Vec::new());
        for (place, task) in read.into_iter().enumerate() {
            match task {
                Ok(mut task) => {
                    places.push((place, self.traced(&mut task)));
                    tasks.push(task);
                    taken.push(ReceiveOutcome::Durable);
                }
                Err(problem) => taken.push(ReceiveOutcome::Refused(problem)),
            }
        }
        let stored = self.parts().submitter.submit(tasks, SOURCE).await;
        for ((place, traced), stored) in places.into_iter().zip(stored) {
            self.trace(traced, Way::Amqp, &stored);
            taken[place] = match stored {
                Ok(Answer::Stored(_)) => ReceiveOutcome::Durable,
                Ok(Answer::Keyed(put)) => {
                    refusal::put(put).map_or_else(ReceiveOutcome::Refused, |_| ReceiveOutcome::Durable)
                }
                Err(error @ Unstored::Refused(_)) => ReceiveOutcome::Refused(error.into()),
                Err(error) => ReceiveOutcome::Again(error.to_string()),
            };
        }
        taken
    }
}
