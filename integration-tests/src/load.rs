//! A steady stream of submissions.

use std::{ops::Range, time::Duration};

use rand::RngExt;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::{
    client::{Client, Failure},
    clock::now_ms,
    ledger::{Ledger, Number},
};

const TICK: Duration = Duration::from_millis(50);

/// Tasks for one queue at an even rate, each due some time ahead.
#[derive(Clone, Debug)]
pub struct Load {
    pub queue: String,
    pub per_second: u32,
    /// How far ahead they are due, in milliseconds, evenly spread.
    pub due_in_ms: Range<i64>,
    /// One task a request instead of one batch a tick.
    pub singly: bool,
    /// Writes further fields of a task.
    more: fn(Number, &mut Value),
}

impl Load {
    pub fn new(queue: &str, per_second: u32) -> Self {
        Self { queue: queue.to_owned(), per_second, due_in_ms: 100..3_000, singly: false, more: |_, _| {} }
    }

    pub fn due_in_ms(mut self, range: Range<i64>) -> Self {
        self.due_in_ms = range;
        self
    }

    pub fn singly(mut self) -> Self {
        self.singly = true;
        self
    }

    /// Lets `more` write further fields of each task.
    pub fn with(mut self, more: fn(Number, &mut Value)) -> Self {
        self.more = more;
        self
    }

    /// Submits for `time`, to one client after another, and skips unreachable ones. Every outcome goes into the
    /// ledger; no task is sent twice.
    pub async fn run(&self, clients: &[Client], ledger: &Ledger, time: Duration) -> Vec<Number> {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut numbers = Vec::new();
        let mut turn = 0;
        while began.elapsed() < time {
            ticks.tick().await;
            let wanted = (began.elapsed().min(time).as_secs_f64() * f64::from(self.per_second)) as usize;
            let missing = wanted.saturating_sub(numbers.len());
            if missing > 0 {
                numbers.extend(self.submit(clients, &mut turn, ledger, missing).await);
            }
        }
        numbers
    }

    async fn submit(&self, clients: &[Client], turn: &mut usize, ledger: &Ledger, count: usize) -> Vec<Number> {
        let tasks: Vec<(Number, Value)> = (0..count).map(|_| self.task(ledger)).collect();
        let numbers = tasks.iter().map(|(number, _)| *number).collect();
        if self.singly {
            for task in tasks {
                self.send(clients, turn, ledger, &[task]).await;
            }
        } else {
            self.send(clients, turn, ledger, &tasks).await;
        }
        numbers
    }

    fn task(&self, ledger: &Ledger) -> (Number, Value) {
        let due_ms = now_ms() + rand::rng().random_range(self.due_in_ms.clone());
        let number = ledger.submitting(&self.queue, due_ms);
        let mut task = json!({ "queue": self.queue, "due_at": due_ms, "payload": { "n": number } });
        (self.more)(number, &mut task);
        (number, task)
    }

    async fn send(&self, clients: &[Client], turn: &mut usize, ledger: &Ledger, tasks: &[(Number, Value)]) {
        for _ in 0..clients.len() {
            let client = &clients[*turn % clients.len()];
            *turn += 1;
            if self.send_to(client, ledger, tasks).await {
                return;
            }
        }
        for (number, _) in tasks {
            ledger.refused(*number);
        }
    }

    /// Whether a request was sent.
    async fn send_to(&self, client: &Client, ledger: &Ledger, tasks: &[(Number, Value)]) -> bool {
        let bodies: Vec<Value> = tasks.iter().map(|(_, body)| body.clone()).collect();
        let answers = match &bodies[..] {
            [body] if self.singly => client.submit(body).await.map(|task| vec![Ok(task.id)]),
            bodies => client.batch(bodies).await,
        };
        match answers {
            Ok(answers) => {
                for ((number, _), answer) in tasks.iter().zip(answers) {
                    match answer {
                        Ok(id) => ledger.accepted(*number, &id),
                        Err(problem) if problem["status"].as_u64() >= Some(500) => ledger.unknown(*number),
                        Err(_) => ledger.refused(*number),
                    }
                }
            }
            Err(Failure::NotSent(_)) => return false,
            Err(Failure::Unknown(_)) => tasks.iter().for_each(|(number, _)| ledger.unknown(*number)),
            Err(Failure::Refused { .. }) => tasks.iter().for_each(|(number, _)| ledger.refused(*number)),
        }
        true
    }
}
