//! The load: independent streams, one for each feature, each at its share of the rate.
//!
//! A stream starts its turns on time, whether or not earlier ones have been answered, so faults do not slow it down.

mod amqp;
mod changes;
mod keys;
mod single;
mod sql;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rand::{RngExt, rngs::StdRng};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use super::stage::Stage;
use crate::{
    client::{Failure, Task},
    clock::now_ms,
    ledger::Number,
};

/// More open turns than this of one stream, and it skips a turn: requests to a frozen node take 10 s.
const OPEN_AT_MOST: usize = 300;

/// One kind of work.
struct Stream {
    name: &'static str,
    /// Its share of all turns, in thousandths. Some turns make several tasks.
    share: u32,
    play: fn(Turn) -> BoxFuture<'static, ()>,
}

const STREAMS: [Stream; 14] = [
    Stream { name: "plain", share: 60, play: |turn| Box::pin(single::batch(turn)) },
    Stream { name: "reject", share: 120, play: |turn| Box::pin(single::rejected(turn)) },
    Stream { name: "result", share: 120, play: |turn| Box::pin(single::reported(turn)) },
    Stream { name: "ordered", share: 80, play: |turn| Box::pin(single::ordered(turn)) },
    Stream { name: "limited", share: 60, play: |turn| Box::pin(single::limited(turn)) },
    Stream { name: "rated", share: 60, play: |turn| Box::pin(single::rated(turn)) },
    Stream { name: "fragile", share: 30, play: |turn| Box::pin(single::fragile(turn)) },
    Stream { name: "narrow", share: 10, play: |turn| Box::pin(single::narrow(turn)) },
    Stream { name: "cancel", share: 80, play: |turn| Box::pin(changes::cancelled(turn)) },
    Stream { name: "between", share: 30, play: |turn| Box::pin(changes::cancelled_between(turn)) },
    Stream { name: "move", share: 60, play: |turn| Box::pin(changes::moved(turn)) },
    Stream { name: "bulk", share: 20, play: |turn| Box::pin(changes::bulk(turn)) },
    Stream { name: "keys", share: 60, play: |turn| Box::pin(keys::play(turn)) },
    Stream { name: "orders", share: 15, play: |turn| Box::pin(keys::order(turn)) },
];

const TASKS: &str = "/v1/tasks";

/// The submissions a second in SQL, to each database, and over AMQP, each as thousandths of the rate.
const SQL_SHARE: u32 = 60;
const AMQP_SHARE: u32 = 80;

/// One turn of a stream.
pub(super) struct Turn {
    stage: Arc<Stage>,
    random: StdRng,
    count: u64,
}

/// The running streams.
pub(super) struct Load {
    stage: Arc<Stage>,
    streams: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start(stage: &Arc<Stage>, rate: u32) -> Self {
        let every = |share: u32| Duration::from_secs_f64(1_000.0 / f64::from(share * rate));
        let mut streams: Vec<_> =
            STREAMS.iter().map(|stream| tokio::spawn(run(Arc::clone(stage), stream, every(stream.share)))).collect();
        for database in 0..stage.sandbox.database_count() {
            streams.push(tokio::spawn(sql::run(Arc::clone(stage), database, every(SQL_SHARE))));
        }
        streams.push(tokio::spawn(amqp::run(Arc::clone(stage), every(AMQP_SHARE))));
        Self { stage: Arc::clone(stage), streams }
    }

    /// Ends the streams, and waits for their last turns.
    pub(super) async fn end(self) {
        self.stage.end();
        for stream in self.streams {
            if let Err(error) = stream.await {
                self.stage.ledger().wrong(&format!("a stream of the load ended: {error}"));
            }
        }
    }
}

async fn run(stage: Arc<Stage>, stream: &'static Stream, every: Duration) {
    let mut turns = JoinSet::new();
    let mut ticks = tokio::time::interval(every);
    for count in 0.. {
        ticks.tick().await;
        if stage.is_over() {
            break;
        }
        while turns.try_join_next().is_some() {}
        if turns.len() < OPEN_AT_MOST {
            let random = stage.random(stream.name, count);
            turns.spawn((stream.play)(Turn { stage: Arc::clone(&stage), random, count }));
        }
    }
    turns.join_all().await;
}

impl Turn {
    /// A due time between these, from now on.
    fn due_in(&mut self, least_ms: i64, most_ms: i64) -> i64 {
        now_ms() + self.random.random_range(least_ms..=most_ms)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    async fn pause(&mut self, least_ms: u64, most_ms: u64) {
        tokio::time::sleep(super::stage::between(&mut self.random, least_ms, most_ms)).await;
    }

    /// Waits until about this moment.
    async fn until(&mut self, around_ms: i64) {
        let at_ms = around_ms + self.random.random_range(-150..=50);
        tokio::time::sleep(Duration::from_millis(u64::try_from(at_ms - now_ms()).unwrap_or(0))).await;
    }

    /// Records a submission and makes its body; `more` has further fields.
    fn task(&self, queue: &str, due_ms: i64, more: &Value) -> (Number, Value) {
        let number = self.stage.ledger().submitting(queue, due_ms);
        let mut task = json!({ "queue": queue, "due_at": due_ms, "payload": { "n": number } });
        add(&mut task, more);
        (number, task)
    }

    /// Calls one node after another until a request has been sent.
    async fn call<T: DeserializeOwned>(&mut self, method: Method, path: &str, body: &Value) -> Result<T, Failure> {
        let first = self.random.random_range(0..super::NODES);
        let mut last = Failure::NotSent("there is no node".into());
        for place in 0..super::NODES {
            let client = self.stage.sandbox.client((first + place) % super::NODES);
            let body = (!body.is_null()).then_some(body);
            match client.call(method.clone(), path, body).await {
                Err(failure @ Failure::NotSent(_)) => last = failure,
                answer => return answer,
            }
        }
        Err(last)
    }

    /// Submits one task and records the answer; returns its id when it was accepted.
    async fn submit(&mut self, number: Number, task: &Value) -> Option<String> {
        let answer: Result<Task, Failure> = self.call(Method::POST, TASKS, task).await;
        let ledger = self.stage.ledger();
        match answer {
            Ok(task) => {
                ledger.accepted(number, &task.id);
                return Some(task.id);
            }
            Err(Failure::Unknown(_)) => ledger.unknown(number),
            Err(Failure::Refused { .. } | Failure::NotSent(_)) => ledger.refused(number),
        }
        None
    }
}

/// Adds the fields of `more`.
fn add(task: &mut Value, more: &Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        task[name] = value.clone();
    }
}
