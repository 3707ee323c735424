//! Takes in what is submitted over AMQP.

use common::wire::{DelayWay, Message, Problem, ValidTask};

use super::{Desk, limits::Limited, refusal};
use crate::{
    loops::submitter::{Answer, Unstored},
    traces::Way,
};

/// As the metrics call it.
const SOURCE: &str = "amqp";

/// What became of one message.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    /// It is a task, or another one answers for it, and durable.
    Durable,
    /// It cannot be a task.
    Refused(Problem),
    /// Not stored, or nobody knows: it has to come again.
    Again(String),
}

impl Desk {
    /// One answer a message, in their order. With a way, a message goes on along it when it is due.
    pub async fn receive(&self, messages: &[(Option<&DelayWay>, &Message)]) -> Vec<Taken> {
        let (now, limits) = (self.now(), self.limits());
        let read: Vec<Result<ValidTask, Problem>> = messages
            .iter()
            .map(|(way, message)| match way {
                Some(way) => message.delayed(way, now, &limits),
                None => message.submitted(now, &limits),
            })
            .collect();
        let (read, _room) = self.admitted(read, Limited::All).await;
        let mut taken = Vec::with_capacity(read.len());
        let (mut places, mut tasks) = (Vec::new(), Vec::new());
        for (place, task) in read.into_iter().enumerate() {
            match task {
                Ok(mut task) => {
                    places.push((place, self.traced(&mut task)));
                    tasks.push(task);
                    taken.push(Taken::Durable);
                }
                Err(problem) => taken.push(Taken::Refused(problem)),
            }
        }
        let stored = self.parts().submitter.submit(tasks, SOURCE).await;
        for ((place, traced), stored) in places.into_iter().zip(stored) {
            self.trace(traced, Way::Amqp, &stored);
            taken[place] = match stored {
                Ok(Answer::Stored(_)) => Taken::Durable,
                Ok(Answer::Keyed(put)) => refusal::put(put).map_or_else(Taken::Refused, |_| Taken::Durable),
                Err(error @ Unstored::Refused(_)) => Taken::Refused(refusal::unstored(&error)),
                Err(error) => Taken::Again(error.to_string()),
            };
        }
        taken
    }
}
