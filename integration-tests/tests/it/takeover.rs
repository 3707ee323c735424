//! A node whose process ends is replaced long before its lease ends; a node that only looks dead keeps its shards.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    clock::now_us,
    load::Load,
    sandbox::{Proxy, Sandbox},
};
use tokio::time::Instant;

use crate::{confirm, flows, lasts, load, moves::number, scenario, stream::Stream, submit_now, until};

/// A lease that outlasts every scenario, so that no shard moves because of it.
const ENDLESS: Duration = Duration::from_secs(600);

/// The limit of everything that must happen at all, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The stop that no node may pay for with its shards.
const STOP: Duration = Duration::from_secs(5);

/// The sum of a counter of all running nodes.
async fn sum(sandbox: &Sandbox, metric: &str) -> Result<f64> {
    let mut sum = 0.0;
    for node in sandbox.nodes().iter().filter(|node| node.is_running()) {
        sum += node.client().metric(metric).await?.unwrap_or(0.0);
    }
    Ok(sum)
}

async fn revocations(sandbox: &Sandbox) -> Result<f64> {
    sum(sandbox, "duetime_lease_revocations_total").await
}

/// Every node still owns as many shards as `before`, and no lease was revoked.
async fn nothing_moved(sandbox: &Sandbox, before: &[f64]) -> Result<()> {
    ensure!(sandbox.owned().await == before, "shards moved: {before:?} -> {:?}", sandbox.owned().await);
    ensure!(revocations(sandbox).await? == 0.0, "a lease was revoked");
    Ok(())
}

/// Submits a task through each running node and waits for all of them.
async fn fires(sandbox: &Sandbox) -> Result<()> {
    for node in sandbox.nodes().iter().filter(|node| node.is_running()) {
        let number = submit_now(&node.client(), &sandbox.ledger, "mail", &serde_json::Value::Null).await?;
        sandbox.ledger.wait_delivered(number, 1, SOON).await?;
    }
    Ok(())
}

/// By their nodes, the links through which the others reach the nodes' ports. With each, the number of starts of other
/// nodes that have to reach it: each start connects once.
type Links = BTreeMap<usize, (Proxy, usize)>;

/// Starts nodes that do not run, each behind a new link.
async fn start_behind_links(sandbox: &Sandbox, links: &mut Links, numbers: &[usize]) -> Result<()> {
    for (_, starts) in links.values_mut() {
        *starts += numbers.len();
    }
    for number in numbers {
        let node = sandbox.node(*number);
        let port = node.url().rsplit(':').next().and_then(|port| port.parse().ok()).context("a port")?;
        let link = Proxy::start(port).await?;
        node.set("DUETIME_HTTP__ADVERTISE", &format!("http://127.0.0.1:{}", link.port()));
        node.start()?;
        links.insert(*number, (link, sandbox.nodes().len() - 1));
    }
    for number in numbers {
        sandbox.node(*number).wait_ready(SOON).await?;
    }
    sandbox.settled().await
}

/// Starts all nodes again behind links. They stop first, so that no former start reaches a link.
async fn all_behind_links(sandbox: &Sandbox) -> Result<Links> {
    for node in sandbox.nodes() {
        node.stop(SOON).await?;
    }
    let (mut links, all) = (Links::new(), Vec::from_iter(0..sandbox.nodes().len()));
    start_behind_links(sandbox, &mut links, &all).await?;
    Ok(links)
}

