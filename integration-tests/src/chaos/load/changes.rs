//! Tasks that are cancelled or moved at the last moment, one by one and in bulk.

use reqwest::Method;
use serde_json::{Value, json};

use super::{TASKS, Turn};
use crate::{
    chaos::queues::{BULK, CANCELLED, FAILS_FIRST, FAILS_FIRST_WAIT_MS},
    client::Failure,
    ledger::Number,
};

/// Each so many turns of the bulk stream are a bulk cancel instead of a submission.
const CANCELS_EVERY: u64 = 8;
const CANCELS_AT_MOST: u64 = 20;

pub(super) async fn cancelled(mut turn: Turn) {
    let due_ms = turn.due_in(300, 1_500);
    cancel_around(turn, CANCELLED, due_ms, due_ms).await;
}

/// The cancel comes at about the time of the second attempt.
pub(super) async fn cancelled_between(mut turn: Turn) {
    let due_ms = turn.due_in(300, 1_500);
    cancel_around(turn, FAILS_FIRST, due_ms, due_ms + FAILS_FIRST_WAIT_MS).await;
}

async fn cancel_around(mut turn: Turn, queue: &str, due_ms: i64, around_ms: i64) {
    let (number, task) = turn.task(queue, due_ms, &Value::Null);
    let Some(id) = turn.submit(number, &task).await else { return };
    turn.until(around_ms).await;
    let path = format!("{TASKS}/{id}");
    let answer: Result<Value, Failure> = turn.call(Method::DELETE, &path, &Value::Null).await;
    match answer {
        Ok(answer) => {
            turn.stage.ledger().cancelled(number, answer["outcome"].as_str().unwrap_or_default());
        }
        Err(Failure::Unknown(_)) => turn.stage.ledger().cancel_unknown(number),
        Err(failure) => note_missing(&turn, number, &failure),
    }
}

pub(super) async fn moved(mut turn: Turn) {
    let due_ms = turn.due_in(300, 1_500);
    let (number, task) = turn.task(CANCELLED, due_ms, &Value::Null);
    let Some(id) = turn.submit(number, &task).await else { return };
    turn.until(due_ms).await;
    let new_ms = turn.due_in(0, 2_500);
    let change = json!({ "due_at": new_ms });
    let path = format!("{TASKS}/{id}");
    let answer: Result<Value, Failure> = turn.call(Method::PATCH, &path, &change).await;
    match answer {
        Ok(_) => turn.stage.ledger().moved(number, new_ms),
        Err(Failure::Unknown(_)) => turn.stage.ledger().may_move(number, new_ms),
        Err(failure) => note_missing(&turn, number, &failure),
    }
}

/// A refusal is the answer to a task in flight; but an accepted task is known, also when it has finished.
fn note_missing(turn: &Turn, number: Number, failure: &Failure) {
    if failure.status() == Some(404) {
        turn.stage.ledger().missing(number);
    }
}

/// Tasks of one queue, some of which a bulk cancel finds. Their rows say in the end which.
pub(super) async fn bulk(mut turn: Turn) {
    if turn.count % CANCELS_EVERY == CANCELS_EVERY - 1 {
        let request = json!({ "action": "cancel", "filter": { "queue": BULK }, "limit": CANCELS_AT_MOST });
        // Its outcome does not matter: the rows are judged.
        turn.call::<Value>(Method::POST, "/v1/tasks/bulk", &request).await.ok();
        return;
    }
    for _ in 0..5 {
        let due_ms = turn.due_in(100, 4_000);
        let (number, task) = turn.task(BULK, due_ms, &Value::Null);
        turn.stage.ledger().cancel_unknown(number);
        turn.submit(number, &task).await;
    }
}
