//! Nodes that die or freeze at the worst moments.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{clock::now_us, load::Load, sandbox::Sandbox};

use crate::{confirm, flows, held_up_ms, lasts, load, scenario, stream::Stream, until};

/// The limit of a takeover beyond the lease, on a busy machine; `make bench` measures the real time.
const TAKEOVER: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn when_an_owner_is_killed_the_others_fire_its_tasks_within_a_lease() {
    scenario(Sandbox::builder().compared(), async |sandbox| {
        let master = sandbox.master().await?;
        kill_under_load(sandbox, (master + 1) % 3).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_master_is_killed_another_leads_and_nothing_is_lost() {
    scenario(Sandbox::builder().compared(), async |sandbox| {
        let master = sandbox.master().await?;
        kill_under_load(sandbox, master).await?;
        let next = sandbox.master().await?;
        ensure!(next != master || sandbox.node(master).is_running(), "a dead node is master");
        Ok(())
    })
    .await;
}

async fn kill_under_load(sandbox: &Sandbox, victim: usize) -> Result<()> {
    sandbox.consume_and_ack("mail", &confirm()).await?;
    let stream = Stream::start(sandbox, &[0, 1, 2], Load::new("mail", 150));
    flows(sandbox, 300).await?;
    let killed_us = now_us();
    sandbox.kill(victim);
    sandbox.settled().await?;
    let whole_us = now_us();
    stream.end().await?;
    ensure!(sandbox.ledger.wait_all(Duration::from_secs(40)).await, "tasks are outstanding");
    let during = sandbox.ledger.lateness(killed_us, whole_us + 2_000_000);
    let most_ms = (sandbox.lease_ttl() + TAKEOVER).as_secs_f64() * 1e3 + held_up_ms() as f64;
    ensure!(during.max_ms <= most_ms, "after the kill: {during}; a lease, {TAKEOVER:?} and stalls are {most_ms} ms");
    // The node comes back as another incarnation.
    sandbox.restart(victim).await?;
    sandbox.settled().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_an_insert_that_claimed_loses_nothing() {
    // A due time in the past means now.
    crash_under("after_submit=20*off->return", Load::new("mail", 150).due_in_ms(-20..0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_the_claim_loses_nothing() {
    crash_at("after_claim=20*off->return").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_the_publish_loses_nothing() {
    crash_at("after_publish=60*off->return").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_the_confirm_loses_nothing() {
    crash_at("after_confirm=60*off->return").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_the_settle_loses_nothing() {
    crash_at("after_settle=20*off->return").await;
}

async fn crash_at(failpoint: &str) {
    crash_under(failpoint, Load::new("mail", 150)).await;
}

/// The first node dies at the fail point while it works, and comes back.
async fn crash_under(failpoint: &str, work: Load) {
    let nodes = Sandbox::builder().compared().failpoints(0, failpoint);
    scenario(nodes, async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let fault = sandbox.ledger.fault(failpoint);
        let stream = Stream::start(sandbox, &[0, 1, 2], work);
        sandbox.node(0).wait_ended(Duration::from_secs(60)).await?;
        sandbox.ledger.heal(fault);
        sandbox.settled().await?;
        sandbox.restart(0).await?;
        stream.end().await?;
        sandbox.settled().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_fence_and_the_recovery_loses_nothing() {
    scenario(Sandbox::builder().compared().nodes(2), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = Stream::start(sandbox, &[0, 1], Load::new("mail", 150));
        // The third node acquires its first shards, and dies at that fail point.
        let fault = sandbox.ledger.fault("after_fence");
        let third = sandbox.add_node().await?;
        sandbox.node(third).start_with_failpoints("after_fence=return")?;
        sandbox.node(third).wait_ended(Duration::from_secs(60)).await?;
        sandbox.ledger.heal(fault);
        sandbox.settled().await?;
        stream.end().await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_frozen_for_three_leases_comes_back_without_harm() {
    scenario(Sandbox::builder().compared(), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let lease = sandbox.lease_ttl();
        let frozen = (sandbox.master().await? + 1) % 3;
        let (one, other) = ((frozen + 1) % 3, (frozen + 2) % 3);
        let stream = Stream::start(sandbox, &[one, other], Load::new("mail", 150));
        flows(sandbox, 200).await?;
        sandbox.pause(frozen)?;
        until("the others own all shards", lease + Duration::from_secs(20), || async {
            let mut owned = 0.0;
            for node in [one, other] {
                owned += sandbox.client(node).metric("duetime_shards_owned").await.ok()??;
            }
            (owned == f64::from(sandbox.shard_count())).then_some(())
        })
        .await?;
        lasts(lease * 2).await;
        sandbox.resume(frozen)?;
        sandbox.settled().await?;
        stream.end().await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_freeze_costs_no_shard() {
    // Far longer than the freeze, so that a machine that stands still ends no lease.
    scenario(Sandbox::builder().compared().lease_ttl(Duration::from_secs(60)), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let before = sandbox.owned().await;
        let stream = load(sandbox, &[0, 1], Load::new("mail", 100), Duration::from_secs(6));
        flows(sandbox, 100).await?;
        sandbox.pause(2)?;
        lasts(Duration::from_secs(2)).await;
        sandbox.resume(2)?;
        stream.await?;
        ensure!(sandbox.owned().await == before, "shards moved: {before:?} -> {:?}", sandbox.owned().await);
        Ok(())
    })
    .await;
}