/// Waits until each node has reached all others: only a port that a node has reached counts as closed afterwards.
async fn all_reached(links: &Links) -> Result<()> {
    until("each node has reached the others", SOON, || async {
        links.values().all(|(link, starts)| link.taken() >= *starts).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_fires_again_before_the_lease_of_its_former_start_ends() {
    scenario(Sandbox::builder().compared().nodes(1).lease_ttl(ENDLESS), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        load(sandbox, &[0], Load::new("mail", 100), Duration::from_secs(2)).await?;
        sandbox.kill(0);
        sandbox.node(0).wait_ended(SOON).await?;
        sandbox.restart(0).await?;
        sandbox.settled().await?;
        fires(sandbox).await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        ensure!(revocations(sandbox).await? == 1.0, "the lease of the former start");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_nodes_are_replaced_before_their_leases_end() {
    scenario(Sandbox::builder().compared().lease_ttl(ENDLESS), async |sandbox| {
        let mut links = all_behind_links(sandbox).await?;
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 100));
        let master = sandbox.master().await?;
        // An owner, the master, and then all but one node at the same time: no freeze holds that up.
        for victims in [vec![(master + 1) % 3], vec![master], vec![master, (master + 1) % 3]] {
            all_reached(&links).await?;
            for victim in &victims {
                sandbox.kill(*victim);
                // A dropped link refuses connections, as a host does whose process has ended.
                links.remove(victim);
            }
            for victim in &victims {
                sandbox.node(*victim).wait_ended(SOON).await?;
            }
            sandbox.settled().await?;
            fires(sandbox).await?;
            start_behind_links(sandbox, &mut links, &victims).await?;
            fires(sandbox).await?;
        }
        stream.end().await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        Ok(())
    })
    .await;
}

/// Whichever of the others sees the end first revokes both leases. The next master may not have seen it by then.
#[tokio::test(flavor = "multi_thread")]
async fn the_master_and_the_next_candidate_killed_at_once_are_replaced_before_their_leases_end() {
    scenario(Sandbox::builder().compared().nodes(5).lease_ttl(ENDLESS), async |sandbox| {
        for node in sandbox.nodes() {
            node.stop(SOON).await?;
        }
        let mut links = Links::new();
        // One after another, so that they are candidates in this order.
        for number in 0..5 {
            start_behind_links(sandbox, &mut links, &[number]).await?;
        }
        for (_, starts) in links.values_mut() {
            *starts = 4;
        }
        sandbox.consume_and_ack("mail", &confirm()).await?;
        all_reached(&links).await?;
        ensure!(sandbox.master().await? == 0, "the first to start is the master");
        for victim in [0, 1] {
            sandbox.kill(victim);
            // A dropped link refuses connections, as a host does whose process has ended.
            links.remove(&victim);
        }
        for victim in [0, 1] {
            sandbox.node(victim).wait_ended(SOON).await?;
        }
        sandbox.settled().await?;
        fires(sandbox).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stopped_for_five_seconds_keeps_its_shards() {
    scenario(Sandbox::builder().compared().lease_ttl(ENDLESS), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let master = sandbox.master().await?;
        let before = sandbox.owned().await;
        let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 150));
        for node in [(master + 1) % 3, master, (master + 2) % 3] {
            flows(sandbox, 100).await?;
            sandbox.pause(node)?;
            lasts(STOP).await;
            sandbox.resume(node)?;
        }
        stream.end().await?;
        nothing_moved(sandbox, &before).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_cannot_reach_one_another_keep_their_shards() {
    scenario(Sandbox::builder().compared().lease_ttl(ENDLESS), async |sandbox| {
        let links = all_behind_links(sandbox).await?;
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let before = sandbox.owned().await;
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 150), STOP * 2);
        all_reached(&links).await?;
        // A dropped link refuses connections, as a host does whose process has ended.
        drop(links);
        lasts(STOP).await;
        stream.await?;
        nothing_moved(sandbox, &before).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_ends_all_sessions_costs_no_shard() {
    scenario(Sandbox::builder().compared().lease_ttl(ENDLESS), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let before = sandbox.owned().await;
        let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 100), STOP * 2);
        let fault = sandbox.ledger.fault("all sessions ended");
        for _ in 0..3 {
            let sessions = format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                  WHERE datname = '{}' AND pid <> pg_backend_pid()",
                sandbox.vhost()
            );
            sandbox.postgres(0).execute(&sessions).await?;
            lasts(Duration::from_secs(2)).await;
        }
        stream.await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        sandbox.ledger.heal(fault);
        nothing_moved(sandbox, &before).await
    })
    .await;
}

/// The node holds each message back for a second after its claim. It is stopped with some in hand, and the others
/// publish them.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_stopped_for_longer_than_its_lease_publishes_nothing_that_it_claimed_before() {
    const SLOW: usize = 1;
    let builder = Sandbox::builder().compared().failpoints(SLOW, "before_publish=return(1000)");
    scenario(builder, async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let others = [(SLOW + 1) % 3, (SLOW + 2) % 3];
        load(sandbox, &[0, 1, 2], Load::new("mail", 300).due_in_ms(0..200), Duration::from_secs(3)).await?;
        sandbox.pause(SLOW)?;
        let in_hand = sandbox.ledger.outstanding();
        ensure!(in_hand > 0, "the node was stopped with nothing in hand");
        until("the others own all shards", SOON, || async {
            let mut owned = 0.0;
            for node in others {
                owned += sandbox.client(node).metric("duetime_shards_owned").await.ok()??;
            }
            (owned == f64::from(sandbox.shard_count())).then_some(())
        })
        .await?;
        ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
        // What the others publish a second time, marked, may still be under way.
        until("all tasks have ended", SOON, async || {
            let left = number(sandbox, 0, "SELECT count(*) FROM duetime.task").await.ok()?;
            (left == 0).then_some(())
        })
        .await?;
        let published = sandbox.ledger.arrivals().len();
        sandbox.resume(SLOW)?;
        // It has its share again, and publishes: whatever it had in hand before has long been decided.
        sandbox.settled().await?;
        fires(sandbox).await?;
        let copies = sandbox.ledger.arrivals().len() - published - 3;
        // A batch may be stopped between its last look at the clock and its write. All others must not be published.
        ensure!(copies * 20 <= in_hand, "{copies} of {in_hand} messages in hand were published after the stop");
        Ok(())
    })
    .await;
}

/// Prints the figures of many kills with the default lease, each the longest wait of a task that became due when a
/// node had just been killed. `DUETIME_KILLS` is their number; one by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_is_followed_by_a_takeover() {
    let kills = std::env::var("DUETIME_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(1);
    scenario(Sandbox::builder().compared().lease_ttl(Duration::from_secs(10)).unwatched(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let mut waits = Vec::new();
        for kill in 0..kills {
            let master = sandbox.master().await?;
            let victim = if kill % 2 == 0 { (master + 1) % 3 } else { master };
            // A task that is due soon goes to a shard of the node that takes it, so each node must take some.
            let stream = load(sandbox, &[0, 1, 2], Load::new("mail", 300), STOP * 2);
            flows(sandbox, 600).await?;
            let killed_us = now_us();
            sandbox.kill(victim);
            let began = Instant::now();
            sandbox.settled().await?;
            let settled_ms = began.elapsed().as_millis();
            stream.await?;
            ensure!(sandbox.ledger.wait_all(SOON).await, "tasks are outstanding");
            let wait_ms = sandbox.ledger.lateness(killed_us - 50_000, killed_us + 4_000_000).max_ms;
            let who = if victim == master { "the master" } else { "an owner" };
            println!("kill {kill}, {who}: longest wait {wait_ms:.0} ms, shards settled after {settled_ms} ms");
            waits.push(wait_ms);
            sandbox.restart(victim).await?;
            sandbox.settled().await?;
        }
        waits.sort_by(f64::total_cmp);
        println!("{kills} kills: p50 {:.0} ms, max {:.0} ms", waits[waits.len() / 2], waits[waits.len() - 1]);
        Ok(())
    })
    .await;
}
