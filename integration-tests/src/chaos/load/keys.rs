//! Tasks with keys: sent twice, replaced, superseded, and depending on one another.

use std::time::Duration;

use rand::seq::SliceRandom;
use reqwest::Method;
use serde_json::{Value, json};

use super::{TASKS, Turn, add};
use crate::{
    chaos::queues::{KEYED, STEPS},
    client::{Failure, Task},
    ledger::Number,
};

/// A step of an order is sent again until it is accepted: the others wait for it.
const TRIES: usize = 300;
const TRY_EVERY: Duration = Duration::from_millis(500);
const VERSIONS: i64 = 3;

/// One of three ways to use a key.
pub(super) async fn play(turn: Turn) {
    match turn.count % 3 {
        0 => sent_twice(turn).await,
        1 => replaced(turn).await,
        _ => superseded(turn).await,
    }
}

/// One submission goes to two nodes at the same moment: it is one task.
async fn sent_twice(mut turn: Turn) {
    let due_ms = turn.due_in(100, 2_000);
    let (number, task) = turn.task(KEYED, due_ms, &json!({ "key": format!("twice {}", turn.count) }));
    let clients = turn.stage.sandbox.clients();
    let first = turn.count as usize % 3;
    let (one, other) = tokio::join!(clients[first].submit(&task), clients[(first + 1) % 3].submit(&task));
    let ledger = turn.stage.ledger();
    let is_unknown = [&one, &other].iter().any(|answer| matches!(answer, Err(Failure::Unknown(_))));
    if is_unknown {
        ledger.unknown(number)
    } else {
        ledger.refused(number)
    };
    for task in [one, other].into_iter().flatten() {
        ledger.accepted(number, &task.id);
    }
}

/// A later submission replaces the first one in place, with a later due time.
async fn replaced(mut turn: Turn) {
    let due_ms = turn.due_in(500, 1_500);
    let (number, mut task) = turn.task(KEYED, due_ms, &json!({ "key": format!("replaced {}", turn.count) }));
    let Some(id) = turn.submit(number, &task).await else { return };
    turn.until(due_ms).await;
    let new_ms = due_ms + 1_000;
    add(&mut task, &json!({ "due_at": new_ms, "on_duplicate": "replace" }));
    if let Ok(answer) = turn.call::<Task>(Method::POST, TASKS, &task).await {
        turn.stage.ledger().accepted(number, &answer.id);
        if answer.id == id {
            turn.stage.ledger().moved(number, new_ms);
        }
    }
}

/// Each higher version supersedes the one before, unless that is in flight. Their rows say in the end which.
async fn superseded(mut turn: Turn) {
    let mut before: Option<Number> = None;
    for version in 1..=VERSIONS {
        let due_ms = turn.due_in(400, 1_200);
        let more = json!({ "key": format!("version {}", turn.count), "version": version, "on_duplicate": "version" });
        let (number, task) = turn.task(KEYED, due_ms, &more);
        if let Some(before) = before.replace(number) {
            turn.stage.ledger().cancel_unknown(before);
        }
        turn.submit(number, &task).await;
        turn.pause(0, 900).await;
    }
}

/// An order: the third step depends on the first two, the fourth on the third. They come in any order.
pub(super) async fn order(mut turn: Turn) {
    let needs: [&[usize]; 4] = [&[], &[], &[0, 1], &[2]];
    let partition = format!("order {}", turn.count);
    let mut steps = Vec::new();
    for (queue, needs) in STEPS.iter().zip(needs) {
        let depends_on: Vec<Value> = needs.iter().map(|step| json!({ "queue": STEPS[*step], "key": "it" })).collect();
        let due_ms = turn.due_in(0, 1_500);
        let more = json!({ "key": "it", "partition_key": partition, "depends_on": depends_on });
        steps.push(turn.task(queue, due_ms, &more));
    }
    let numbers: Vec<Number> = steps.iter().map(|(number, _)| *number).collect();
    for (number, needs) in numbers.iter().zip(needs) {
        let others: Vec<Number> = needs.iter().map(|step| numbers[*step]).collect();
        turn.stage.ledger().expect_after(*number, &others);
    }
    steps.shuffle(&mut turn.random);
    for (number, task) in steps {
        for _ in 0..TRIES {
            if turn.submit(number, &task).await.is_some() {
                break;
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }
}
