//! A RabbitMQ cluster of three that loses one broker at a time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration_tests::{clock::now_us, consumer::Consumer, load::Load, sandbox::Sandbox};
use serde_json::Value;

use crate::{confirm, flows, scenario, stream::Stream, until};

const BACK_WITHIN: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread")]
async fn nodes_go_on_when_a_cluster_loses_the_leader_of_a_queue_or_a_follower() {
    scenario(Sandbox::builder().brokers(3), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        // A consumer at each broker, so that one is always there.
        let others = sandbox.brokers()[1..].iter().map(|broker| broker.url(sandbox.vhost()));
        let consumers: Vec<_> = others.map(|url| Consumer::start(&url, "mail", &sandbox.ledger)).collect();
        for consumer in &consumers {
            consumer.attached(BACK_WITHIN).await?;
        }
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 60));
        let mut lost_before = None;
        for role in ["the leader", "a follower"] {
            let leader = members(sandbox, 3).await?;
            // Each node prefers the broker of its own number, and that of the lost broker has left it.
            let is_follower = |broker: &usize| *broker != leader && Some(*broker) != lost_before;
            let victim = if role == "the leader" { leader } else { (0..3).find(is_follower).context("of three")? };
            lost_before = Some(victim);
            flows(sandbox, 200).await?;
            let reconnects = sandbox.client(victim).metric("duetime_broker_reconnects_total").await?;
            let fault = sandbox.ledger.fault(&format!("{role} of the queue killed"));
            let lost_us = now_us();
            sandbox.brokers()[victim].kill();
            let fires_us = fires_again(sandbox, lost_us).await?;
            for node in sandbox.nodes() {
                node.wait_ready(BACK_WITHIN).await?;
            }
            until("the node has gone to another broker", BACK_WITHIN, || async {
                let client = sandbox.client(victim);
                let now = client.metric("duetime_broker_reconnects_total").await.ok()?;
                (now > reconnects && client.metric("duetime_broker_up").await.ok()?? == 1.0).then_some(())
            })
            .await?;
            flows(sandbox, 200).await?;
            sandbox.brokers()[victim].restart().await?;
            members(sandbox, 3).await?;
            sandbox.ledger.heal(fault);
            println!(
                "{role} killed: the next task due arrived {:.1} s later; due meanwhile: {}",
                (fires_us - lost_us) as f64 / 1e6,
                sandbox.ledger.lateness(lost_us, fires_us)
            );
        }
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

/// Waits until the queue has this many members online, and returns the place of the broker that leads it.
async fn members(sandbox: &Sandbox, count: usize) -> Result<usize> {
    let leader = until("the members of the queue", BACK_WITHIN, || async {
        let words = ["list_queues", "-p", sandbox.vhost(), "--formatter", "json", "name", "leader", "online"];
        let listed = sandbox.brokers().iter().find(|broker| broker.is_running())?.ctl(&words).await.ok()?;
        let queues: Value = serde_json::from_str(&listed).ok()?;
        let queue = queues.as_array()?.iter().find(|queue| queue["name"] == "mail")?.clone();
        let online = queue["online"].as_array()?.len();
        (online == count).then(|| queue["leader"].as_str().map(str::to_owned)).flatten()
    })
    .await?;
    let place = sandbox.brokers().iter().position(|broker| broker.node_name() == leader);
    place.with_context(|| format!("{leader} is none of the brokers"))
}

/// The time of the first arrival of a task that was due after the loss.
async fn fires_again(sandbox: &Sandbox, lost_us: i64) -> Result<i64> {
    until("tasks due after the loss arrive", BACK_WITHIN, || async {
        let arrivals = sandbox.ledger.arrivals();
        let due_after = |due_ms: Option<i64>| due_ms.is_some_and(|due_ms| due_ms * 1_000 > lost_us);
        arrivals.iter().filter(|delivery| due_after(delivery.due_ms)).map(|delivery| delivery.at_us).min()
    })
    .await
}
