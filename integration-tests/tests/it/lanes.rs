//! Queues with an order, a limit or a rate, and the order of dispatch among waiting tasks.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    clock::now_ms,
    consumer::{Answer, Step},
    ledger::{Delivery, Number},
    sandbox::Sandbox,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{id_of, scenario, until};

/// Submits one batch to the first node; `more` gives the other fields of each task.
async fn submit_all(
    sandbox: &Sandbox,
    queue: &str,
    count: usize,
    more: impl Fn(Number, i64) -> Value,
) -> Result<Vec<Number>> {
    // Due ahead of now: a past due time becomes the time of the write, which may come after a successor's.
    submit_to(sandbox, 0, queue, count, 1_500, more).await
}

/// Submits one batch to a node, due from `ahead_ms` from now on.
async fn submit_to(
    sandbox: &Sandbox,
    node: usize,
    queue: &str,
    count: usize,
    ahead_ms: i64,
    more: impl Fn(Number, i64) -> Value,
) -> Result<Vec<Number>> {
    let base_ms = now_ms() + ahead_ms;
    let mut numbers = Vec::new();
    let mut tasks = Vec::new();
    for turn in 0..count {
        let due_ms = base_ms + i64::try_from(turn)?;
        let number = sandbox.ledger.submitting(queue, due_ms);
        let mut task = json!({ "queue": queue, "due_at": due_ms, "payload": { "n": number } });
        for (name, value) in more(number, due_ms).as_object().into_iter().flatten() {
            task[name] = value.clone();
        }
        numbers.push(number);
        tasks.push(task);
    }
    for (number, answer) in numbers.iter().zip(sandbox.client(node).batch(&tasks).await?) {
        let id = answer.map_err(|problem| anyhow::anyhow!("refused: {problem}"))?;
        sandbox.ledger.accepted(*number, &id);
    }
    Ok(numbers)
}

async fn turn(sandbox: &Sandbox, queue: &str, what: &str) -> Result<()> {
    let path = format!("/v1/queues/{queue}/{what}");
    sandbox.live()?.call::<Value>(Method::POST, &path, None).await?;
    Ok(())
}

/// Waits until `count` tasks of the queue are `ready`.
pub(crate) async fn until_ready(sandbox: &Sandbox, queue: &str, count: i64) -> Result<()> {
    until("they wait for room", Duration::from_secs(60), || async {
        let view = sandbox.client(0).queue(queue).await.ok()?;
        (view["counts"]["ready"].as_i64()? == count).then_some(())
    })
    .await
}

/// The deliveries of these tasks, in order.
fn arrived(sandbox: &Sandbox, numbers: &[Number]) -> Vec<Delivery> {
    let mine: HashSet<Number> = numbers.iter().copied().collect();
    let is_mine = |delivery: &Delivery| delivery.number.is_some_and(|number| mine.contains(&number));
    sandbox.ledger.arrivals().into_iter().filter(is_mine).collect()
}

/// These tasks in the order of their first messages.
fn by_arrival(sandbox: &Sandbox, numbers: &[Number]) -> Vec<Number> {
    let mut seen = HashSet::new();
    arrived(sandbox, numbers).iter().filter_map(|one| one.number).filter(|number| seen.insert(*number)).collect()
}

/// The node that owns the shard of a task.
async fn owner_of(sandbox: &Sandbox, task: &str) -> Result<usize> {
    let shard = u64::from_str_radix(&task[task.len() - 4..], 16)?;
    let report = sandbox.live()?.cluster().await?;
    let row = report["shards"].as_array().into_iter().flatten().find(|row| row["shard"].as_u64() == Some(shard));
    let owner = row.context("the shard is in the report")?["owner"].to_string();
    let named = |number: &usize| owner.contains(sandbox.node(*number).name());
    (0..sandbox.nodes().len()).find(named).with_context(|| format!("{owner} is no node"))
}

const KEYS: u64 = 4;

