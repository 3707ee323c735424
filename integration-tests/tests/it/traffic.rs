//! Tasks of several kinds at the same time: plain, with keys, in order, and with results and retries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use integration_tests::{
    client::{Client, Failure},
    clock::now_ms,
    consumer::{Answer, Step},
    ledger::{Delivery, Ledger},
    load::Load,
    sandbox::Sandbox,
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::{confirm, lasts};

/// Tasks of one batch of the ordered queue, and its partition keys, which take turns.
const BATCH: u64 = 2;
const KEYS: u64 = 4;

/// Makes the queues of the traffic and consumes from them.
pub(crate) async fn consume(sandbox: &Sandbox) -> Result<()> {
    sandbox.consume_and_ack("mail", &confirm()).await?;
    sandbox.consume_and_ack("orders", &confirm()).await?;
    let in_order = json!({ "settle": "result", "ordered": true });
    sandbox.consume("steps", &in_order, |_| Answer::report("succeeded")).await?;
    let retried = json!({ "settle": "result", "max_attempts": 5, "retry": { "kind": "fixed", "delay_ms": 200 } });
    sandbox.consume("work", &retried, report).await
}

/// Every fifth task fails at its first attempt.
fn report(delivery: &Delivery) -> Answer {
    let fails = delivery.attempt == 1 && delivery.number.is_some_and(|number| number % 5 == 0);
    Answer(vec![Step::Report(json!({ "status": if fails { "failed" } else { "succeeded" } })), Step::Ack])
}

/// Submissions of every kind, until they are ended.
pub(crate) struct Traffic {
    over: Arc<AtomicBool>,
    streams: Vec<JoinHandle<()>>,
}

impl Traffic {
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut streams = Vec::new();
        for load in [
            Load::new("mail", 60),
            Load::new("orders", 20).with(|number, task| task["key"] = json!(format!("order {number}"))),
            Load::new("work", 20).singly(),
        ] {
            let (over, clients, ledger) = (Arc::clone(&over), sandbox.clients(), Arc::clone(&sandbox.ledger));
            streams.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    load.run(&clients, &ledger, Duration::from_secs(1)).await;
                }
            }));
        }
        let (is_over, clients, ledger) = (Arc::clone(&over), sandbox.clients(), Arc::clone(&sandbox.ledger));
        streams.push(tokio::spawn(async move {
            let mut turn = 0;
            while !is_over.load(Ordering::Relaxed) {
                submit_in_order(&clients, &ledger, turn).await;
                turn += 1;
                // A task of a key starts after the one before has its result, so there is room for few.
                lasts(Duration::from_millis(400)).await;
            }
        }));
        Self { over, streams }
    }

    pub(crate) async fn end(self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        for stream in self.streams {
            stream.await?;
        }
        Ok(())
    }
}

/// Submits some tasks of one partition key, each due after the one before. One node after the other is asked, until
/// one takes the request.
async fn submit_in_order(clients: &[Client], ledger: &Ledger, turn: u64) {
    let base_ms = now_ms() + 1_500;
    let key = format!("p{}", turn % KEYS);
    let (mut numbers, mut tasks) = (Vec::new(), Vec::new());
    for step in 0..BATCH {
        let due_ms = base_ms + step as i64;
        let number = ledger.submitting("steps", due_ms);
        ledger.expect_order(number, &key, turn * BATCH + step);
        numbers.push(number);
        tasks.push(json!({ "queue": "steps", "due_at": due_ms, "partition_key": key, "payload": { "n": number } }));
    }
    for client in clients {
        match client.batch(&tasks).await {
            Ok(answers) => {
                for (number, answer) in numbers.iter().zip(answers) {
                    match answer {
                        Ok(id) => ledger.accepted(*number, &id),
                        Err(_) => ledger.unknown(*number),
                    }
                }
                return;
            }
            Err(Failure::NotSent(_)) => {}
            Err(_) => return numbers.iter().for_each(|number| ledger.unknown(*number)),
        }
    }
    numbers.iter().for_each(|number| ledger.refused(*number));
}
