//! Submissions that are left alone: in batches, with retries, in order, within limits.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Turn, add};
use crate::{
    chaos::queues::{FRAGILE, LIMITED, NARROW, ORDERED, ORDERED_KEYS, RATED, lane},
    client::Failure,
    clock::now_ms,
};

/// Tasks of one batch.
const BATCH: u32 = 5;
/// A task counts for the order when it was accepted so long before it was due: what commits later may come later.
const ACCEPTED_AHEAD_MS: i64 = 250;
const REJECTED_AT_MOST: u32 = 5;

/// A batch for the plain queue.
pub(super) async fn batch(mut turn: Turn) {
    let tasks: Vec<_> = (0..BATCH)
        .map(|_| {
            let due_ms = turn.due_in(-20, 4_000);
            turn.task("plain", due_ms, &Value::Null)
        })
        .collect();
    let bodies: Vec<&Value> = tasks.iter().map(|(_, body)| body).collect();
    let batch = json!({ "tasks": bodies });
    let answer: Result<Value, Failure> = turn.call(Method::POST, "/v1/tasks/batch", &batch).await;
    let ledger = turn.stage.ledger();
    match answer {
        Ok(answers) => {
            for (place, (number, _)) in tasks.iter().enumerate() {
                let answer = &answers["results"][place];
                match answer["id"].as_str() {
                    Some(id) => ledger.accepted(*number, id),
                    None if answer["error"]["status"].as_u64() >= Some(500) => ledger.unknown(*number),
                    None => ledger.refused(*number),
                }
            }
        }
        Err(Failure::Unknown(_)) => tasks.iter().for_each(|(number, _)| ledger.unknown(*number)),
        Err(_) => tasks.iter().for_each(|(number, _)| ledger.refused(*number)),
    }
}

async fn one(mut turn: Turn, queue: &str, most_ms: i64, more: Value) {
    let due_ms = turn.due_in(-20, most_ms);
    let (number, task) = turn.task(queue, due_ms, &more);
    if queue == "reject" {
        turn.stage.ledger().expect_attempts(number, REJECTED_AT_MOST);
    }
    turn.submit(number, &task).await;
}

pub(super) async fn rejected(turn: Turn) {
    one(turn, "reject", 3_000, Value::Null).await;
}

pub(super) async fn reported(mut turn: Turn) {
    let priority = turn.count % 5 + 1;
    let most_ms = if turn.chance(20) { 20_000 } else { 2_000 };
    one(turn, "result", most_ms, json!({ "priority": priority })).await;
}

pub(super) async fn limited(turn: Turn) {
    one(turn, LIMITED, 2_000, Value::Null).await;
}

pub(super) async fn rated(turn: Turn) {
    one(turn, RATED, 2_000, Value::Null).await;
}

pub(super) async fn fragile(turn: Turn) {
    one(turn, FRAGILE, 2_000, Value::Null).await;
}

/// More at one moment than the queue's RabbitMQ queue has room for.
pub(super) async fn narrow(mut turn: Turn) {
    let due_ms = now_ms() + 500;
    for _ in 0..BATCH * 4 {
        let (number, task) = turn.task(NARROW, due_ms, &Value::Null);
        turn.submit(number, &task).await;
    }
}

pub(super) async fn ordered(mut turn: Turn) {
    let due_ms = turn.due_in(700, 2_500);
    let (number, mut task) = turn.task(ORDERED, due_ms, &Value::Null);
    let key = format!("k{}", number % ORDERED_KEYS);
    add(&mut task, &json!({ "partition_key": key }));
    let accepted = turn.submit(number, &task).await;
    if accepted.is_some() && now_ms() + ACCEPTED_AHEAD_MS < due_ms {
        turn.stage.ledger().expect_order(number, &lane(&key), due_ms.unsigned_abs());
    }
}