/// Works for so long. Every third task fails at its first attempt.
fn fails_each_third(pause: Duration) -> impl Fn(&Delivery) -> Answer + Send + Sync + 'static {
    move |delivery| {
        let fails = delivery.attempt == 1 && delivery.number.is_some_and(|number| number.is_multiple_of(3));
        let status = if fails { "failed" } else { "succeeded" };
        Answer(vec![Step::Wait(pause), Step::Report(json!({ "status": status })), Step::Ack])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_queue_keeps_its_order_across_retries_and_the_death_of_an_owner() {
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = json!({
            "settle": "result", "ordered": true, "max_attempts": 5, "timeout_ms": 120_000,
            "retry": { "kind": "fixed", "delay_ms": 100 },
        });
        sandbox.consume("steps", &policy, fails_each_third(Duration::from_millis(40))).await?;
        let key = |number: Number| format!("k{}", number % KEYS);
        let more = |number, _| json!({ "partition_key": key(number) });
        let numbers = submit_to(sandbox, 0, "steps", 80, 10_000, more).await?;
        for (place, number) in numbers.iter().enumerate() {
            sandbox.ledger.expect_order(*number, &key(*number), u64::try_from(place)?);
        }
        sandbox.ledger.wait_delivered(numbers[12], 1, Duration::from_secs(60)).await?;
        let victim = owner_of(sandbox, &id_of(&sandbox.ledger, numbers[13])?).await?;
        sandbox.kill(victim);
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_policy_is_in_force_for_what_other_nodes_accept_right_after_its_answer() {
    const ROUNDS: usize = 4;
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = |ordered: bool| {
            json!({
                "settle": "result", "ordered": ordered, "max_attempts": 5, "timeout_ms": 120_000,
                "retry": { "kind": "fixed", "delay_ms": 100 },
            })
        };
        for round in 0..ROUNDS {
            let queue = format!("turned-{round}");
            // Every node knows the queue, as one without an order.
            sandbox.consume(&queue, &policy(false), fails_each_third(Duration::from_millis(20))).await?;
            ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "the first task is outstanding");
            sandbox.client(0).put_queue(&queue, &policy(true)).await?;
            let key = |number: Number| format!("k{}", number % KEYS);
            let more = |number, _| json!({ "partition_key": key(number) });
            let asked_ms = now_ms();
            let numbers = submit_to(sandbox, 1 + round % 2, &queue, 60, 100, more).await?;
            // Past due times become the time of the write, which has no order.
            let is_ordered = now_ms() < asked_ms + 100;
            ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
            // Without one, a key's tasks still come one after the other, each with all of its attempts.
            let in_turn = if is_ordered { numbers } else { by_arrival(sandbox, &numbers) };
            for (place, number) in in_turn.iter().enumerate() {
                sandbox.ledger.expect_order(*number, &format!("{queue} {}", key(*number)), u64::try_from(place)?);
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_never_exceeded_and_always_used_across_a_takeover() {
    const LIMIT: usize = 3;
    const WORK: Duration = Duration::from_millis(150);
    scenario(Sandbox::builder(), async |sandbox| {
        let script =
            |_: &Delivery| Answer(vec![Step::Wait(WORK), Step::Report(json!({ "status": "succeeded" })), Step::Ack]);
        let policy = json!({ "settle": "result", "placement": "single", "max_running": LIMIT, "timeout_ms": 120_000 });
        sandbox.consume("few", &policy, script).await?;
        let numbers = submit_all(sandbox, "few", 90, |_, _| Value::Null).await?;
        sandbox.ledger.wait_delivered(numbers[20], 1, Duration::from_secs(60)).await?;
        let victim = owner_of(sandbox, &id_of(&sandbox.ledger, numbers[0])?).await?;
        sandbox.kill(victim);
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        let high = high_water(&arrived(sandbox, &numbers), WORK);
        ensure!(high == LIMIT, "{high} at a time where {LIMIT} are allowed");
        Ok(())
    })
    .await;
}

/// The most tasks that were worked on at one moment. Copies of a task count once.
fn high_water(arrived: &[Delivery], work: Duration) -> usize {
    let work_us = i64::try_from(work.as_micros()).expect("it is short");
    let open_at = |at_us: i64| {
        let open = arrived.iter().filter(|one| one.at_us <= at_us && at_us < one.at_us + work_us);
        open.map(|one| one.number).collect::<BTreeSet<_>>().len()
    };
    arrived.iter().map(|one| open_at(one.at_us)).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_and_used() {
    const RATE: usize = 40;
    const SECONDS: usize = 8;
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = json!({ "settle": "confirm", "placement": "single", "rate_per_second": RATE });
        sandbox.consume_and_ack("slow", &policy).await?;
        let begun_us = now_ms() * 1_000;
        let numbers = submit_all(sandbox, "slow", RATE * SECONDS, |_, _| Value::Null).await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        let at_us: Vec<i64> = arrived(sandbox, &numbers).iter().map(|delivery| delivery.at_us).collect();
        // Each task starts no sooner than the rate allows, after the burst that was saved up. It may arrive later.
        for (before, at_us) in at_us.iter().enumerate() {
            let earliest_us = begun_us + (before.saturating_sub(RATE / 20) * 1_000_000 / RATE) as i64;
            ensure!(*at_us >= earliest_us, "task {before} came {} us before the rate allows it", earliest_us - at_us);
        }
        // A machine that stands still for some seconds spoils one half of them at the most.
        let half = RATE * SECONDS / 2;
        let best_us = at_us.windows(half).map(|part| part[half - 1] - part[0]).min().context("they have arrived")?;
        let best_s = best_us as f64 / 1e6;
        // A busy consumer may take twice as long for the better half. A node that took only its part, a third, fails.
        ensure!(best_s < 2.0 * SECONDS as f64 / 2.0, "{half} tasks at {RATE} a second took {best_s} s or longer");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_of_five_go_to_the_highest_priority_and_the_lowest_does_not_starve() {
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = json!({ "settle": "confirm", "placement": "single", "rate_per_second": 200 });
        sandbox.consume_and_ack("mixed", &policy).await?;
        turn(sandbox, "mixed", "pause").await?;
        let priority = |number: Number| if number.is_multiple_of(2) { 1 } else { 5 };
        let numbers = submit_all(sandbox, "mixed", 400, |number, _| json!({ "priority": priority(number) })).await?;
        until_ready(sandbox, "mixed", 400).await?;
        turn(sandbox, "mixed", "resume").await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        let first: Vec<Number> = arrived(sandbox, &numbers).iter().filter_map(|one| one.number).take(200).collect();
        let high = first.iter().filter(|number| priority(**number) == 1).count();
        ensure!((135..=185).contains(&high), "{high} of the first 200 are of the highest priority");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_many_tasks_does_not_hold_up_one_with_few() {
    scenario(Sandbox::builder(), async |sandbox| {
        let policy = json!({ "settle": "confirm", "placement": "single", "rate_per_second": 50 });
        sandbox.consume_and_ack("shared", &policy).await?;
        turn(sandbox, "shared", "pause").await?;
        let big = submit_all(sandbox, "shared", 200, |_, _| json!({ "partition_key": "big" })).await?;
        let small = submit_all(sandbox, "shared", 10, |_, _| json!({ "partition_key": "small" })).await?;
        until_ready(sandbox, "shared", 210).await?;
        turn(sandbox, "shared", "resume").await?;
        ensure!(sandbox.ledger.wait_all(Duration::from_secs(60)).await, "tasks are outstanding");
        let all: Vec<Number> =
            arrived(sandbox, &[big, small.clone()].concat()).iter().filter_map(|one| one.number).collect();
        let last = all.iter().rposition(|number| small.contains(number)).context("they have arrived")?;
        ensure!(last < 30, "the last of ten small ones came after {last} others");
        Ok(())
    })
    .await;
}
